"""Embedding tables, and optimisers for "lazy" updates: a step reads and writes only the rows that its batch touches.

PyTorch's own way to that is a sparse gradient, which is built, sorted and added up in each step. Here a table keeps
what back-propagation finds as it comes, and its optimiser goes over it once.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.optim import SGD, Adagrad, Optimizer, SparseAdam

from tpsl.kernels.rows import Kind, RowUpdate, gather, has_loops, loops
from tpsl.workers import Workers

_LINE = 16
"""Numbers in a cache line."""


def padded_width(width: int) -> int:
    """Return how wide inputs of this width should be made in training, with zeros: rows of whole cache lines.

    On a CPU, matrices whose rows do not fill cache lines cost up to 1.8 times as much: measured, the product that takes
    gradients through the paper's first layer (26 fields and 13 numbers, batch 8192) takes 19 ms with rows of 429
    numbers and 11 with rows of 432. On a GPU the fast products need rows of whole 16 bytes.
    """
    return -(-width // _LINE) * _LINE


class Touched(NamedTuple):
    """What one backward pass has found, as `tpsl.kernels.rows` has it."""

    rows: Tensor
    gradient: Tensor
    begun: Any = None


class Table(nn.Embedding):
    """The embeddings of a party's categories, with lazy updates or dense ones.

    A `RowOptimizer` makes it keep what it `touched`; else it has a `weight.grad`, sparse if updates are lazy.
    """

    def __init__(self, rows: int, dim: int, *, lazy: bool, device: str | None = None) -> None:
        super().__init__(rows, dim, sparse=lazy, device=device)
        self.touched: list[Touched] | None = None
        """What each backward pass since the last step has found."""

    def forward(self, categorical: Tensor) -> Tensor:
        """Return the embeddings of some categories, `[…, d]`."""
        if not self._keeps_gradients():
            return super().forward(categorical)
        found = self._kept_look_up(categorical.reshape(-1, categorical.shape[-1]), None)
        return found.reshape(*categorical.shape, self.embedding_dim)

    def beside(self, categorical: Tensor, numeric: Tensor) -> Tensor:
        """Return the embeddings of each record's categories beside its numbers, `[n, F·d + N]`, in training padded."""
        if torch.is_grad_enabled():
            width = categorical.shape[1] * self.embedding_dim + numeric.shape[1]
            numeric = functional.pad(numeric, (0, padded_width(width) - width))
        if self._keeps_gradients():
            return self._kept_look_up(categorical, numeric)
        embeddings = self(categorical).flatten(start_dim=1)
        return torch.cat([embeddings, numeric], dim=1) if numeric.shape[1] else embeddings

    def _kept_look_up(self, rows: Tensor, numeric: Tensor | None) -> Tensor:
        """Return rows side by side and numbers behind them, and have the backward pass keep what it finds."""
        found: Tensor = LookUp.apply(self.weight, self.touched, rows, numeric)  # type: ignore[no-untyped-call]
        return found

    def _keeps_gradients(self) -> bool:
        return self.touched is not None and torch.is_grad_enabled() and self.weight.requires_grad


class LookUp(torch.autograd.Function):
    """Rows of a table side by side, and numbers behind them; the backward pass keeps the gradient of the rows."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, touched: list[Touched], rows: Tensor, numeric: Tensor | None) -> Tensor:
        """Return `[n, F·d + N]`."""
        width = rows.shape[1] * weight.shape[1]
        # Beside numbers, rows are the factors of a product and nothing else.
        is_rounded = numeric is not None and torch.is_autocast_enabled(weight.device.type)
        dtype, behind = torch.bfloat16 if is_rounded else torch.float32, 0 if numeric is None else numeric.shape[1]
        joined = weight.new_empty(rows.shape[0], width + behind, dtype=dtype)
        gather(weight, rows, joined)
        if numeric is not None:
            joined[:, width:] = numeric
        ctx.touched, ctx.width = touched, width
        ctx.begun = loops(weight.device.type).begin(rows)
        ctx.save_for_backward(rows)
        return joined

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Keep the gradient of the rows; that of the numbers goes on to where they come from."""
        (rows,) = ctx.saved_tensors
        ctx.touched.append(Touched(rows, gradient, ctx.begun()))
        return None, None, None, gradient[:, ctx.width :].clone() if ctx.needs_input_grad[3] else None


class RowOptimizer(Optimizer):
    """An optimiser of `torch.optim`, with its settings and its state, that goes over the touched rows of one table.

    From when it is made the table keeps its gradients for it.
    """

    kind: ClassVar[Kind]

    def __init__(self, table: Table, **settings: Any) -> None:
        super().__init__([table.weight], **settings)
        self.table = table
        self._touched: list[Touched] = []
        self._update: RowUpdate | None = None
        table.touched = self._touched

    def take_from_all(self, workers: Workers) -> None:
        """Have what the tables of all workers have touched, in order of their numbers; all call this in each step."""
        weight, found = self.table.weight.detach(), None
        if self._touched:
            batch = _joined(self._touched, weight.shape[1])
            gradient = batch.gradient[:, : batch.rows.shape[1] * weight.shape[1]].float().reshape(-1, weight.shape[1])
            found = torch.sparse_coo_tensor(batch.rows.reshape(1, -1), gradient, weight.shape, check_invariants=False)
        rows, gradient = gathered(found, weight, workers)
        self._touched[:] = [Touched(rows.int()[:, None], gradient)]

    def divide(self, records: int) -> None:
        """Divide the kept gradients by a number of records."""
        if records != 1:
            self._touched[:] = [each._replace(gradient=each.gradient / records) for each in self._touched]

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the rows that were touched since the last step; several passes count as one batch."""
        if not self._touched:
            return
        if self._update is None:
            weight = self.table.weight
            make = loops(weight.device.type).RowUpdate
            self._update = make(self.kind, weight, self.param_groups[0], self._row_state())
        batch = _joined(self._touched, self.table.embedding_dim)
        self._update.apply(batch.rows, batch.gradient, batch.begun)
        self._touched.clear()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state of this optimiser, or of that of `torch.optim`."""
        super().load_state_dict(state_dict)
        self._update = None

    def _row_state(self) -> dict[str, Any]:
        """Return what `torch.optim` would keep of the table by the first step, if anything."""
        return {}


class RowSGD(RowOptimizer, SGD):
    """Stochastic gradient descent."""

    kind = "sgd"


class RowAdagrad(RowOptimizer, Adagrad):
    """Adagrad; rows that a batch does not touch would not change with dense gradients either."""

    kind = "adagrad"

    def _row_state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.state[self.table.weight]
        return state


class RowAdam(RowOptimizer, SparseAdam):
    """Adam in its lazy form: the moments of rows that a batch does not touch stand still."""

    kind = "adam"

    def _row_state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.state[self.table.weight]
        if not state:
            zeros = torch.zeros_like(self.table.weight)
            state |= {"step": 0, "exp_avg": zeros, "exp_avg_sq": zeros.clone()}
        return state


_LAZY: dict[str, tuple[type[RowOptimizer], type[Optimizer]]] = {
    "sgd": (RowSGD, SGD),
    "adagrad": (RowAdagrad, Adagrad),
    "adam": (RowAdam, SparseAdam),
}


def lazy_optimizer(name: str, table: Table, learning_rate: float) -> Optimizer:
    """Return the optimiser of a lazy table: by its rows on a device that has loops for that, else of `torch.optim`."""
    by_row, by_sparse_gradient = _LAZY[name]
    if has_loops(table.weight.device.type):
        return by_row(table, lr=learning_rate)
    return by_sparse_gradient([table.weight], lr=learning_rate)  # type: ignore[call-arg]


def gathered(gradient: Tensor | None, weight: Tensor, workers: Workers) -> tuple[Tensor, Tensor]:
    """Return rows of a table and their sparse gradients at all workers, in order of their numbers."""
    rows, values = weight.new_empty(0, dtype=torch.int64), weight.detach()[:0]
    if gradient is not None:
        own = gradient.coalesce()
        rows, values = own.indices()[0], own.values()
    return workers.all_gather_rows(rows), workers.all_gather_rows(values)


def _joined(touched: list[Touched], dim: int) -> Touched:
    """Return several passes as one batch of single look-ups, in their order; one pass as it is."""
    if len(touched) == 1:
        return touched[0]
    rows = [each.rows.reshape(-1, 1) for each in touched]
    gradients = [each.gradient[:, : each.rows.shape[1] * dim].reshape(-1, dim) for each in touched]
    return Touched(torch.cat(rows), torch.cat(gradients))
