"""A run that may be lost: no checkpoint and nothing durable before its time, and then as any other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpsl.training.durability import Durability
from tpsl.training.job import Job, make_job
from tpsl.training.observer import Watching
from tpsl.training.one_process import train_together
from tpsl.training.run_folder import MAY_BE_LOST, PROVISIONAL, RunFolder
from tpsl.training.setup import RunSetup
from tpsl.training.vaults import VaultChoice
from tpsl.vault import NO_LIMITS


def job() -> Job:
    content = {
        "data": {"source": "synthetic", "rows": 300, "numeric_fields": 2, "categorical_fields": 2},
        "privacy": {"epsilon": 1.0, "noise_seed": 1},
        "model": {"embedding_dim": 2, "bottom": [4], "top": [4]},
        "training": {"batch_size": 60, "epochs": 3, "checkpoint_every": 2, "patience": 0},
    }
    return make_job(content, {}, "test")


def train(path: Path, durability: Durability) -> RunFolder:
    setup = RunSetup(job(), RunFolder(path), durability=durability)
    train_together(setup, VaultChoice(path.parent / "vault", policy=NO_LIMITS))
    return setup.run


def files(run: RunFolder) -> set[str]:
    return {str(path.relative_to(run.path)) for path in run.path.rglob("*") if path.is_file()}


def test_a_run_that_may_be_lost_has_no_checkpoint_and_the_same_weights(tmp_path: Path) -> None:
    usual, short = train(tmp_path / "usual", Durability()), train(tmp_path / "short", Durability(60))
    kept = {name for name in files(usual) if "/checkpoints/" not in name}
    assert files(usual) > kept == files(short)
    for name in ("feature/bottom.safetensors", "label/top.safetensors", "label/predictions/epoch-0003.safetensors"):
        assert (usual.path / name).read_bytes() == (short.path / name).read_bytes()


def test_after_its_time_a_run_is_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = train(tmp_path / "usual", Durability())
    clock = iter(range(1000))
    monkeypatch.setattr("tpsl.training.durability.time.monotonic", lambda: next(clock))
    assert files(train(tmp_path / "long", Durability(4))) == files(usual)


def test_all_roles_are_told_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0, 1, 9, 11, 12])
    monkeypatch.setattr("tpsl.training.durability.time.monotonic", lambda: next(clock))
    durability = Durability(10)
    assert [durability.is_due(step) for step in (2, 2, 4, 4, 6, 6, 8, 8)] == [False] * 4 + [True] * 4


def test_a_folder_that_was_left_while_it_was_provisional_is_begun_anew(tmp_path: Path) -> None:
    run = train(tmp_path / "run", Durability(60))
    weights = (run.label / "top.safetensors").read_bytes()
    (run.path / PROVISIONAL).write_bytes(MAY_BE_LOST)
    (run.label / "metrics.jsonl").write_bytes(b"\0" * 10)
    (run.path / "result.json").write_bytes(b"")
    assert train(run.path, Durability(60)).metrics()[-1]["epoch"] == 3
    assert (run.label / "top.safetensors").read_bytes() == weights
    assert not (run.path / "provisional").exists()


def test_a_run_that_goes_on_from_a_checkpoint_does_not_become_provisional(tmp_path: Path) -> None:
    usual = train(tmp_path / "usual", Durability())

    def interrupt(done: int, total: int, note: str) -> None:
        if done == 5:
            raise KeyboardInterrupt

    run = RunFolder(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        interrupted = RunSetup(job(), run, watching=Watching(progress=interrupt))
        train_together(interrupted, VaultChoice(tmp_path / "vault", policy=NO_LIMITS))
    seen = []

    class Watched(Durability):
        def is_due(self, step: int) -> bool:
            seen.append((run.path / "provisional").exists())
            return super().is_due(step)

    assert any("/checkpoints/" in name for name in files(run))
    assert files(train(run.path, Watched(60))) == files(usual)
    assert seen and not any(seen)
