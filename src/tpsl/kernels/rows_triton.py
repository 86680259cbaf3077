"""Loops over touched rows on a CUDA device.

Many look-ups of a batch name the same row, and threads add to its gradient in any order. So gradients are added up as
integers, whose sum does not depend on the order: a step that is repeated has the same bits, and nothing is sorted. Each
number is multiplied by a power of two that follows from the largest number of the batch, such that the sum of all
look-ups fits into an integer of 64 bits. With 300,000 look-ups a number counts down to 2⁻⁴³ of the largest.

One look-up of each row is its owner: whichever was the last to write its number into the row's slot. The others add
their gradients to the owner's sums, and the owner updates the row. No call waits for the device, so that a step can be
captured in a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tpsl.kernels.rows import Kind

_GATHERED_AT_ONCE = 256
"""Look-ups in one program of `_gather`."""
_TILE_NUMBERS, _TILE_COLUMNS = 1024, 128
"""Numbers in one program of an update: some look-ups, times the columns of the table or a part of them."""
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
def _begin_step(step, rate, largest, lr, decay, log_beta_1, log_beta_2, KIND: tl.constexpr):
    """Count a step t; `rate` is that of the step: η, or η / (1 + (t-1)·decay), or η·√(1-β₂ᵗ) / (1-β₁ᵗ)."""
    found = tl.full((), lr, tl.float32)
    if KIND != SGD:
        t = tl.load(step) + 1
        tl.store(step, t)
        t = t.to(tl.float64)
        if KIND == ADAGRAD:
            found = (found / (1 + (t - 1) * decay)).to(tl.float32)
        else:
            found = (found * tl.sqrt(1 - tl.exp2(t * log_beta_2)) / (1 - tl.exp2(t * log_beta_1))).to(tl.float32)
    tl.store(rate, found)
    tl.store(largest, 0)


@triton.jit
def _tile(rows, lookups, width, FIELDS: tl.constexpr, D: tl.constexpr, COLUMNS: tl.constexpr, N: tl.constexpr):
    """Return a program's look-ups with their rows, its columns, where their gradients are, and which of all exist."""
    lookup = tl.program_id(0) * N + tl.arange(0, N)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = lookup < lookups
    row = tl.load(rows + lookup, mask=inside, other=0).to(tl.int64)
    start = (lookup // FIELDS).to(tl.int64) * width + lookup % FIELDS * D
    return lookup, row, inside, column, start[:, None] + column[None, :], inside[:, None] & (column < D)[None, :]


@triton.jit
def _power_of_two(exponent):
    """`2^exponent` as a float64."""
    return ((exponent + 1023).to(tl.int64) << 52).to(tl.float64, bitcast=True)


@triton.jit
def _scale(largest, room):
    """The exponent of what numbers are multiplied by before they become integers: the largest one is below `2^room`."""
    return room + 126 - (tl.load(largest) >> 23)


@triton.jit(do_not_specialize=["lookups"])
def _claim(
    rows, gradient, slots, largest, is_shared, lookups, width,
    FIELDS: tl.constexpr, D: tl.constexpr, COLUMNS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Write each look-up into the slot of its row, and find the bits of the largest absolute number."""
    lookup, row, inside, _, place, mask = _tile(rows, lookups, width, FIELDS, D, COLUMNS, N)
    tl.store(slots + row, lookup, mask=inside)
    tl.store(is_shared + lookup, 0, mask=inside)
    values = tl.load(gradient + place, mask=mask, other=0.0).to(tl.float32)
    # As integers, the bits of positive numbers are in the order of the numbers; infinity and NaN come last.
    bits = tl.abs(values).to(tl.int32, bitcast=True)
    tl.atomic_max(largest, tl.max(tl.max(bits, axis=1), axis=0), sem="relaxed")


@triton.jit(do_not_specialize=["lookups", "room"])
def _add(
    rows, gradient, slots, largest, is_shared, lookups, width, sums, room,
    FIELDS: tl.constexpr, D: tl.constexpr, COLUMNS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Add the gradients of look-ups that do not own their rows to the sums of those that do."""
    lookup, row, inside, column, place, mask = _tile(rows, lookups, width, FIELDS, D, COLUMNS, N)
    owner = tl.load(slots + row, mask=inside, other=-1)
    adds = inside & (owner != lookup)
    tl.store(is_shared + owner, 1, mask=adds)
    mask = mask & adds[:, None]
    values = tl.load(gradient + place, mask=mask, other=0.0).to(tl.float32)
    number = (values.to(tl.float64) * _power_of_two(_scale(largest, room))).to(tl.int64)
    tl.atomic_add(sums + owner.to(tl.int64)[:, None] * D + column[None, :], number, mask=mask, sem="relaxed")


@triton.jit(do_not_specialize=["lookups", "room"])
def _update(
    rows, gradient, slots, largest, is_shared, lookups, width, sums, room,
    table, first, second, rate, eps, decay_1, decay_2, KIND: tl.constexpr,
    FIELDS: tl.constexpr, D: tl.constexpr, COLUMNS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Update each row, by the look-up that owns it; its sums are zeros again afterwards."""
    lookup, row, inside, column, place, mask = _tile(rows, lookups, width, FIELDS, D, COLUMNS, N)
    owns = tl.load(slots + row, mask=inside, other=-1) == lookup
    mask = mask & owns[:, None]
    values = tl.load(gradient + place, mask=mask, other=0.0).to(tl.float32)
    exponent = _scale(largest, room)
    number = (values.to(tl.float64) * _power_of_two(exponent)).to(tl.int64)
    has_sums = mask & (tl.load(is_shared + lookup, mask=owns, other=0) != 0)[:, None]
    kept = sums + lookup.to(tl.int64)[:, None] * D + column[None, :]
    number += tl.load(kept, mask=has_sums, other=0)
    tl.store(kept, tl.zeros_like(number), mask=has_sums)
    step = (number.to(tl.float64) * _power_of_two(-exponent)).to(tl.float32)
    step = tl.where(tl.load(largest) < 0x7F800000, step, float("nan"))
    place = row[:, None] * D + column[None, :]
    if KIND == ADAGRAD:
        total = tl.load(first + place, mask=mask, other=0.0) + step * step
        tl.store(first + place, total, mask=mask)
        step = step / (tl.sqrt_rn(total) + eps)
    if KIND == ADAM:
        mean = tl.load(first + place, mask=mask, other=0.0)
        mean += (step - mean) * decay_1
        tl.store(first + place, mean, mask=mask)
        square = tl.load(second + place, mask=mask, other=0.0)
        square += (step * step - square) * decay_2
        tl.store(second + place, square, mask=mask)
        step = mean / (tl.sqrt_rn(square) + eps)
    value = tl.load(table + place, mask=mask, other=0.0)
    tl.store(table + place, value - tl.load(rate) * step, mask=mask)


def gather(weight: Tensor, categorical: Tensor, out: Tensor) -> None:
    """Put the rows of a table into the first columns of `out`."""
    lookups, dim = categorical.numel(), weight.shape[1]
    _gather[(triton.cdiv(lookups, _GATHERED_AT_ONCE),)](
        weight, categorical, out, lookups, out.shape[1], categorical.shape[1],
        dim, triton.next_power_of_2(dim), _GATHERED_AT_ONCE, num_warps=8,
    )  # fmt: skip


class RowUpdate:
    """The row update of `tpsl.kernels.rows`; on a CUDA device the state's `step` is a tensor there."""

    def __init__(
        self, kind: Kind, weight: Tensor, settings: Mapping[str, Any], state: MutableMapping[str, Any]
    ) -> None:
        self._kind, self._weight, self._settings, self._state = kind, weight, settings, state
        self._rate = torch.empty(1, device=weight.device)
        self._largest = torch.empty(1, dtype=torch.int32, device=weight.device)
        self._slots = torch.empty(len(weight), dtype=torch.int32, device=weight.device)
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}
        """Whether there are sums, and sums: by the number of look-ups, since a captured graph goes on using them."""
        if "step" in state:
            state["step"] = torch.as_tensor(state["step"], dtype=torch.float32, device=weight.device)

    @torch.no_grad()
    def apply(self, categorical: Tensor, gradient: Tensor) -> None:
        """Update the rows `categorical` by the gradient of what was looked up, and count the step."""
        settings, state, weight = self._settings, self._state, self._weight.detach()
        kind, betas, decay = _KINDS[self._kind], settings.get("betas", (0.5, 0.5)), settings.get("lr_decay", 0.0)
        step = state.get("step", self._rate)
        _begin_step[(1,)](step, self._rate, self._largest, settings["lr"], decay, *map(_log2, betas), kind)
        if not (lookups := categorical.numel()):
            return
        (fields, dim), gradient = (categorical.shape[1], weight.shape[1]), gradient.contiguous()
        if lookups not in self._kept:
            sums = torch.zeros(lookups, dim, dtype=torch.int64, device=weight.device)
            self._kept[lookups] = torch.empty(lookups, dtype=torch.int8, device=weight.device), sums
        is_shared, sums = self._kept[lookups]
        columns = min(triton.next_power_of_2(dim), _TILE_COLUMNS)
        tile = _TILE_NUMBERS // columns
        grid = triton.cdiv(lookups, tile), triton.cdiv(dim, columns)
        rows, sizes = categorical.contiguous(), (fields, dim, columns, tile)
        given = rows, gradient, self._slots, self._largest, is_shared, lookups, gradient.shape[1]
        room = 62 - (lookups - 1).bit_length()
        first, second = ([state[name] for name in _STATE[self._kind]] + [weight, weight])[:2]
        numbers = self._rate, settings.get("eps", 0.0), 1 - betas[0], 1 - betas[1]
        _claim[grid](*given, *sizes)
        _add[grid](*given, sums, room, *sizes)
        _update[grid](*given, sums, room, weight, first, second, *numbers, kind, *sizes)


def _log2(beta: float) -> float:
    return math.log2(beta) if beta else -math.inf
