"""Predicting with the head of a statistic: the scores of the run itself, over every way to predict."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpsl.data.dataset import Dataset, load
from tpsl.model.predictors import PredictionError
from tpsl.model.trained import TrainedModel
from tpsl.run.job import Job, make_job
from tpsl.run.one_process import train
from tpsl.run.run_folder import RunFolder
from tpsl.run.stages.collect import STATISTIC_HEAD

PRETRAIN = {"method": "masked", "epochs": 1}


def job(**changes: Any) -> Job:
    content = {
        "data": {"source": "flights", "rows": 1500, "layout": "natural"},
        "privacy": {"epsilon": 20.0, "noise_seed": 1},
        "model": {"embedding_dim": 4, "bottom": [16, 8], "top": [8]},
        "training": {"batch_size": 256, "epochs": 1, "validation": 0.1, "pretrain": PRETRAIN},
        "statistic": {"share_codes": True},
    }
    return make_job(content, changes, "test")


def inputs(data: Dataset) -> dict[str, Any]:
    label = {} if data.label_features is None else {"label": data.label_features}
    return {**data.feature_parties, **label}


@pytest.mark.parametrize("releases", [1, 2])
def test_a_run_scores_its_own_test_records_again(tmp_path: Path, releases: int) -> None:
    agreed = job(training={"head": "local"}, statistic={"releases": releases})
    data = load(agreed.data)
    result = train(agreed, tmp_path / "run", data=data)
    run = RunFolder(tmp_path / "run")
    network = TrainedModel.open(run.path).halves()
    kept = run.predictions(result.kept_epoch)["test"]
    judged = result.kept_epoch and len(run.predictions(result.kept_epoch)["validation"])
    found = network.probabilities(inputs(data), data.test)
    # In the run the test records came in parts together with the held-out ones.
    assert judged and np.allclose(found, kept, atol=1e-6)
    assert kept.std() > 1e-2, "or the head is the base rate, and anything would do"
    assert (TrainedModel.open(run.path).predict_rows(data, data.test) == found).all()
    # What the parties send is the same for both heads; the local one reads its part of it.
    local = TrainedModel.open(run.path).halves(local_head=True)
    assert local.top.widths == network.top.widths
    assert local.probabilities(inputs(data), data.test).shape == found.shape


def test_a_head_that_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    train(job(), tmp_path / "run")
    head = tmp_path / "run" / "label" / STATISTIC_HEAD
    content = head.read_bytes()
    head.write_bytes(content[:-7])
    with pytest.raises(PredictionError, match="is damaged"):
        TrainedModel.open(tmp_path / "run").halves()
    head.unlink()
    with pytest.raises(PredictionError, match="cannot be read"):
        TrainedModel.open(tmp_path / "run").halves()
