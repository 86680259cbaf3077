"""Checkpoints and weights that several workers write together: those of one, whole or absent, resumed by any number."""

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

from tpsl.models.halves import Bottom, Top
from tpsl.models.members import Bottoms
from tpsl.models.model_config import ModelConfig, OptimizerConfig
from tpsl.models.optimizer import HalfOptimizer
from tpsl.models.sharded_table import shards_of
from tpsl.training.checkpoint import (
    CheckpointError,
    Halves,
    load_checkpoint,
    load_weights,
    save_checkpoint,
    saved_steps,
    write_weights,
)
from tpsl.workers import ALONE, WorkerLost, Workers

ROWS, RECORDS = 29, 6


def halves(workers: Workers = ALONE, table_workers: Workers = ALONE, optimizer: str = "adam", seed: int = 0) -> Halves:
    """Return a bottom of two members, whose tables are divided over `table_workers`, and a top half."""
    config = ModelConfig.model_validate({"embedding_dim": 3, "bottom": (4,), "top": (5,), "embedding_updates": "lazy"})
    generators = [torch.Generator().manual_seed(seed + number) for number in range(3)]
    bottoms = [Bottom(ROWS, 2, 1, config, generator, table_workers) for generator in generators[:2]]
    parts = {"bottom": Bottoms(bottoms, 4), "top": Top(8, 2, config, generators[2])}
    settings = OptimizerConfig(name=optimizer, learning_rate=0.05)
    return {name: (part, HalfOptimizer(part, settings, 0.9, workers)) for name, part in parts.items()}


def train(parts: Halves, workers: Workers, steps: range) -> None:
    """Train on batches of a part for each record; the parts go round the workers."""
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        categorical = torch.randint(0, ROWS, (RECORDS, 2), generator=generator, dtype=torch.int32)
        numeric = torch.randn(RECORDS, 1, generator=generator)
        for part in range(workers.number, RECORDS, workers.count):
            cut = parts["bottom"][0](categorical[part : part + 1], numeric[part : part + 1])
            parts["top"][0](cut).square().sum().backward()
        for _, optimizer in parts.values():
            optimizer.step(RECORDS)


def state(parts: Halves, table_workers: Workers = ALONE) -> dict[str, Tensor]:
    """Return all that the halves hold, shards gathered."""
    found = {}
    for name, (half, optimizer) in parts.items():
        shards = shards_of(half)
        for key, value in half.state_dict().items():
            found[f"{name}/{key}"] = table_workers.gathered(value) if key in shards else value.clone()
        tensors, settings = optimizer.state()
        for key, value in tensors.items():
            found[f"{name}-optimizer/{key}"] = table_workers.gathered(value) if optimizer.shard_of(key) else value
        found[f"{name}/settings"] = torch.tensor(list(settings.encode()))
    return found


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def _begin(workers: Workers, folder: Path) -> dict[str, Any]:
    """Two workers save after 3 steps: with sharded tables, and with replicated ones."""
    found: dict[str, Any] = {}
    for kind, table_workers in (("sharded", workers), ("replicated", ALONE)):
        parts = halves(workers, table_workers)
        train(parts, workers, range(3))
        save_checkpoint(folder / kind, 3, "job", parts, workers)
        found[kind] = state(parts, table_workers)
        half, optimizer = parts["bottom"]
        with optimizer.averaged():
            write_weights(folder / kind / "bottom.safetensors", half, workers)
    return found


def _go_on(workers: Workers, folder: Path) -> dict[str, Any]:
    """Three workers with sharded tables go on from what two have saved, with sharded tables or replicated ones."""
    found: dict[str, Any] = {}
    for kind in ("sharded", "replicated"):
        parts = halves(workers, workers, seed=9)
        load_checkpoint(folder / kind, 3, "job", parts, workers)
        found[kind] = state(parts, workers)
        train(parts, workers, range(3, 6))
        save_checkpoint(folder / kind, 6, "job", parts, workers)
    warm = halves(workers, workers, seed=9)["bottom"][0]
    load_weights(warm, folder / "sharded" / "bottom.safetensors", ValueError)
    name, shard = next(iter(shards_of(warm).items()))
    found["rows"] = len(warm.state_dict()[name]) == shard.stop - shard.start
    found["warm"] = {key: workers.gathered(v) if key in shards_of(warm) else v for key, v in warm.state_dict().items()}
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


def test_what_workers_write_together_is_what_one_writes(two: list[Any], folder: Path) -> None:
    assert all(same(seen["sharded"], two[0]["replicated"]) for seen in two)
    for file in ("bottom.safetensors", "bottom-optimizer.safetensors", "top.safetensors", "top-optimizer.safetensors"):
        sharded, replicated = (folder / kind / "step-000000003" / file for kind in ("sharded", "replicated"))
        assert sharded.read_bytes() == replicated.read_bytes()
    weights = [folder / kind / "bottom.safetensors" for kind in ("sharded", "replicated")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert not list(folder.rglob(".*"))


def test_one_worker_goes_on_from_what_several_have_saved(two: list[Any], folder: Path) -> None:
    parts = halves(seed=9)
    load_checkpoint(folder / "sharded", 3, "job", parts)
    assert same(state(parts), two[0]["sharded"])


def test_more_workers_go_on_and_one_after_them(two: list[Any], three: list[Any], folder: Path) -> None:
    for seen in three:
        assert same(seen["sharded"], two[0]["sharded"]) and same(seen["replicated"], two[0]["replicated"])
    resumed, unbroken = halves(seed=9), halves()
    load_checkpoint(folder / "sharded", 6, "job", resumed)
    train(resumed, ALONE, range(6, 9))
    train(unbroken, ALONE, range(9))
    ours, theirs = state(resumed), state(unbroken)
    assert ours.keys() == theirs.keys()
    assert all(torch.allclose(ours[name].double(), theirs[name].double(), rtol=0, atol=1e-6) for name in ours)


def test_each_worker_starts_warm_with_its_rows(three: list[Any], folder: Path) -> None:
    for seen in three:
        assert seen["rows"] and same(seen["warm"], load_file(folder / "sharded" / "bottom.safetensors"))


@pytest.mark.parametrize("name", ["bottom.safetensors", "bottom-optimizer.safetensors"])
def test_a_changed_byte_of_any_worker_is_found(two: list[Any], folder: Path, name: str) -> None:
    file = folder / "sharded" / "step-000000003" / name
    written = file.read_bytes()
    fresh = halves(seed=9)
    before = state(fresh)
    try:
        for at in range(0, len(written), len(written) // 12):
            file.write_bytes(written[:at] + bytes([written[at] ^ 4]) + written[at + 1 :])
            with pytest.raises(CheckpointError, match=f"{name}: is damaged"):
                load_checkpoint(folder / "sharded", 3, "job", fresh)
        file.write_bytes(written + b"\0")
        with pytest.raises(CheckpointError, match=f"{name}: is damaged"):
            load_checkpoint(folder / "sharded", 3, "job", fresh)
    finally:
        file.write_bytes(written)
    assert same(state(fresh), before)


def _save_and_die(workers: Workers, folder: Path, victim: int, deadly: tuple[str, str]) -> None:
    """Save after 3 steps, and again after 6; a worker is killed before a file operation of the second time."""
    parts = halves(workers, workers, "adagrad")
    train(parts, workers, range(3))
    save_checkpoint(folder, 3, "job", parts, workers)
    train(parts, workers, range(3, 6))

    def kill(event: str, arguments: tuple[Any, ...]) -> None:
        if event == deadly[0] and str(arguments[0]).endswith(deadly[1]):
            os.kill(os.getpid(), signal.SIGKILL)

    if workers.number == victim:
        sys.addaudithook(kill)
    save_checkpoint(folder, 6, "job", parts, workers)
    workers.wait_for_all()


@pytest.mark.parametrize(
    ("victim", "deadly"),
    [
        (1, ("open", "/bottom.safetensors")),
        (1, ("open", "/bottom-optimizer.safetensors")),
        (0, ("open", "/checkpoint.json")),
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
    load_checkpoint(tmp_path, 3, "job", resumed)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000003"]
    train(unbroken, ALONE, range(3))
    ours, theirs = state(resumed), state(unbroken)
    assert all(torch.allclose(ours[name].double(), theirs[name].double(), rtol=0, atol=1e-6) for name in ours)
