"""Checkpoints: exact, whole or absent, of one job, and never resumed from a byte that was not written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tpsl.files import remove_drafts
from tpsl.models.halves import Bottom, Bottoms, Top
from tpsl.models.model_config import ModelConfig, OptimizerConfig
from tpsl.models.optimizer import HalfOptimizer
from tpsl.run.checkpoint import (
    CheckpointError,
    Halves,
    forget_after,
    load_checkpoint,
    load_weights,
    save_checkpoint,
    saved_steps,
    write_weights,
)

CONFIG = {
    "sgd": OptimizerConfig(name="sgd", weight_decay=0.01),
    "adam": OptimizerConfig(name="adam", learning_rate=0.01),
    "adagrad": OptimizerConfig(name="adagrad"),
}


def halves(optimizer: str = "adam", updates: str = "dense", seed: int = 0) -> Halves:
    """A bottom and a top half with their optimisers."""
    generator = torch.Generator().manual_seed(seed)
    config = ModelConfig.model_validate({"embedding_dim": 3, "bottom": (4,), "top": (5,), "embedding_updates": updates})
    parts = {"bottom": Bottom(11, 2, 1, config, generator), "top": Top(4, 2, config, generator)}
    return {name: (part, HalfOptimizer(part, CONFIG[optimizer])) for name, part in parts.items()}


def steps(parts: Halves, count: int, seed: int) -> None:
    """Train on random batches, which the seed fixes."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        categorical = torch.randint(0, 11, (6, 2), generator=generator)
        cut = parts["bottom"][0](categorical, torch.randn(6, 1, generator=generator))
        parts["top"][0](cut).square().mean().backward()
        for _, optimizer in parts.values():
            optimizer.step()


def state(parts: Halves) -> dict[str, torch.Tensor]:
    found = {}
    for name, (half, optimizer) in parts.items():
        tensors, settings = optimizer.state()
        found |= {f"{name}/{key}": value for key, value in half.state_dict().items()}
        found |= {f"{name}/optimizer/{key}": value for key, value in tensors.items()}
        found[f"{name}/settings"] = torch.tensor(list(settings.encode()))
    return found


def same(a: Halves, b: Halves) -> bool:
    ours, theirs = state(a), state(b)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)


@pytest.mark.parametrize("optimizer", CONFIG)
@pytest.mark.parametrize("updates", ["dense", "lazy"])
def test_a_resumed_half_goes_on_bit_for_bit(tmp_path: Path, optimizer: str, updates: str) -> None:
    original = halves(optimizer, updates)
    steps(original, 3, seed=1)
    save_checkpoint(tmp_path, 3, "job", original)
    resumed = halves(optimizer, updates, seed=9)
    assert not same(resumed, original)
    load_checkpoint(tmp_path, 3, "job", resumed)
    assert same(resumed, original)
    for parts in (original, resumed):
        steps(parts, 3, seed=2)
    assert same(resumed, original)


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    for step in (5, 10, 15, 20):
        save_checkpoint(tmp_path, step, "job", halves())
    assert saved_steps(tmp_path) == {15, 20}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000015", "step-000000020"]


def test_a_step_that_is_saved_again_replaces_the_old_one(tmp_path: Path) -> None:
    old, new = halves(seed=1), halves(seed=2)
    save_checkpoint(tmp_path, 5, "job", old)
    save_checkpoint(tmp_path, 5, "job", new)
    load_checkpoint(tmp_path, 5, "job", old)
    assert same(old, new)


def test_what_a_killed_process_left_is_no_checkpoint_and_goes_away_when_a_run_is_started(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 5, "job", halves())
    (tmp_path / ".step-000000010.new").write_bytes(b"half of it")
    assert saved_steps(tmp_path) == {5}
    load_checkpoint(tmp_path, 5, "job", halves())
    remove_drafts(tmp_path)  # `RunFolder.started` does
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000005"]
    save_checkpoint(tmp_path, 10, "job", halves())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000005", "step-000000010"]


def test_later_checkpoints_are_forgotten_and_earlier_ones_kept(tmp_path: Path) -> None:
    forget_after(tmp_path / "none", 10)
    for step in (5, 10):
        save_checkpoint(tmp_path, step, "job", halves())
    forget_after(tmp_path, 10)
    assert saved_steps(tmp_path) == {5, 10}
    forget_after(tmp_path, 7)
    assert saved_steps(tmp_path) == {5}
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000005"]


def test_another_job_is_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 5, "job", halves())
    with pytest.raises(CheckpointError, match="step-000000005: belongs to another job"):
        load_checkpoint(tmp_path, 5, "another job", halves())


def test_a_checkpoint_under_another_steps_name_is_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 5, "job", halves())
    (tmp_path / "step-000000005").rename(tmp_path / "step-000000006")
    with pytest.raises(CheckpointError, match="holds step 5, its name says 6"):
        load_checkpoint(tmp_path, 6, "job", halves())


def test_any_changed_byte_and_a_missing_file_are_found_before_anything_is_loaded(tmp_path: Path) -> None:
    parts = halves()
    steps(parts, 1, seed=1)
    save_checkpoint(tmp_path, 5, "job", parts)
    file, fresh, untouched = tmp_path / "step-000000005", halves(seed=3), halves(seed=3)
    written = file.read_bytes()
    for at in [*range(300), *range(300, len(written), 1 + len(written) // 64)]:
        file.write_bytes(written[:at] + bytes([written[at] ^ 4]) + written[at + 1 :])
        with pytest.raises(CheckpointError, match="is damaged") as error:
            load_checkpoint(tmp_path, 5, "job", fresh)
        assert str(file) in str(error.value)
    file.write_bytes(written[: len(written) // 2])
    with pytest.raises(CheckpointError, match="is damaged"):
        load_checkpoint(tmp_path, 5, "job", fresh)
    file.unlink()
    with pytest.raises(CheckpointError, match="cannot be read") as error:
        load_checkpoint(tmp_path, 5, "job", fresh)
    assert str(file) in str(error.value)
    assert same(fresh, untouched)


def test_a_half_whose_layers_share_or_transpose_weights_is_kept(tmp_path: Path) -> None:
    def tied() -> Bottoms:
        half = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
        half[1].weight = half[0].weight
        half[1].bias = torch.nn.Parameter(torch.randn(3, 2).t()[0])
        return Bottoms([half], 3)

    written, read = tied(), tied()
    write_weights(tmp_path / "file", written)
    load_weights(read, tmp_path / "file", ValueError)
    ours, theirs = written.state_dict(), read.state_dict()
    assert len(ours) == 4 and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_checkpoint_that_a_kill_has_left_beside_the_last_two_goes_at_the_next_start(tmp_path: Path) -> None:
    for step in (6, 12, 18):
        (tmp_path / f"step-{step:09d}").write_bytes(b"")
    forget_after(tmp_path, 18)
    assert saved_steps(tmp_path) == {12, 18}
