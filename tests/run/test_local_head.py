"""`head: local` and `pretrain`: worth their while, resumed to the bit, and nothing of them crosses back."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tpsl.audit import replay
from tpsl.data.dataset import load
from tpsl.data.true_labels import reveal
from tpsl.run.build import build_label_party
from tpsl.run.job import Job, make_job
from tpsl.run.observer import Watching
from tpsl.run.one_process import train
from tpsl.run.run_folder import NOT_PRIVATE, RunFolder
from tpsl.run.vaults import VaultChoice
from tpsl.split.label_party import LabelParty
from tpsl.vault import NO_LIMITS

SMALL = {"embedding_dim": 4, "bottom": [16, 8], "top": [8]}
PRETRAIN = {"method": "masked", "epochs": 2}


def job(epsilon: float = 0.1, **training: Any) -> Job:
    content = {
        "data": {"source": "synthetic", "rows": 1500, "numeric_fields": 3, "categorical_fields": 3, "signal": 3.0},
        "privacy": {"epsilon": epsilon, "noise_seed": 1},
        "model": SMALL,
        "training": {"batch_size": 128, "epochs": 1, "checkpoint_every": 4, "head": "local", **training},
    }
    return make_job(content, {}, "test")


def vault_in(folder: Path) -> VaultChoice:
    """A vault that several runs share, in spite of their seeded noise."""
    return VaultChoice(folder / "vault", policy=NO_LIMITS)


def files(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in sorted(run.glob("**/*.safetensors"))}


def test_the_local_head_beats_the_private_one_at_a_small_epsilon(tmp_path: Path) -> None:
    result = train(job(), tmp_path / "run")
    found = RunFolder(tmp_path / "run").local_head()
    assert found is not None
    assert found["test_auc"] > max(0.68, result.test_auc + 0.02)
    folder = tmp_path / "run" / "label" / NOT_PRIVATE
    assert {path.name for path in folder.iterdir()} == {"README.txt", "local_head.safetensors", "result.json"}
    assert "not differentially private" in (folder / "README.txt").read_text()
    assert folder.stat().st_mode & 0o077 == 0


def test_without_it_there_is_no_such_folder(tmp_path: Path) -> None:
    train(job(head="private"), tmp_path / "run")
    assert RunFolder(tmp_path / "run").local_head() is None
    assert not (tmp_path / "run" / "label" / NOT_PRIVATE).exists()


@pytest.mark.parametrize("extra", [{}, {"pretrain": PRETRAIN, "averaging": 0.5}], ids=["plain", "pretrained"])
def test_neither_the_transcript_nor_the_private_weights_know_of_it(tmp_path: Path, extra: dict[str, Any]) -> None:
    for head in ("private", "local"):
        train(job(head=head, **extra), tmp_path / head, vault=vault_in(tmp_path), record_steps=100)
    private, local = files(tmp_path / "private"), files(tmp_path / "local")
    # Checkpoints carry the digest of their job in a file of its own; weights are compared.
    assert private == {name: content for name, content in local.items() if NOT_PRIVATE not in name}
    for name in ("embeddings.f32", "gradients.f32"):
        crossed = [tmp_path / head / "feature" / "transcript" / name for head in ("private", "local")]
        assert crossed[0].read_bytes() == crossed[1].read_bytes()


def test_the_replay_audit_passes_with_local_head_and_pre_training(tmp_path: Path) -> None:
    result = replay(job(pretrain=PRETRAIN, averaging=0.5), tmp_path / "replay", seed=1)
    assert result.passed
    assert result.flipped > 300


def test_a_local_head_whose_gradient_leaks_into_the_cut_is_caught(tmp_path: Path) -> None:
    """The broken variant: the label party adds to what it sends a little of the gradient at the true labels."""
    agreed = job()
    data = load(agreed.data)

    class Leaking(LabelParty):
        labels: torch.Tensor

        def backward(self, batch: Any, rows: Any, received: Any, records: int) -> Any:
            (gradients,) = super().backward(batch, rows, received, records)
            return [gradients + 0.01 * self.labels[torch.from_numpy(np.array(batch))][:, None]]

    held = iter([data, None])

    def build(*arguments: Any) -> LabelParty:
        from tpsl.audit.replay import flip_half
        from tpsl.mechanisms import seeded_words

        party = build_label_party(*arguments)
        party.__class__ = Leaking
        now = next(held) or flip_half(data, seeded_words(2, "replay"))
        party.labels = torch.from_numpy(reveal(now.labels)[now.train]).float()  # type: ignore[attr-defined]
        return party

    result = replay(agreed, tmp_path / "replay", seed=2, data=data, make_label_party=build)
    assert not result.passed
    assert "feature/transcript/gradients.f32" in {difference.file for difference in result.differences}


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("at", [2, 6, 10])
def test_an_interrupted_run_ends_with_the_same_heads(tmp_path: Path, at: int) -> None:
    agreed = job(pretrain=PRETRAIN)
    train(agreed, tmp_path / "whole", vault=vault_in(tmp_path))

    def interrupt(done: int, total: int, note: str) -> None:
        if done == at:
            raise Interrupted

    with pytest.raises(Interrupted):
        train(agreed, tmp_path / "broken", vault=vault_in(tmp_path), watching=Watching(progress=interrupt))
    train(agreed, tmp_path / "broken", vault=vault_in(tmp_path))
    assert files(tmp_path / "whole") == files(tmp_path / "broken")


def test_a_crash_after_the_job_and_before_the_head_is_made_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreed = job()
    train(agreed, tmp_path / "whole", vault=vault_in(tmp_path))

    def crash(*arguments: Any, **named: Any) -> Any:
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr("tpsl.run.after_training.train_local_head", crash)
        with pytest.raises(Interrupted):
            train(agreed, tmp_path / "broken", vault=vault_in(tmp_path))
    assert RunFolder(tmp_path / "broken").local_head() is None
    train(agreed, tmp_path / "broken", vault=vault_in(tmp_path))
    assert RunFolder(tmp_path / "broken").local_head() == RunFolder(tmp_path / "whole").local_head()


def test_pre_training_is_made_once_and_starts_the_run(tmp_path: Path) -> None:
    agreed = job(head="private", pretrain=PRETRAIN)
    train(agreed, tmp_path / "run", record_steps=1)
    pretrained = load_file(tmp_path / "run" / "feature" / "pretrained.safetensors")
    fresh = load_file(tmp_path / "run" / "feature" / "bottom.safetensors")
    assert pretrained.keys() == fresh.keys()
    train(job(head="private"), tmp_path / "plain", record_steps=1)
    first = [tmp_path / run / "feature" / "transcript" / "embeddings.f32" for run in ("run", "plain")]
    assert first[0].read_bytes() != first[1].read_bytes()


def test_several_members_and_parties_work_together(tmp_path: Path) -> None:
    content = {
        "data": {"source": "flights", "layout": "natural", "rows": 600},
        "privacy": {"epsilon": 1.0},
        "model": {**SMALL, "members": 2},
        "training": {"epochs": 1, "batch_size": 100, "head": "local", "pretrain": PRETRAIN, "averaging": 0.9},
    }
    train(make_job(content, {}, "test"), tmp_path / "run")
    assert RunFolder(tmp_path / "run").local_head() is not None
