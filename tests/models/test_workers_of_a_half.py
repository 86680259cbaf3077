"""Gradients of several workers: processes that talk through gloo, each with its share of every batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tpsl.models.halves import Bottom, Bottoms
from tpsl.models.model_config import ModelConfig, OptimizerConfig
from tpsl.models.optimizer import HalfOptimizer
from tpsl.workers import ALONE, Workers

ROWS, FIELDS, NUMBERS, RECORDS = 47, 3, 2, 12
KINDS = ("sgd", "adagrad", "adam")


def half(updates: str = "lazy", members: int = 2) -> Bottoms:
    config = ModelConfig.model_validate({"embedding_dim": 5, "bottom": (4,), "embedding_updates": updates})
    generators = [torch.Generator().manual_seed(number) for number in range(members)]
    return Bottoms([Bottom(ROWS, FIELDS, NUMBERS, config, each) for each in generators], 4)


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Return a step's records; some rows come many times, and the last ones never."""
    generator = torch.Generator().manual_seed(step)
    categorical = torch.randint(0, ROWS - 20, (RECORDS, FIELDS), generator=generator, dtype=torch.int32)
    return categorical // torch.tensor([1, 2, 9], dtype=torch.int32), torch.randn(RECORDS, NUMBERS, generator=generator)


def train(bottom: nn.Module, optimizer: HalfOptimizer, workers: Workers, steps: range) -> None:
    """Train as a party does: a batch has 4 parts for each of 3 or 2 workers, or for one."""
    for step in steps:
        categorical, numeric = batch(step)
        for part in range(workers.rank, 12, workers.count):
            rows = slice(part, part + 1)
            bottom(categorical[rows], numeric[rows]).square().sum().backward()
        optimizer.step(RECORDS)


def _trained(workers: Workers, name: str, updates: str = "lazy", **more: Any) -> Any:
    bottom = half(updates)
    optimizer = HalfOptimizer(bottom, OptimizerConfig(name=name, learning_rate=0.05, **more), 0.9, workers)
    train(bottom, optimizer, workers, range(3))
    # A batch of one record: the others have nothing to learn from, and no gradient.
    output = bottom(*(tensor[: workers.is_first] for tensor in batch(3)))
    if workers.is_first:
        output.sum().backward()
    optimizer.step()
    with optimizer.averaged():
        return {name: value.clone() for name, value in bottom.state_dict().items()}


class Normed(nn.Module):
    """A user's half: a sum of embeddings with sparse gradients, batch normalisation, and a layer that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.norm = nn.EmbeddingBag(ROWS, 4, sparse=True), nn.BatchNorm1d(4)
        self.unused = nn.Linear(4, 4)

    def forward(self, categorical: Tensor, numeric: Tensor) -> Tensor:
        result: Tensor = self.norm(self.bag(categorical) + numeric[:, :1])
        return result


def _everything(workers: Workers) -> dict[str, Any]:
    torch.manual_seed(3)
    normed = Normed()
    optimizer = HalfOptimizer(normed, OptimizerConfig(name="sgd", arguments={"momentum": 0.5}), workers=workers)
    for step in range(3):
        categorical, numeric = batch(step)
        rows = slice(workers.rank * 4, workers.rank * 4 + 4)
        normed(categorical[rows], numeric[rows]).square().sum().backward()
        optimizer.step()
    return {
        "lazy": {name: _trained(workers, name) for name in KINDS},
        "dense": _trained(workers, "adam", "dense"),
        "scheduled": _trained(workers, "adam", schedule={"name": "StepLR", "arguments": {"step_size": 1}}),
        "normed": normed.state_dict(),
        "unused": list(optimizer.state()[0]),
    }


@pytest.fixture(scope="module")
def three(in_workers: Callable[..., Any]) -> Any:
    return in_workers(3, _everything)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def close(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.allclose(one[n], other[n], rtol=0, atol=1e-6) for n in one)


@pytest.mark.parametrize("name", KINDS)
def test_workers_train_what_one_trains(three: list[dict[str, Any]], name: str) -> None:
    alone = _trained(ALONE, name)
    assert not close(alone, half().state_dict())
    for seen in three:
        assert close(seen["lazy"][name], alone)
        # All add up in the same order, so they agree to the last bit.
        assert same(seen["lazy"][name], three[0]["lazy"][name])


def test_dense_updates_and_schedules_are_those_of_one(three: list[dict[str, Any]]) -> None:
    dense = _trained(ALONE, "adam", "dense")
    scheduled = _trained(ALONE, "adam", schedule={"name": "StepLR", "arguments": {"step_size": 1}})
    for seen in three:
        assert close(seen["dense"], dense) and same(seen["dense"], three[0]["dense"])
        assert close(seen["scheduled"], scheduled)


def test_a_half_of_a_user_is_the_same_at_all_workers(three: list[dict[str, Any]]) -> None:
    torch.manual_seed(3)
    begun = Normed().state_dict()
    for seen in three:
        assert same(seen["normed"], three[0]["normed"])
        # What nobody uses has no gradient: momentum would begin with zeros.
        assert torch.equal(seen["normed"]["unused.weight"], begun["unused.weight"])
        assert len([name for name in seen["unused"] if "momentum" in name]) == 3
    assert not torch.equal(three[0]["normed"]["bag.weight"], begun["bag.weight"])
    assert int(three[0]["normed"]["norm.num_batches_tracked"]) == 3
