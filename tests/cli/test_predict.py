"""`tpsl predict` in one process, and `label predict` and `feature predict` in two."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from tpsl.run.job import make_job
from tpsl.run.one_process import train


def write_tables(folder: Path, records: int, seed: int) -> None:
    """Write `shop.csv`, with features, and `bank.csv`, with a feature and the label."""
    folder.mkdir(exist_ok=True)
    draws = np.random.default_rng(seed)
    minutes, age = draws.normal(5, 2, records), draws.normal(40, 9, records)
    ids, paid = [f"{seed}-{number:04d}" for number in range(records)], (minutes + age / 9 > 9.4).astype(int)
    pyarrow.csv.write_csv(
        pa.table({"id": ids, "minutes": minutes, "device": ["a", "b"] * (records // 2)}), folder / "shop.csv"
    )
    pyarrow.csv.write_csv(pa.table({"id": ids, "age": age, "label": paid}), folder / "bank.csv")


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with features at both parties, and new records of both."""
    folder = tmp_path_factory.mktemp("office")
    write_tables(folder, 300, seed=1)
    write_tables(folder / "new", 60, seed=2)
    shop = {"path": str(folder / "shop.csv"), "party": "shop", "numeric": ["minutes"], "categorical": ["device"]}
    data = {"source": "table", "features": [shop], "label": {"path": str(folder / "bank.csv"), "numeric": ["age"]}}
    settings = {"epochs": 1, "batch_size": 64, "head": "local"}
    model = {"embedding_dim": 2, "bottom": [8], "top": [8]}
    train(make_job({"data": data, "model": model, "training": settings}, {}, "test"), folder / "run")
    return folder


def scores(path: Path) -> dict[str, float]:
    table = pyarrow.parquet.read_table(path) if path.suffix == ".parquet" else pyarrow.csv.read_csv(path)
    return dict(zip(map(str, table["id"].to_pylist()), table["score"].to_pylist(), strict=True))


def test_new_records_are_scored_in_one_process(office: Path, tmp_path: Path, tpsl: Any) -> None:
    files = [f"shop={office / 'new' / 'shop.csv'}", f"label={office / 'new' / 'bank.csv'}"]
    options = [word for file in files for word in ("--records", file)]
    found = tpsl("predict", office / "run", *options, "--out", tmp_path / "scores.parquet", "--json").json()
    assert found == {"scores": str(tmp_path / "scores.parquet"), "records": 60, "head": "private"}
    assert len(scores(tmp_path / "scores.parquet")) == 60
    people = tpsl("predict", office / "run", *options, "--out", tmp_path / "scores.csv")
    assert people.stdout == f"Scored 60 records\n  scores  {tmp_path / 'scores.csv'}\n"
    tmp_path.chmod(0o700)
    local = tpsl("predict", office / "run", *options, "--out", tmp_path / "scores.csv", "--head", "local")
    assert local.facts()["scores"].endswith("NOT-PRIVATE-scores.csv")
    assert local.facts()["guarantee"] == "NOT PRIVATE: keep them where they are"
    assert scores(tmp_path / "NOT-PRIVATE-scores.csv") != scores(tmp_path / "scores.csv")


def test_what_is_missing_is_one_sentence(office: Path, tmp_path: Path, tpsl: Any) -> None:
    shop = office / "new" / "shop.csv"
    run, out = office / "run", ("--out", tmp_path / "scores.csv")
    alone = tpsl("predict", run, "--records", f"shop={shop}", *out).error()
    assert alone == "error: records of shop, label are needed, those of shop are given"
    nobody = tpsl("predict", run, "--records", f"{shop}", *out).error(2)
    assert nobody.startswith("error: Invalid value: --records takes PARTY=FILE, once for each party; got")
    (tmp_path / "new.csv").write_text("id,minutes\n1,3\n")
    column = tpsl("predict", run, "--records", f"shop={tmp_path / 'new.csv'}", *out).error()
    assert column.startswith(f"error: {tmp_path / 'new.csv'}: there is no column 'device'")
    stranger = tpsl("predict", run, "--records", f"school={shop}", *out).error()
    assert stranger == "error: there is no party 'school' in the job, only label, shop"


def test_two_processes_score_as_one_does(
    office: Path, certificates: Path, tmp_path: Path, tpsl: Any, programs: Callable[..., Any]
) -> None:
    new = office / "new"
    label = programs(
        tmp_path,
        *("predict", office / "run", "--records", new / "bank.csv", "--out", "scores.parquet"),
        *("--listen", "127.0.0.1:0", "--certs", certificates / "label", "--set=local.threads=1"),
    )
    until = time.monotonic() + 60
    while "listening at " not in label.log() and time.monotonic() < until:
        time.sleep(0.02)
    address = label.log().partition("listening at ")[2].split()[0]
    feature = programs(
        tmp_path,
        *("predict", office / "run", "--records", new / "shop.csv", "--connect", address),
        *("--certs", certificates / "shop", "--json", "--set=local.threads=1"),
    )
    assert feature.result() == {"scores": None, "records": 60}
    assert label.outcome().stdout == "Scored 60 records\n  scores  scores.parquet\n"
    both = [f"shop={new / 'shop.csv'}", f"label={new / 'bank.csv'}"]
    options = [word for file in both for word in ("--records", file)]
    tpsl("predict", office / "run", *options, "--out", tmp_path / "one.parquet")
    assert scores(tmp_path / "scores.parquet") == scores(tmp_path / "one.parquet")


def test_the_ensemble_of_a_search_scores_too(office: Path, tmp_path: Path, tpsl: Any) -> None:
    (tmp_path / "space.yaml").write_text("- {training: {epochs: 2}}\n")
    job = office / "run" / "job.yaml"
    tpsl("tune", job, "--out", tmp_path / "tuned", "--space", tmp_path / "space.yaml", "--json").json()
    options = ["--records", f"shop={office / 'new' / 'shop.csv'}", "--records", f"label={office / 'new' / 'bank.csv'}"]
    command = ("predict", tmp_path / "tuned", *options, "--out", tmp_path / "scores.csv")
    assert tpsl(*command, "--json").json()["records"] == 60
    assert len(scores(tmp_path / "scores.csv")) == 60
    tmp_path.chmod(0o700)
    assert "whose ensemble has no local head" in tpsl(*command, "--head", "local").error()
