"""The ensemble of a search predicts what it predicted in the search."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from tpsl.data.dataset import load
from tpsl.data.true_labels import reveal
from tpsl.model.predictors import PredictionError
from tpsl.model.trained import TrainedModel
from tpsl.run import schedule
from tpsl.run.evaluation import evaluate
from tpsl.run.job import make_job
from tpsl.run.run_folder import RunFolder, epoch_folder
from tpsl.run.setup import RunSetup
from tpsl.select.search import tune
from tpsl.select.space import configuration


def test_new_records_get_the_ensemble_s_probabilities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = {
        "data": {"source": "flights", "layout": "natural", "rows": 600},
        "model": {"embedding_dim": 2, "bottom": [8], "top": [8]},
        "training": {"batch_size": 64, "epochs": 2, "validation": 0.2},
    }
    job = make_job(content, {}, "test")
    data = load(job.data)
    space = [configuration(1e-3), {**configuration(1e-2), "model": {"wide": True}}]
    found = tune(RunSetup(job, RunFolder(tmp_path)), space, data=data)
    model = TrainedModel.open(tmp_path)
    assert [member.weight for member in model.members] == [candidate.weight for candidate in found.candidates]
    assert [member.epoch for member in model.members] == [1, 2, 1, 2]
    ensemble = model.halves()
    assert ensemble.parties == ("feature", "label")
    assert data.label_features is not None
    inputs = {**data.feature_parties, "label": data.label_features}
    predicted = ensemble.part(inputs, dict.fromkeys(inputs, data.test))
    assert asdict(evaluate(predicted, reveal(data.labels)[data.test])).items() <= asdict(found.ensemble).items()
    one = TrainedModel(tmp_path, model.members[:1]).halves()
    assert not np.array_equal(predicted, one.part(inputs, dict.fromkeys(inputs, data.test)))
    monkeypatch.setattr(schedule, "TEST_ROWS_AT_ONCE", 64)
    assert [len(part) for part in schedule.in_parts(data.test, ensemble.networks)] == [16] * 7 + [8]
    np.testing.assert_allclose(ensemble.probabilities(inputs, data.test), predicted, rtol=0, atol=1e-6)
    with pytest.raises(PredictionError, match="whose ensemble has no local head"):
        model.halves(local_head=True)
    (tmp_path / "runs" / found.candidates[1].run / "label" / "epochs" / "0002" / "top.safetensors").unlink()
    with pytest.raises(PredictionError, match=r"0002/top\.safetensors: cannot be read"):
        model.halves()


def test_versions_of_an_ensemble_are_those_of_all_its_members(tmp_path: Path) -> None:
    for name, versions in {"a": ("1", "2"), "b": ("3",)}.items():
        run = RunFolder(tmp_path / "runs" / name)
        for epoch, version in enumerate(versions, 1):
            epoch_folder(run.party("shop"), epoch).mkdir(parents=True)
            run.note_versions("shop", {"shop": version})
            run.keep_versions("shop", epoch)
    members = [{"run": "a", "epoch": 1}, {"run": "a", "epoch": 2}, {"run": "b", "epoch": 1}]

    def version(rows: list[dict[str, object]]) -> str:
        (tmp_path / "tune.json").write_text(json.dumps({"candidates": rows}))
        return TrainedModel.open(tmp_path).version("shop")

    every = [version(rows) for rows in (members, members[::-1], members[:2], members[1:])]
    assert len({*every, "1", "2", "3"}) == 7
    assert version(members) == every[0]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ('{"candidates": [{"weight": 1}]}', "is no result of tpsl tune that can predict"),
        ('{"candidates": [{"run": "a", "epoch": 1, "weight": "much"}]}', "is no result of tpsl tune"),
        ('{"candidates": []}', "lists no network"),
        ("{", "is no result of tpsl tune"),
    ],
)
def test_a_damaged_result_of_a_search_is_named(content: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / "tune.json").write_text(content)
    with pytest.raises(PredictionError, match=rf"tune\.json: {fault}"):
        TrainedModel.open(tmp_path)


def test_a_feature_partys_folder_has_no_weights(tmp_path: Path) -> None:
    (tmp_path / "tune.json").write_text('{"candidates": [{"run": "a", "epoch": 1}]}')
    with pytest.raises(PredictionError, match=r"tune\.json: has no weights"):
        TrainedModel.open(tmp_path).predictor()
