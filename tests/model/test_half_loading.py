"""Predicting with a finished run: the numbers of the run itself, and nothing of the local head."""

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from tpsl.data.dataset import Dataset, load
from tpsl.data.true_labels import reveal
from tpsl.model.predictors import PredictionError
from tpsl.model.trained import TrainedModel
from tpsl.run.evaluation import evaluate
from tpsl.run.job import Job, make_job
from tpsl.run.one_process import train
from tpsl.run.run_folder import NOT_PRIVATE, RunError

SYNTHETIC = {"source": "synthetic", "rows": 1200, "numeric_fields": 3, "categorical_fields": 2, "signal": 2.0}
NATURAL = {"source": "flights", "layout": "natural", "rows": 600}
SMALL = {"embedding_dim": 4, "bottom": [16, 8], "top": [8]}


def agreed(data: dict[str, Any], model: dict[str, Any] | None = None, **training: Any) -> Job:
    content = {
        "data": data,
        "privacy": {"epsilon": 4.0},
        "model": {**SMALL, **(model or {})},
        "training": {"batch_size": 128, "epochs": 2, "patience": 0, **training},
    }
    return make_job(content, {}, "test")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Dataset]:
    job = agreed(SYNTHETIC, head="local")
    run, data = tmp_path_factory.mktemp("prediction") / "run", load(job.data)
    train(job, run, data=data)
    return run, data


@pytest.mark.parametrize(
    "job",
    [
        agreed({**SYNTHETIC, "classes": 3}),
        agreed(SYNTHETIC, {"members": 2}, averaging=0.5),
        agreed(NATURAL),
    ],
    ids=["three classes", "members and averaging", "features at the label party"],
)
def test_predicts_what_the_run_evaluated(job: Job, tmp_path: Path) -> None:
    data = load(job.data)
    result = train(job, tmp_path / "run", data=data)
    probabilities = TrainedModel.open(tmp_path / "run").predict_rows(data, data.test)
    found = evaluate(probabilities, reveal(data.labels)[data.test])
    assert found.test_auc == result.test_auc
    assert found.test_log_loss == result.test_log_loss


def test_rows_are_predicted_in_the_order_asked_for(trained: tuple[Path, Dataset]) -> None:
    run, data = trained
    everything = TrainedModel.open(run).predict_rows(data)
    assert everything.shape == (len(data),)
    rows = np.array([7, 3, 3, 1100])
    np.testing.assert_allclose(TrainedModel.open(run).predict_rows(data, rows), everything[rows], rtol=1e-5)
    assert TrainedModel.open(run).predict_rows(data, rows[:0]).shape == (0,)


def test_true_labels_and_the_local_head_are_out_of_reach(trained: tuple[Path, Dataset], tmp_path: Path) -> None:
    run, data = trained
    before = TrainedModel.open(run).predict_rows(data, data.test)
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    assert (copy / "label" / NOT_PRIVATE / "local_head.safetensors").exists()
    shutil.rmtree(copy / "label" / NOT_PRIVATE)
    shutil.rmtree(copy / "label" / "vault")
    flipped = data.with_labels(1 - reveal(data.labels))
    assert np.array_equal(TrainedModel.open(copy).predict_rows(flipped, data.test), before)
    with pytest.raises(RunError, match="is not a run folder"):
        TrainedModel.open(run / "label" / NOT_PRIVATE).predict_rows(data)


def test_the_local_head_in_place_of_the_top_half_is_refused(trained: tuple[Path, Dataset], tmp_path: Path) -> None:
    run, data = trained
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    shutil.copy(copy / "label" / NOT_PRIVATE / "local_head.safetensors", copy / "label" / "top.safetensors")
    with pytest.raises(PredictionError, match=r"top\.safetensors: holds weights of another network"):
        TrainedModel.open(copy).predict_rows(data)


def test_what_is_missing_or_does_not_fit_is_named(trained: tuple[Path, Dataset], tmp_path: Path) -> None:
    run, data = trained
    features = data.feature_parties["feature"]
    with pytest.raises(PredictionError, match="feature party 'feature', whose features are missing"):
        TrainedModel.open(run).halves({"other": features})
    with pytest.raises(PredictionError, match="the label party has no features of its own in this run"):
        TrainedModel.open(run).halves({**data.feature_parties, "label": features})
    with pytest.raises(PredictionError, match="needs the features of the party 'feature', which are not given"):
        TrainedModel.open(run).halves(data.feature_parties).probabilities({})
    wider = replace(features, embedding_rows=features.embedding_rows + 1)
    with pytest.raises(PredictionError, match=r"bottom\.safetensors: holds weights of another network"):
        TrainedModel.open(run).halves({"feature": wider})
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    (copy / "label" / "top.safetensors").write_bytes(b"\x00" * 40)
    with pytest.raises(PredictionError, match=r"top\.safetensors: is damaged"):
        TrainedModel.open(copy).predict_rows(data)
    (copy / "label" / "top.safetensors").unlink()
    with pytest.raises(PredictionError, match=r"top\.safetensors: cannot be read"):
        TrainedModel.open(copy).predict_rows(data)
    (copy / "result.json").unlink()
    with pytest.raises(PredictionError, match="is not finished"):
        TrainedModel.open(copy).predict_rows(data)


def test_features_of_another_shape_than_the_halves_are_refused(trained: tuple[Path, Dataset]) -> None:
    run, data = trained
    halves = TrainedModel.open(run).halves(data.feature_parties)
    other = replace(
        data.feature_parties["feature"],
        numeric=data.feature_parties["feature"].numeric[:, :2],
        numeric_fields=("I1", "I2"),
    )
    with pytest.raises(PredictionError, match="'feature' has other features than the network was trained with"):
        halves.probabilities({"feature": other})


def test_weights_decide(trained: tuple[Path, Dataset], tmp_path: Path) -> None:
    run, data = trained
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    path = copy / "label" / "top.safetensors"
    weights = load_file(path)
    weights["members.0.output.bias"] += 1.0
    save_file(weights, path)
    assert (TrainedModel.open(copy).predict_rows(data) > TrainedModel.open(run).predict_rows(data)).all()


def test_each_party_loads_its_half_from_a_folder_of_its_own(tmp_path: Path) -> None:
    job = agreed(NATURAL, {"wide": True, "members": 2}, averaging=0.5)
    data = load(job.data)
    train(job, tmp_path / "run", data=data)
    for party in ("feature", "label"):
        (tmp_path / party).mkdir()
        shutil.copy(tmp_path / "run" / "job.yaml", tmp_path / party)
        shutil.copytree(tmp_path / "run" / party, tmp_path / party / party)
    shutil.copy(tmp_path / "run" / "result.json", tmp_path / "label")
    top, own = (
        TrainedModel.open(tmp_path / "label").predictor(),
        TrainedModel.open(tmp_path / "label").embedder("label"),
    )
    bottom = TrainedModel.open(tmp_path / "feature").embedder("feature")
    assert data.label_features is not None
    shares = {
        "feature": bottom.embed(data.feature_parties["feature"], data.test),
        "label": own.embed(data.label_features, data.test),
    }
    assert {party: share.shape[1] for party, share in shares.items()} == dict(top.widths)
    assert np.array_equal(top.probabilities(shares), TrainedModel.open(tmp_path / "run").predict_rows(data, data.test))
    model = TrainedModel.open(tmp_path / "feature")
    for load_part in (model.predictor, partial(model.embedder, "label")):
        with pytest.raises(PredictionError, match="the part of 'label' is not here, so it cannot predict alone; `tpsl"):
            load_part()
    (tmp_path / "label" / "result.json").unlink()
    model = TrainedModel.open(tmp_path / "label")
    for load_part in (model.predictor, partial(model.embedder, "label")):
        with pytest.raises(PredictionError, match="the part of 'label' in the run is not finished"):
            load_part()


def test_a_run_whose_halves_learned_nothing_has_no_top_half(tmp_path: Path) -> None:
    job = make_job({"data": NATURAL, "privacy": {"gradients": "none"}, "training": {"head": "local"}}, {}, "test")
    train(job, tmp_path / "run")
    with pytest.raises(PredictionError, match=r"privacy\.gradients 'none': only its local head has learned"):
        TrainedModel.open(tmp_path / "run").predictor()
    assert TrainedModel.open(tmp_path / "run").embedder("feature").width == job.model.cut_width("feature")
