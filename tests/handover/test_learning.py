"""`learn`: from the file of noisy labels to the network that split training would have ended with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tpsl.data.dataset import load_feature_party
from tpsl.handover.card import CardError
from tpsl.handover.giving import hand_over
from tpsl.handover.learning import learn
from tpsl.model.trained import TrainedModel
from tpsl.run.alone import parts_of_both
from tpsl.run.job import Job, JobError, make_job
from tpsl.run.local import Local
from tpsl.run.one_process import train
from tpsl.run.own_parts import OwnParts
from tpsl.run.result import TrainResult
from tpsl.run.run_folder import RunFolder
from tpsl.run.setup import RunSetup
from tpsl.split.label_party import LabelParty
from tpsl.vault import Vault
from tpsl.vault.cost import Planned

DATA = {"source": "synthetic", "rows": 900, "numeric_fields": 2, "categorical_fields": 2, "signal": 2.0}


def job(privacy: dict[str, Any] | None = None, **training: Any) -> Job:
    content = {
        "data": DATA,
        "privacy": privacy or {"epsilon": 1.0},
        "model": {"embedding_dim": 4, "bottom": [8], "top": [8], "wide": True, "members": 2},
        "training": {
            "batch_size": 128,
            "epochs": 3,
            "validation": 0.2,
            "patience": 2,
            "checkpoint_every": 2,
            **training,
        },
    }
    return make_job(content, {}, "test")


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of split training, its vault, and what the vault's owner has handed over."""
    folder = tmp_path_factory.mktemp("office")
    train(job(), folder / "split", vault=folder / "vault")
    with Vault.open(folder / "vault") as vault:
        hand_over(vault, Planned(job().mechanism), folder / "given")
    return folder


def learned(agreed: Job, run: Path, labels: Path, **more: Any) -> TrainResult:
    setup = RunSetup(agreed, RunFolder(run), parts_of_both("feature", OwnParts()), **more)
    return learn(setup, "feature", Local(), labels)


def kept(run: Path) -> dict[str, torch.Tensor]:
    files = [*run.glob("*/*.safetensors"), *run.glob("label/predictions/*")]
    return {f"{file.relative_to(run)} {name}": found for file in files for name, found in load_file(file).items()}


def test_a_party_alone_learns_what_both_would_have(office: Path, tmp_path: Path) -> None:
    result = learned(job(), tmp_path / "alone", office / "given")
    split, alone = kept(office / "split"), kept(tmp_path / "alone")
    assert split.keys() == alone.keys() and all(torch.equal(split[name], alone[name]) for name in split)
    before = RunFolder(office / "split").result()
    assert before is not None
    for name in ("steps", "kept_epoch", "validation_loss", "epsilon", "total_epsilon", "private", "mechanism"):
        assert getattr(result, name) == getattr(before, name)
    assert np.isfinite(result.validation_loss) and np.isnan([result.test_auc, result.test_log_loss]).all()
    assert learned(job(), tmp_path / "alone", office / "nowhere") == result  # finished: nothing is read any more
    assert RunFolder(tmp_path / "alone").job().hands_over  # its page says that no embedding has crossed


def test_method_auto_is_the_same_network_for_a_party_alone(tmp_path: Path) -> None:
    content = job().content() | {"method": "auto", "model": {"embedding_dim": 4, "bottom": [8], "top": [8]}}
    agreed = make_job(content, {"training": {"epochs": 1}}, "test")
    train(agreed, tmp_path / "split", vault=tmp_path / "vault")
    with Vault.open(tmp_path / "vault") as vault:
        hand_over(vault, Planned(agreed.mechanism), tmp_path / "given")
    learned(agreed, tmp_path / "alone", tmp_path / "given")
    split, alone = kept(tmp_path / "split"), kept(tmp_path / "alone")
    assert any("wide" in name for name in split), "auto has taken a wide part"
    assert split.keys() == alone.keys() and all(torch.equal(split[name], alone[name]) for name in split)


def test_an_interrupted_run_goes_on(office: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    update, updates = LabelParty.update, []

    def interrupted(self: LabelParty) -> None:
        updates.append(update(self))
        if len(updates) == 6:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LabelParty, "update", interrupted)
        with pytest.raises(KeyboardInterrupt):
            learned(job(), tmp_path / "alone", office / "given")
    learned(job(), tmp_path / "alone", office / "given")
    split, alone = kept(office / "split"), kept(tmp_path / "alone")
    assert all(torch.equal(split[name], alone[name]) for name in split)


def test_the_network_predicts_where_it_was_trained(office: Path, tmp_path: Path) -> None:
    """The run folder has both halves: whoever trained alone predicts alone, and exports both."""
    learned(job(), tmp_path / "alone", office / "given")
    side = load_feature_party(job().data)
    found = (
        TrainedModel.open(tmp_path / "alone")
        .halves({"feature": side.features})
        .probabilities({"feature": side.features}, side.test)
    )
    result = RunFolder(tmp_path / "alone").result()
    assert result is not None
    model = TrainedModel.open(tmp_path / "alone")
    for facts in (model.card(), model.card("feature")):
        assert (facts["privacy"]["epsilon"], facts["train_records"]) == (1.0, 720)
    kept_then = RunFolder(tmp_path / "alone").predictions(result.kept_epoch)["test"]
    np.testing.assert_allclose(found, kept_then, atol=1e-6)  # there beside held-out records, in one batch


Refusal = tuple[Callable[[], Job], type[Exception], str]
REFUSALS: dict[str, Refusal] = {
    "another ε": (
        lambda: job({"epsilon": 0.5}),
        CardError,
        r"was released with discrete \(ε = 1\), 1 draw\(s\), and privacy in the job says discrete \(ε = 0\.5\)",
    ),
    "other draws": (lambda: job({"epsilon": 1.0, "draws": 2}), CardError, r"in the job says .*, 2 draw\(s\)"),
    "a local head": (lambda: job(head="local"), JobError, "cannot train this job alone: the local head is trained"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_what_cannot_be_learned_is_refused(office: Path, tmp_path: Path, refusal: str) -> None:
    make, error, sentence = REFUSALS[refusal]
    with pytest.raises(error, match=sentence):
        learned(make(), tmp_path / "alone", office / "given")
    learned(job(), tmp_path / "alone", office / "given")  # the folder is free for another try


def test_records_without_a_label_are_counted(office: Path, tmp_path: Path) -> None:
    other = job().model_copy(update={"data": job().data.model_copy(update={"split_seed": 1})})
    with pytest.raises(CardError, match=r"has no label of [\d,]+ of the 720 training records \(the first is '0000"):
        learned(other, tmp_path / "alone", office / "given")
