"""The ensemble of a search, trained once more with its hold-out: all records train, the weights are the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tpsl.model.trained import WITH_JUDGES, TrainedModel
from tpsl.run.job import make_job
from tpsl.run.run_folder import RunFolder
from tpsl.run.setup import RunSetup
from tpsl.select.parallel import load_once
from tpsl.select.search import train_with_hold_out, tune
from tpsl.select.space import configuration

SPACE = [configuration(1e-2), {**configuration(3e-3), "model": {"wide": True}}]


def test_all_records_train_and_the_weights_are_those_of_the_search(tmp_path: Path) -> None:
    content = {
        "data": {"source": "synthetic", "rows": 400, "numeric_fields": 2, "categorical_fields": 2},
        "privacy": {"epsilon": 2.0, "noise_seed": 0},
        "model": {"embedding_dim": 2, "bottom": [4], "top": [4]},
        "training": {"batch_size": 100, "epochs": 2},
    }
    job = make_job(content, {}, "test")
    setup, data, vault = RunSetup(job, RunFolder(tmp_path)), load_once(job), tmp_path / "vault"
    candidates = [candidate.as_dict() for candidate in tune(setup, SPACE, data=data).candidates]
    model = train_with_hold_out(setup, SPACE, candidates, data, vault)
    assert [(m.epoch, m.weight) for m in model.members] == [
        (c["epoch"], pytest.approx(c["weight"])) for c in candidates
    ]
    for member in model.members:
        assert member.run.job().training.validation == 0 and member.epoch is not None
        kept = member.run.predictions(member.epoch)
        assert (len(kept["validation"]), len(kept["test"])) == (0, len(data.test))
    searched = TrainedModel.open(tmp_path).kept_predictions("test")
    assert not np.allclose(model.kept_predictions("test"), searched, atol=1e-4), "other weights, from more records"
    assert model.path == tmp_path / WITH_JUDGES and model.is_ensemble

    first, second = model.runs()
    (first.path / "diverged.txt").touch()
    left = train_with_hold_out(setup, SPACE, candidates, data, vault).members
    assert {member.run.path for member in left} == {second.path}
    assert sum(member.weight or 0 for member in left) == pytest.approx(1)
    (second.path / "diverged.txt").touch()
    with pytest.raises(ValueError, match="with the hold-out, every configuration"):
        train_with_hold_out(setup, SPACE, candidates, data, vault)
