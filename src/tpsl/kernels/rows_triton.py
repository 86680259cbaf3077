"""Loops over touched rows on a CUDA device.

Many look-ups of a batch name the same row, and threads that add to it in turn would do so in any order. So the look-ups
are sorted by row, and the gradients of a row are added up in the order of the batch: in tiles of the sorted look-ups
first, and then over the tiles that a row spans. No sum depends on timing, so a step that is repeated has the same bits.

Sorting needs no gradient. It runs on a stream of its own, beside the forward and the backward pass. No call waits for
the device, so that a step can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tpsl.kernels.rows import Kind, stream_beside

_GATHERED_AT_ONCE = 256
"""Look-ups in one program of `_gather`."""
_TILE_NUMBERS = 1024
"""Numbers that a program adds up: a tile of look-ups, times the columns of the table or a part of them."""
_TILE_COLUMNS = 128
_NUMBERS_OF_A_WARP = 512
_SPAN = 16
"""Tiles whose sums are added up at once."""
SGD, ADAGRAD, ADAM = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
_KINDS = {"sgd": SGD, "adagrad": ADAGRAD, "adam": ADAM}
_STATE = {"sgd": (), "adagrad": ("sum",), "adam": ("exp_avg", "exp_avg_sq")}


@triton.jit(do_not_specialize=["lookups"])
def _gather(
    table, categorical, out, lookups, width, FIELDS: tl.constexpr, D: tl.constexpr, POWER: tl.constexpr, N: tl.constexpr
):
    """`out[i, f·d + k] = table[categorical[i, f], k]`; a row of `out` has `width` numbers."""
    lookup = tl.program_id(0) * N + tl.arange(0, N)
    column = tl.arange(0, POWER)
    inside = lookup < lookups
    mask = inside[:, None] & (column < D)[None, :]
    row = tl.load(categorical + lookup, mask=inside, other=0).to(tl.int64)
    values = tl.load(table + row[:, None] * D + column[None, :], mask=mask)
    start = (lookup // FIELDS).to(tl.int64) * width + lookup % FIELDS * D
    tl.store(out + start[:, None] + column[None, :], values, mask=mask)


@triton.jit
def _update(table, first, second, place, gradient, rate, eps, decay_1, decay_2, mask, KIND: tl.constexpr):
    """Update the numbers of the table at `place` by the whole gradient of their rows."""
    step = gradient
    if KIND == ADAGRAD:
        total = tl.load(first + place, mask=mask, other=0.0) + gradient * gradient
        tl.store(first + place, total, mask=mask)
        step = gradient / (tl.sqrt_rn(total) + eps)
    if KIND == ADAM:
        mean = tl.load(first + place, mask=mask, other=0.0)
        mean += (gradient - mean) * decay_1
        tl.store(first + place, mean, mask=mask)
        square = tl.load(second + place, mask=mask, other=0.0)
        square += (gradient * gradient - square) * decay_2
        tl.store(second + place, square, mask=mask)
        step = mean / (tl.sqrt_rn(square) + eps)
    value = tl.load(table + place, mask=mask, other=0.0)
    tl.store(table + place, value - tl.load(rate) * step, mask=mask)


@triton.jit
def _joined(begins_left, left, begins_right, right):
    """Join the sums of two neighbours: a sum goes on unless another row begins."""
    return begins_left | begins_right, tl.where(begins_right != 0, right, left + right)


@triton.jit(do_not_specialize=["lookups"])
def _tiles(
    table, first, second, rate, eps, decay_1, decay_2,
    keys, order, gradient, width, lookups, heads, tails, begins,
    KIND: tl.constexpr, D: tl.constexpr, COLUMNS: tl.constexpr, N: tl.constexpr, FIELDS: tl.constexpr,
):  # fmt: skip
    """Add up the gradients of each row within a tile of N sorted look-ups, and update the rows that lie in one tile.

    Of a row that began in an earlier tile and ends here, the sum is kept in `heads`; of the row at the end of the tile
    in `tails`, and in `begins` whether that row begins in this tile.
    """
    tile = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    at = tile * N + tl.arange(0, N)
    inside, real = at < lookups, column < D
    mask = inside[:, None] & real[None, :]
    key = tl.load(keys + at, mask=inside, other=-1)
    begins_here = key != tl.load(keys + at - 1, mask=inside & (at > 0), other=-1)
    # The row that goes on from the tile before, if any: of all others the first look-up is in this tile.
    began = (key != tl.load(keys + tile * N - 1, mask=tile > 0, other=-1))[:, None]
    ends_here = inside & (key != tl.load(keys + at + 1, mask=at + 1 < lookups, other=-1))
    lookup = tl.load(order + at, mask=inside, other=0).to(tl.int32)
    start = (lookup // FIELDS).to(tl.int64) * width + lookup % FIELDS * D
    # Few numbers of a row for each thread, else too few threads share the scan: bfloat16 would take twice the time.
    narrow = tl.max_contiguous(column, 4)[None, :]
    values = tl.load(gradient + start[:, None] + narrow, mask=mask, other=0.0).to(tl.float32)
    flags = tl.broadcast_to(begins_here.to(tl.int32)[:, None], (N, COLUMNS))
    _, sums = tl.associative_scan((flags, values), 0, _joined)
    place = key.to(tl.int64)[:, None] * D + column[None, :]
    ends = mask & ends_here[:, None]
    _update(table, first, second, place, sums, rate, eps, decay_1, decay_2, ends & began, KIND)
    kept = tl.zeros((N, 1), tl.int64) + tile.to(tl.int64) * D + column[None, :]
    tl.store(heads + kept, sums, mask=ends & ~began)
    last = mask & (at == tl.minimum(tile * N + N, lookups) - 1)[:, None]
    tl.store(tails + kept, sums, mask=last)
    tl.store(
        begins + tl.zeros((N, COLUMNS), tl.int32) + tile, tl.broadcast_to(began, (N, COLUMNS)).to(tl.int32), mask=last
    )


@triton.jit(do_not_specialize=["lookups"])
def _spans(
    table, first, second, rate, eps, decay_1, decay_2, keys, lookups, heads, tails, begins,
    KIND: tl.constexpr, D: tl.constexpr, COLUMNS: tl.constexpr, N: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Update the row that began in an earlier tile and ends in this one: its sum is that of all tiles it spans."""
    tile = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    start, stop = tile * N, tl.minimum(tile * N + N, lookups)
    key = tl.load(keys + start)
    goes_on = tl.load(keys + start - 1, mask=start > 0, other=-1) == key
    ends = (tl.load(keys + stop - 1) != key) | (tl.load(keys + stop, mask=stop < lookups, other=-1) != key)
    if goes_on & ends:
        mask = column < D
        total = tl.load(heads + tile.to(tl.int64) * D + column, mask=mask, other=0.0)
        began = 0
        while began == 0:  # through several earlier tiles at once, up to the one in which the row begins
            earlier = tile - 1 - tl.arange(0, SPAN)
            begin = tl.load(begins + earlier, mask=earlier >= 0, other=1)
            counts = tl.cumsum(begin, axis=0) - begin == 0
            span = (counts & (earlier >= 0))[:, None] & mask[None, :]
            found = tl.load(tails + earlier.to(tl.int64)[:, None] * D + column[None, :], mask=span, other=0.0)
            total += tl.sum(found, axis=0)
            began = tl.max(begin, axis=0)
            tile -= SPAN
        place = key.to(tl.int64) * D + column
        _update(table, first, second, place, total, rate, eps, decay_1, decay_2, mask, KIND)


def gather(weight: Tensor, categorical: Tensor, out: Tensor) -> None:
    """Put the rows of a table into the first columns of `out`."""
    lookups, dim = categorical.numel(), weight.shape[1]
    _gather[(triton.cdiv(lookups, _GATHERED_AT_ONCE),)](
        weight, categorical, out, lookups, out.shape[1], categorical.shape[1],
        dim, triton.next_power_of_2(dim), _GATHERED_AT_ONCE, num_warps=8,
    )  # fmt: skip


Sorted = tuple[Tensor, Tensor]
"""Look-ups sorted by row, those of one row in the order of the batch, and where in the batch each was."""


def begin(categorical: Tensor) -> Callable[[], Sorted]:
    """Begin to sort the look-ups of a batch, beside whatever comes before its gradient; return what waits for it."""
    beside = stream_beside(categorical.device)
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        keys, order = torch.sort(categorical.reshape(-1), stable=True)

    def ended() -> Sorted:
        torch.cuda.current_stream().wait_stream(beside)
        return keys, order

    return ended


class RowUpdate:
    """The row update of `tpsl.kernels.rows`; on a CUDA device the state's `step` is a tensor there."""

    def __init__(
        self, kind: Kind, weight: Tensor, settings: Mapping[str, Any], state: MutableMapping[str, Any]
    ) -> None:
        self._kind, self._weight, self._settings, self._state = kind, weight, settings, state
        if "step" in state:
            state["step"] = torch.as_tensor(state["step"], dtype=torch.float32, device=weight.device)

    @torch.no_grad()
    def apply(self, categorical: Tensor, gradient: Tensor, begun: Sorted | None = None) -> None:
        """Update the rows `categorical` by the gradient of what was looked up, and count the step."""
        settings, state, weight = self._settings, self._state, self._weight
        kind, betas, rate = _KINDS[self._kind], settings.get("betas", (0.5, 0.5)), self._counted()
        if not categorical.numel():
            return
        keys, order = begun or torch.sort(categorical.reshape(-1), stable=True)
        lookups, dim = len(keys), weight.shape[1]
        columns = min(triton.next_power_of_2(dim), _TILE_COLUMNS)
        tile = min(128, max(16, _TILE_NUMBERS // columns))
        warps = max(1, tile * columns // _NUMBERS_OF_A_WARP)
        tiles = triton.cdiv(lookups, tile)
        heads, tails = weight.new_empty(2, tiles, dim)
        begins = weight.new_empty(tiles, dtype=torch.int32)
        first, second = ([state[name] for name in _STATE[self._kind]] + [weight, weight])[:2]
        shared = weight, first, second, rate, settings.get("eps", 0.0), 1 - betas[0], 1 - betas[1], keys
        of_tiles = lookups, heads, tails, begins, kind, dim, columns, tile
        grid = tiles, triton.cdiv(dim, columns)
        gradient = gradient.contiguous()
        _tiles[grid](*shared, order, gradient, gradient.shape[1], *of_tiles, categorical.shape[1], num_warps=warps)
        _spans[grid](*shared, *of_tiles, _SPAN, num_warps=1)

    def _counted(self) -> Tensor:
        """Count a step t, and return its rate: η, or η / (1 + (t-1)·decay), or η·√(1-β₂ᵗ) / (1-β₁ᵗ)."""
        rate: float = self._settings["lr"]
        if self._kind == "sgd":
            return torch.full((), rate, device=self._weight.device)
        step: Tensor = self._state["step"].add_(1).double()
        if self._kind == "adagrad":
            decay: float = self._settings["lr_decay"]
            return (rate / (1 + (step - 1) * decay)).float()
        of_mean, of_square = (1 - beta**step for beta in self._settings["betas"])
        adam: Tensor = (rate * of_square.sqrt() / of_mean).float()
        return adam
