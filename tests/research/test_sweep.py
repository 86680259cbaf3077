import csv
import json
import math
from pathlib import Path
from statistics import NormalDist

import pyarrow.parquet as pq
import pytest

from tpsl.attacks.auc_prediction import predicted_auc
from tpsl.mechanisms import laplace
from tpsl.run.job import Job, make_job
from tpsl_research.sweep import Setting, gaussian_sigma_like_laplace, sweep


@pytest.fixture
def base() -> Job:
    content = {
        "data": {"source": "synthetic", "rows": 2500, "numeric_fields": 3, "categorical_fields": 3, "signal": 2.0},
        "model": {"embedding_dim": 4, "bottom": [16], "top": [8]},
        "training": {"batch_size": 100, "epochs": 1},
    }
    return make_job(content, {}, "test")


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_gaussian_noise_is_matched_to_laplace(epsilon: float) -> None:
    sigma = gaussian_sigma_like_laplace(epsilon)
    assert NormalDist().cdf(1 / (2 * sigma)) == pytest.approx(1 - math.exp(-epsilon / 2) / 2)
    assert NormalDist().cdf(1 / (2 * sigma)) == pytest.approx(
        predicted_auc(laplace(epsilon)).shortest_distance, abs=1e-3
    )


def test_a_sweep_trains_attacks_and_resumes(tmp_path: Path, base: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = [
        Setting("plain", {"mechanism": "none", "estimator": "linear"}, 0),
        Setting("noisy", {"mechanism": "discrete", "epsilon": 1.0, "estimator": "linear"}, 0),
    ]
    first = sweep(settings[:1], base, tmp_path, workers=1)
    seen: list[tuple[int, int]] = []
    rows = sweep(settings, base, tmp_path, workers=1, progress=lambda done, total, note: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]
    assert rows[0] == first[0]
    plain, noisy = rows
    assert plain["shortest_distance_auc"] == pytest.approx(1.0)
    assert plain["epsilon"] is None
    assert noisy["epsilon"] <= 1.0
    assert noisy["shortest_distance_auc"] == pytest.approx(noisy["closed_form"], abs=0.06)
    assert noisy["shortest_distance_auc"] < 0.85
    assert not any(row["private"] for row in rows)
    with (tmp_path / "results.csv").open() as file:
        assert [row["algorithm"] for row in csv.DictReader(file)] == ["plain", "noisy"]
    assert pq.read_table(tmp_path / "results.parquet").column("test_auc").to_pylist() == [r["test_auc"] for r in rows]
    assert not [path for path in (tmp_path / "cells").iterdir() if path.is_dir()], "transcripts are left behind"
    monkeypatch.setattr("tpsl_research.sweep.train_together", None)
    assert sweep(settings, base, tmp_path, workers=1) == rows


def test_rows_repeat(tmp_path: Path, base: Job) -> None:
    setting = Setting("noisy", {"mechanism": "laplace", "epsilon": 1.0, "estimator": "linear"}, 3)
    (one,) = sweep([setting], base, tmp_path / "one", workers=1)
    (two,) = sweep([setting], base, tmp_path / "two", workers=1)
    del one["samples_per_second"], two["samples_per_second"]
    assert one == two


def test_cells_run_in_parallel(tmp_path: Path, base: Job) -> None:
    settings = [Setting("plain", {"mechanism": "none", "estimator": "linear"}, seed) for seed in range(2)]
    rows = sweep(settings, base, tmp_path, workers=2)
    assert [row["seed"] for row in rows] == [0, 1]
    assert rows[0]["test_auc"] != rows[1]["test_auc"]
    assert len(list((tmp_path / "cells").glob("*.json"))) == 2
    json.loads(next((tmp_path / "cells").glob("*.json")).read_text())


def test_a_run_that_diverges_is_a_row_too(tmp_path: Path, base: Job) -> None:
    hot = {"name": "sgd", "learning_rate": 50.0}
    content = base.model_dump(mode="json")
    content["training"] |= {"feature_optimizer": hot, "label_optimizer": hot}
    laplace_noise = {"mechanism": "laplace", "epsilon": 0.01, "estimator": "linear"}
    settings = [Setting("plain", {"mechanism": "none", "estimator": "linear"}, 0), Setting("noisy", laplace_noise, 0)]
    rows = sweep(settings, make_job(content, {}, "test"), tmp_path, workers=1)
    assert rows[1]["diverged"]
    assert "test_auc" not in rows[1]
    assert pq.read_table(tmp_path / "results.parquet").num_rows == 2
