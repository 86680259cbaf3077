"""A search at the feature party: from the files of a hand-over to an ensemble that predicts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tpsl.handover.card import CardError
from tpsl.handover.giving import hand_over
from tpsl.handover.learning import tune_alone
from tpsl.model.trained import TrainedModel
from tpsl.run.alone import parts_of_both
from tpsl.run.job import Job, JobError, make_job
from tpsl.run.local import Local
from tpsl.run.one_process import train
from tpsl.run.own_parts import OwnParts
from tpsl.run.run_folder import RunFolder
from tpsl.run.setup import RunSetup
from tpsl.select.space import configuration
from tpsl.vault import Vault
from tpsl.vault.cost import Planned


def job(epsilon: float = 1.0, head: str = "private") -> Job:
    content = {
        "data": {"source": "synthetic", "rows": 400, "numeric_fields": 2, "categorical_fields": 2},
        "privacy": {"epsilon": epsilon},
        "model": {"embedding_dim": 2, "bottom": [4], "top": [4]},
        "training": {"batch_size": 100, "epochs": 2, "head": head},
    }
    return make_job(content, {}, "test")


def test_noisy_labels_choose_where_no_true_label_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpsl.select.search.default_space", lambda *_: [configuration(1e-2), configuration(1e-3)])
    train(job(), tmp_path / "run", vault=tmp_path / "vault")
    with Vault.open(tmp_path / "vault") as vault:
        hand_over(vault, Planned(job().mechanism), tmp_path / "given")

    def setup(agreed: Job) -> RunSetup:
        return RunSetup(agreed, RunFolder(tmp_path / "out"), parts_of_both("feature", OwnParts()))

    with pytest.raises(CardError, match="privacy in the job says"):
        tune_alone(setup(job(epsilon=2.0)), "feature", Local(), tmp_path / "given")
    with pytest.raises(JobError, match="a feature party cannot train this job alone"):
        tune_alone(setup(job(head="local")), "feature", Local(), tmp_path / "given")
    found = tune_alone(setup(job()), "feature", Local(), tmp_path / "given")
    assert len(found.candidates) == 4 and np.isnan(found.ensemble.test_auc)
    assert sum(candidate.weight for candidate in found.candidates) == pytest.approx(1)
    assert TrainedModel.open(tmp_path / "out").is_ensemble
    assert tune_alone(setup(job()), "feature", Local(), tmp_path / "given").as_dict() == found.as_dict()
