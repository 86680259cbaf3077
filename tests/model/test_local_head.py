"""The local head, at the label party: what it says of new records is what it said in the run."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from tpsl.data.true_labels import reveal
from tpsl.model.predictors import PredictionError
from tpsl.model.records import predict_records, read_records
from tpsl.model.trained import TrainedModel
from tpsl.run.evaluation import evaluate
from tpsl.run.one_process import load_records, train
from tpsl.run.run_folder import RunFolder

PRETRAIN = {"method": "masked", "epochs": 1}


@pytest.mark.parametrize(
    "parts",
    [
        {"training": {"head": "local", "validation": 0.1}},
        {"training": {"head": "local", "pretrain": PRETRAIN}, "model": {"wide": True, "members": 2}},
        {"training": {"head": "local"}, "privacy": {"gradients": "none"}},
    ],
    ids=["judged", "frozen embeddings and a wide part", "no gradients"],
)
def test_records_are_scored_as_in_the_run(parts: dict[str, Any], shops: Any, tmp_path: Path) -> None:
    paths = shops.write(tmp_path, shops.tables(300, seed=1))
    job = shops.table_job(paths, **parts)
    train(job, tmp_path / "run")
    run, data = RunFolder(tmp_path / "run"), load_records(job)
    records = {party: read_records(run, party, str(path)) for party, path in paths.items()}
    halves = TrainedModel.open(run.path).halves(local_head=True)
    inputs = {party: found.inputs for party, found in records.items() if found.inputs is not None}
    scores = halves.probabilities(inputs, data.test)
    noted = run.local_head()
    assert noted is not None
    found = evaluate(scores, reveal(data.labels)[data.test])
    assert found.test_auc == noted["test_auc"]
    assert found.test_log_loss == pytest.approx(noted["test_log_loss"], rel=1e-6)
    if job.trains:
        assert (
            TrainedModel.open(run.path).predict_rows(data, data.test)
            == TrainedModel.open(run.path).halves().probabilities(inputs, data.test)
        ).all()


def test_its_scores_are_marked_in_the_file(three_parties: Path, shops: Any, tmp_path: Path) -> None:
    paths = shops.write(tmp_path, shops.tables(5, seed=3))
    records = {party: read_records(RunFolder(three_parties), party, str(path)) for party, path in paths.items()}
    scores = predict_records(TrainedModel.open(three_parties).halves(local_head=True), records, ("0", "1"))
    scores.write(tmp_path / "NOT-PRIVATE-scores.parquet", records["shop"])
    metadata = pyarrow.parquet.read_schema(tmp_path / "NOT-PRIVATE-scores.parquet").metadata
    assert metadata[b"tpsl"].startswith(b"NOT PRIVATE")


def test_a_run_without_one_or_with_another_file_in_its_place_is_refused(three_parties: Path, tmp_path: Path) -> None:
    shutil.copytree(three_parties, tmp_path / "run")
    head = tmp_path / "run" / "label" / "NOT-PRIVATE"
    shutil.copy(tmp_path / "run" / "label" / "top.safetensors", head / "local_head.safetensors")
    with pytest.raises(PredictionError, match=r"local_head\.safetensors: holds no local head"):
        TrainedModel.open(tmp_path / "run").predictor(local_head=True)
    shutil.rmtree(head)
    with pytest.raises(PredictionError, match="the run has no local head"):
        TrainedModel.open(tmp_path / "run").predictor(local_head=True)
