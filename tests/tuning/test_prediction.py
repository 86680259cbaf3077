"""The committee of a search predicts what it predicted in the search."""

from pathlib import Path

import numpy as np
import pytest

from tpsl.data.dataset import load
from tpsl.data.true_labels import reveal
from tpsl.prediction.halves import PredictionError
from tpsl.training.evaluation import evaluate
from tpsl.training.job import make_job
from tpsl.training.run_folder import RunFolder
from tpsl.training.setup import RunSetup
from tpsl.tuning.prediction import load_committee
from tpsl.tuning.search import tune
from tpsl.tuning.space import configuration


def test_new_records_get_the_committee_s_probabilities(tmp_path: Path) -> None:
    content = {
        "data": {"source": "flights", "layout": "natural", "rows": 600},
        "model": {"embedding_dim": 2, "bottom": [8], "top": [8]},
        "training": {"batch_size": 64, "epochs": 2, "validation": 0.2},
    }
    job = make_job(content, {}, "test")
    data = load(job.data)
    space = [configuration(1e-3), {**configuration(1e-2), "model": {"wide": True}}]
    found = tune(RunSetup(job, RunFolder(tmp_path)), space, data=data)
    (tmp_path / "runs" / found.candidates[0].run / "result.json").unlink()  # as of a run that has diverged
    run, committee = load_committee(tmp_path)
    assert run.path.name == found.candidates[-1].run
    assert [weight for weight, _ in committee.members] == [candidate.weight for candidate in found.candidates]
    assert len(committee.members) == 4
    assert committee.parties == ("feature", "label")
    assert data.label_features is not None
    inputs = {**data.feature_parties, "label": data.label_features}
    predicted = committee.part(inputs, dict.fromkeys(inputs, data.test))
    assert evaluate(predicted, reveal(data.labels)[data.test]) == found.committee
    assert not np.array_equal(predicted, committee.members[0][1].part(inputs, dict.fromkeys(inputs, data.test)))
    (tmp_path / "runs" / found.candidates[1].run / "label" / "epochs" / "0002" / "top.safetensors").unlink()
    with pytest.raises(PredictionError, match=r"0002/top\.safetensors: cannot be read"):
        load_committee(tmp_path)
    (tmp_path / "tune.json").write_text('{"candidates": [{"weight": 1}]}')
    with pytest.raises(PredictionError, match=r"tune\.json: is no result of tpsl tune that can predict"):
        load_committee(tmp_path)
