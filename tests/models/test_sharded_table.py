"""Tables and gradients of several workers: processes that talk through gloo, each with its share of every batch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tpsl.models.halves import Bottom
from tpsl.models.members import Bottoms
from tpsl.models.model_config import ModelConfig, OptimizerConfig
from tpsl.models.optimizer import HalfOptimizer
from tpsl.models.shard import Shard
from tpsl.models.sharded_table import ShardedTable, shards_of
from tpsl.workers import ALONE, Workers

ROWS, FIELDS, NUMBERS, RECORDS = 47, 3, 2, 12
KINDS = ("sgd", "adagrad", "adam")


def half(table_workers: Workers = ALONE, updates: str = "lazy", members: int = 2) -> Bottoms:
    config = ModelConfig.model_validate({"embedding_dim": 5, "bottom": (4,), "embedding_updates": updates})
    generators = [torch.Generator().manual_seed(number) for number in range(members)]
    return Bottoms([Bottom(ROWS, FIELDS, NUMBERS, config, each, table_workers) for each in generators], 4)


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Return a step's records; some rows come many times, and the last ones never."""
    generator = torch.Generator().manual_seed(step)
    categorical = torch.randint(0, ROWS - 20, (RECORDS, FIELDS), generator=generator, dtype=torch.int32)
    return categorical // torch.tensor([1, 2, 9], dtype=torch.int32), torch.randn(RECORDS, NUMBERS, generator=generator)


def train(bottom: nn.Module, optimizer: HalfOptimizer, workers: Workers, steps: range) -> None:
    """Train as a party does: a batch has 4 parts for each of 3 or 2 workers, or for one."""
    for step in steps:
        categorical, numeric = batch(step)
        for part in range(workers.number, 12, workers.count):
            rows = slice(part, part + 1)
            bottom(categorical[rows], numeric[rows]).square().sum().backward()
        optimizer.step(RECORDS)


def whole(bottom: nn.Module, workers: Workers) -> dict[str, Tensor]:
    """Return all weights, those of shards gathered."""
    shards = shards_of(bottom)
    return {name: workers.gathered(value) if name in shards else value for name, value in bottom.state_dict().items()}


def _trained(workers: Workers, table_workers: Workers, name: str, updates: str = "lazy", **more: Any) -> Any:
    bottom = half(table_workers, updates)
    optimizer = HalfOptimizer(bottom, OptimizerConfig(name=name, learning_rate=0.05, **more), 0.9, workers)
    train(bottom, optimizer, workers, range(3))
    # A batch of one record: the others have nothing to learn from, and no gradient.
    output = bottom(*(tensor[: workers.is_first] for tensor in batch(3)))
    if workers.is_first:
        output.sum().backward()
    optimizer.step()
    with optimizer.averaged():
        return whole(bottom, table_workers)


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
    begun = half(workers)
    torch.manual_seed(3)
    normed = Normed()
    optimizer = HalfOptimizer(normed, OptimizerConfig(name="sgd", arguments={"momentum": 0.5}), workers=workers)
    for step in range(3):
        categorical, numeric = batch(step)
        rows = slice(workers.number * 4, workers.number * 4 + 4)
        normed(categorical[rows], numeric[rows]).square().sum().backward()
        optimizer.step()
    with torch.no_grad():
        looked_up = begun(*(tensor[workers.number :] for tensor in batch(9)))
    return {
        "shapes": [list(each.embedding.weight.shape) for each in begun.members],  # type: ignore[union-attr]
        "begun": whole(begun, workers),
        "looked up": looked_up,
        "replicated": {name: _trained(workers, ALONE, name) for name in KINDS},
        "sharded": {name: _trained(workers, workers, name) for name in KINDS},
        "dense": _trained(workers, ALONE, "adam", "dense"),
        "scheduled": _trained(workers, workers, "adam", schedule={"name": "StepLR", "arguments": {"step_size": 1}}),
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


def test_rows_are_divided_evenly_and_without_a_gap() -> None:
    for rows, count in ((47, 3), (2, 3), (10_000_000, 7)):
        shards = [Shard.of(rows, Workers(number, count)) for number in range(count)]
        assert shards[0].start == 0 and shards[-1].stop == rows
        assert all(one.stop == other.start for one, other in pairwise(shards))
        assert {shard.stop - shard.start for shard in shards} <= {rows // count, rows // count + 1}


def test_shards_begin_as_the_table_that_no_worker_holds(three: list[dict[str, Any]]) -> None:
    assert [seen["shapes"] for seen in three] == [[[15, 5]] * 2, [[16, 5]] * 2, [[16, 5]] * 2]
    for seen in three:
        assert same(seen["begun"], half().state_dict())


@pytest.mark.parametrize("rows", [1, 3, 100, 101, 257])
def test_weights_are_drawn_in_parts_as_at_once(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpsl.models.sharded_table._DRAWN_AT_ONCE", 64)
    generators = [torch.Generator().manual_seed(5) for _ in range(4)]
    expected = torch.empty(rows, 5).normal_(0.0, 0.3, generator=generators[0])
    tables = [ShardedTable(rows, 5, Workers(number, 3)) for number in range(3)]
    for table, generator in zip(tables, generators[1:], strict=True):
        table.draw(0.3, generator)
    assert torch.equal(torch.cat([table.weight.detach() for table in tables]), expected)
    following = [torch.randn(3, generator=generator).tolist() for generator in generators]
    assert following == [following[0]] * 4


def test_all_workers_see_the_whole_table(three: list[dict[str, Any]]) -> None:
    with torch.no_grad():
        expected = half()(*batch(9))
    for number, seen in enumerate(three):
        assert torch.allclose(seen["looked up"], expected[number:], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", KINDS)
def test_workers_train_what_one_trains(three: list[dict[str, Any]], name: str) -> None:
    alone = _trained(ALONE, ALONE, name)
    assert not close(alone, half().state_dict())
    for seen in three:
        assert close(seen["replicated"][name], alone)
        # All add up in the same order, so they agree to the last bit.
        assert same(seen["replicated"][name], three[0]["replicated"][name])
        assert same(seen["sharded"][name], seen["replicated"][name])


def test_dense_updates_and_schedules_are_those_of_one(three: list[dict[str, Any]]) -> None:
    dense = _trained(ALONE, ALONE, "adam", "dense")
    scheduled = _trained(ALONE, ALONE, "adam", schedule={"name": "StepLR", "arguments": {"step_size": 1}})
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


def test_a_row_that_the_table_does_not_have_is_refused() -> None:
    table = ShardedTable(47, 5, Workers(1, 2))
    with pytest.raises(IndexError, match=r"the table has rows 0 to 46; 3 to 47 were looked up"):
        table(torch.tensor([[3, 47]]))
