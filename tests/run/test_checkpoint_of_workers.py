"""Checkpoints of a party of several workers: the first writes, all read, and any number of workers resumes them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tpsl.files import remove_drafts
from tpsl.models.halves import Bottom, Bottoms, Top
from tpsl.models.model_config import ModelConfig, OptimizerConfig
from tpsl.models.optimizer import HalfOptimizer
from tpsl.run.checkpoint import (
    Halves,
    load_checkpoint,
    save_checkpoint,
    saved_steps,
    write_weights,
)
from tpsl.workers import ALONE, WorkerLost, Workers

ROWS, RECORDS = 29, 6


def halves(workers: Workers = ALONE, optimizer: str = "adam", seed: int = 0) -> Halves:
    """Return a bottom of two members and a top half."""
    config = ModelConfig.model_validate({"embedding_dim": 3, "bottom": (4,), "top": (5,), "embedding_updates": "lazy"})
    generators = [torch.Generator().manual_seed(seed + number) for number in range(3)]
    bottoms = [Bottom(ROWS, 2, 1, config, generator) for generator in generators[:2]]
    parts = {"bottom": Bottoms(bottoms, 4), "top": Top(8, 2, config, generators[2])}
    settings = OptimizerConfig(name=optimizer, learning_rate=0.05)
    return {name: (part, HalfOptimizer(part, settings, 0.9, workers)) for name, part in parts.items()}


def train(parts: Halves, workers: Workers, steps: range) -> None:
    """Train on batches of a part for each record; the parts go round the workers."""
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        categorical = torch.randint(0, ROWS, (RECORDS, 2), generator=generator, dtype=torch.int32)
        numeric = torch.randn(RECORDS, 1, generator=generator)
        for part in range(workers.rank, RECORDS, workers.count):
            cut = parts["bottom"][0](categorical[part : part + 1], numeric[part : part + 1])
            parts["top"][0](cut).square().sum().backward()
        for _, optimizer in parts.values():
            optimizer.step(RECORDS)


def state(parts: Halves) -> dict[str, Tensor]:
    """Return all that the halves hold."""
    found = {}
    for name, (half, optimizer) in parts.items():
        tensors, settings = optimizer.state()
        found |= {f"{name}/{key}": value.clone() for key, value in half.state_dict().items()}
        found |= {f"{name}-optimizer/{key}": value for key, value in tensors.items()}
        found[f"{name}/settings"] = torch.tensor(list(settings.encode()))
    return found


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def _begin(workers: Workers, folder: Path) -> dict[str, Tensor]:
    """Two workers save after 3 steps."""
    parts = halves(workers)
    train(parts, workers, range(3))
    save_checkpoint(folder, 3, "job", parts, workers)
    half, optimizer = parts["bottom"]
    with optimizer.averaged():
        write_weights(folder / "bottom.safetensors", half, workers)
    return state(parts)


def _go_on(workers: Workers, folder: Path) -> dict[str, Tensor]:
    """Three workers go on from what two have saved."""
    parts = halves(workers, seed=9)
    load_checkpoint(folder, 3, "job", parts)
    found = state(parts)
    train(parts, workers, range(3, 6))
    save_checkpoint(folder, 6, "job", parts, workers)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("party")


@pytest.fixture(scope="module")
def two(in_workers: Callable[..., Any], folder: Path) -> Any:
    return in_workers(2, _begin, folder)


@pytest.fixture(scope="module")
def three(in_workers: Callable[..., Any], folder: Path, two: Any) -> Any:
    return in_workers(3, _go_on, folder)


def test_all_workers_have_the_state_that_the_first_has_written(two: list[dict[str, Tensor]], folder: Path) -> None:
    assert same(*two)
    parts = halves(seed=9)
    load_checkpoint(folder, 3, "job", parts)
    assert same(state(parts), two[0])
    with parts["bottom"][1].averaged():
        averaged = state({"bottom": parts["bottom"]})
    written = load_file(folder / "bottom.safetensors")
    assert all(torch.equal(tensor, averaged[f"bottom/{name}"]) for name, tensor in written.items())
    assert not list(folder.rglob(".*"))


def test_more_workers_go_on_and_one_after_them(
    two: list[dict[str, Tensor]], three: list[dict[str, Tensor]], folder: Path
) -> None:
    assert all(same(seen, two[0]) for seen in three)
    resumed, unbroken = halves(seed=9), halves()
    load_checkpoint(folder, 6, "job", resumed)
    train(resumed, ALONE, range(6, 9))
    train(unbroken, ALONE, range(9))
    ours, theirs = state(resumed), state(unbroken)
    assert ours.keys() == theirs.keys()
    assert all(torch.allclose(ours[name].double(), theirs[name].double(), rtol=0, atol=1e-6) for name in ours)


def _save_and_die(workers: Workers, folder: Path, victim: int, deadly: tuple[str, str]) -> None:
    """Save after 3 steps, and again after 6; a worker is killed before a file operation of the second time."""
    parts = halves(workers, "adagrad")
    train(parts, workers, range(3))
    save_checkpoint(folder, 3, "job", parts, workers)
    train(parts, workers, range(3, 6))

    def kill(event: str, arguments: tuple[Any, ...]) -> None:
        if event == deadly[0] and str(arguments[0]).endswith(deadly[1]):
            os.kill(os.getpid(), signal.SIGKILL)

    if workers.rank == victim:
        sys.addaudithook(kill)
    save_checkpoint(folder, 6, "job", parts, workers)
    workers.barrier()


@pytest.mark.parametrize(
    ("victim", "deadly"),
    [
        (0, ("open", "/.step-000000006.new")),
        (0, ("os.rename", "/.step-000000006.new")),
    ],
)
def test_a_worker_that_is_killed_leaves_the_last_checkpoint(
    in_workers: Callable[..., Any], tmp_path: Path, victim: int, deadly: tuple[str, str]
) -> None:
    answers = in_workers(2, _save_and_die, tmp_path, victim, deadly)
    assert answers[victim] is None and isinstance(answers[1 - victim], WorkerLost)
    assert saved_steps(tmp_path) == {3}
    resumed, unbroken = halves(optimizer="adagrad", seed=9), halves(optimizer="adagrad")
    remove_drafts(tmp_path)  # as a run does when it is started
    load_checkpoint(tmp_path, 3, "job", resumed)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000003"]
    train(unbroken, ALONE, range(3))
    ours, theirs = state(resumed), state(unbroken)
    assert all(torch.allclose(ours[name].double(), theirs[name].double(), rtol=0, atol=1e-6) for name in ours)
