"""An embedding table whose rows are divided over the workers of a party: each holds one range of them.

A worker's memory is its share of the table and of what the optimiser keeps of it. A look-up asks the owners of the
rows for them, each row once. After the backward passes of a step each worker adds up the gradient of every row that it
has touched, and gives it to the owner, which updates the row once for the whole batch. So all workers look up equally
often, and step together.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tpsl.kernels.rows import gather
from tpsl.models.shard import Shard
from tpsl.models.table import LookUp, Table, Touched, named_once
from tpsl.workers import Workers

_LEAST_DRAWN = 16
"""PyTorch draws this many numbers at a time, and fewer in another way."""
_DRAWN_AT_ONCE = _LEAST_DRAWN << 16
"""Numbers: as a multiple of that, they are those that a draw of all at once gives."""


class ShardedTable(Table):
    """One worker's share of a table with lazy updates; `weight` are the rows of its `shard`.

    Guarantee: with the same seed the workers hold together the weights of a `Table`, at first and after each step that
    a replicated `Table` of the same workers takes, on a CPU to the last bit.
    """

    shard: Shard

    def __init__(self, rows: int, dim: int, workers: Workers) -> None:
        self.shard = Shard.of(rows, workers)
        super().__init__(self.shard.stop - self.shard.start, dim, lazy=True)
        self._workers = workers
        starts = [Shard.of(rows, Workers(number, workers.count)).start for number in range(1, workers.count)]
        self._starts = torch.tensor(starts)

    def forward(self, categorical: Tensor) -> Tensor:
        """Return the embeddings of some categories, `[…, d]`."""
        if self._keeps_gradients():
            return super().forward(categorical)
        numbers, places = named_once(categorical)
        return functional.embedding(places, self._rows(numbers))

    @torch.no_grad()
    def draw(self, deviation: float, generator: torch.Generator) -> None:
        """Draw the weights that the whole table would have, which is never in memory, and keep those of this shard."""
        own, numbers = self.weight.view(-1), self.shard.rows * self.embedding_dim
        first, drawn = self.shard.start * self.embedding_dim, 0
        while drawn < numbers:
            left = numbers - drawn
            size = _DRAWN_AT_ONCE if left >= _DRAWN_AT_ONCE + _LEAST_DRAWN else left
            block = torch.empty(size).normal_(0.0, deviation, generator=generator)
            start, stop = max(first, drawn), min(first + len(own), drawn + size)
            if start < stop:
                own[start - first : stop - first] = block[start - drawn : stop - drawn]
            drawn += size

    def touched_anywhere(self, touched: list[Touched], workers: Workers) -> Touched:
        """Return what the backward passes of all workers have found of the rows of this shard."""
        numbers, gradient = self._added_up(touched)
        given = self._sizes(numbers)
        received = workers.numbers_for_this(given)
        rows = workers.exchanged(numbers, given, received)
        return Touched(rows[:, None] - self.shard.start, workers.exchanged(gradient, given, received))

    def _look_up(self, rows: Tensor, numeric: Tensor | None) -> Tensor:
        numbers, places = named_once(rows)
        weight = self._rows(numbers).requires_grad_()
        found: Tensor = LookUp.apply(weight, self.touched, places, numeric, numbers)  # type: ignore[no-untyped-call]
        return found

    @torch.no_grad()
    def _rows(self, numbers: Tensor) -> Tensor:
        """Return rows of the table, named in ascending order, from their owners."""
        if len(numbers) and (numbers[0] < 0 or numbers[-1] >= self.shard.rows):
            low, high = int(numbers[0]), int(numbers[-1])
            raise IndexError(f"the table has rows 0 to {self.shard.rows - 1}; {low} to {high} were looked up")
        asked = self._sizes(numbers)
        wanted = self._workers.numbers_for_this(asked)
        own = self._workers.exchanged(numbers, asked, wanted)[:, None] - self.shard.start
        return self._workers.exchanged(gather(self.weight.detach(), own), wanted, asked)

    def _sizes(self, numbers: Tensor) -> list[int]:
        """Return how many of these rows, in ascending order, each worker owns."""
        borders = torch.searchsorted(numbers, self._starts.to(numbers)).tolist()
        return [stop - start for start, stop in zip([0, *borders], [*borders, len(numbers)], strict=True)]


def shards_of(half: nn.Module) -> dict[str, Shard]:
    """Return which tensors of a half's state are shards, by name, and of which rows."""
    tables = {f"{name}.weight": part for name, part in half.named_modules() if isinstance(part, ShardedTable)}
    return {name: table.shard for name, table in tables.items()}
