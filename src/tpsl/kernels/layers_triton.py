"""Dense layers on a CUDA device: what PyTorch does in many small kernels, in few, and side by side where it can be.

A layer's own gradient does not stand in the way of the layers below it, so it is computed on a stream of its own. The
products are cuBLAS's, in the precision that PyTorch is set to. All sums have a fixed order, so a step that is repeated
has the same bits, and nothing waits for the device.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

_ROWS, _COLUMNS = 64, 128
"""The tile of one program."""


@triton.jit
def _masked(gradient, output, masked, parts, rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The gradient of a ReLU's input, and its sum over each tile's rows."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = (row < rows)[:, None] & (column < width)[None, :]
    place = row.to(tl.int64)[:, None] * width + column[None, :]
    is_active = tl.load(output + place, mask=mask, other=0.0) > 0
    values = tl.where(is_active, tl.load(gradient + place, mask=mask, other=0.0), 0.0)
    tl.store(masked + place, values, mask=mask)
    tl.store(parts + tl.program_id(0) * width + column, tl.sum(values, axis=0), mask=column < width)


@triton.jit
def _scores(inputs, weight, bias, scores, rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """`z = x·w + b`, one number for each row."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    total = tl.zeros((ROWS,), tl.float32)
    for start in range(0, width, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        mask = (row < rows)[:, None] & (column < width)[None, :]
        values = tl.load(inputs + row.to(tl.int64)[:, None] * width + column[None, :], mask=mask, other=0.0)
        total += tl.sum(values * tl.load(weight + column, mask=column < width, other=0.0)[None, :], axis=1)
    tl.store(scores + row, total + tl.load(bias), mask=row < rows)


@triton.jit
def _score_gradients(
    gradient, inputs, weight, to_inputs, parts, bias_parts, rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """The gradients of `z = x·w + b`: of x; and of w and b, summed over each tile's rows."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = (row < rows)[:, None] & (column < width)[None, :]
    place = row.to(tl.int64)[:, None] * width + column[None, :]
    of_score = tl.load(gradient + row, mask=row < rows, other=0.0)
    values = tl.load(inputs + place, mask=mask, other=0.0)
    tl.store(parts + tl.program_id(0) * width + column, tl.sum(values * of_score[:, None], axis=0), mask=column < width)
    tl.store(bias_parts + tl.program_id(0), tl.sum(of_score, axis=0))
    weights = tl.load(weight + column, mask=column < width, other=0.0)
    tl.store(to_inputs + place, of_score[:, None] * weights[None, :], mask=mask)


@triton.jit
def _add_up(parts, sums, count, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The sum of each column."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, count, ROWS):
        row = start + tl.arange(0, ROWS)
        mask = (row < count)[:, None] & (column < width)[None, :]
        total += tl.load(parts + row[:, None] * width + column[None, :], mask=mask, other=0.0)
    tl.store(sums + column, tl.sum(total, axis=0), mask=column < width)


class _ReluLayers(torch.autograd.Function):
    """`h ← max(0, W h + b)`, layer after layer."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, *parameters: Tensor) -> Tensor:
        """Return what the last layer says; `parameters` are weight and bias of each layer in turn."""
        outputs = [inputs.contiguous()]
        for weight, bias in zip(parameters[::2], parameters[1::2], strict=True):
            outputs.append(torch._addmm_activation(bias, outputs[-1], weight.t()))
        ctx.save_for_backward(*outputs, *parameters[::2])
        ctx.layers = len(parameters) // 2
        return outputs[-1]

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the inputs and of all parameters."""
        outputs, weights = ctx.saved_tensors[: ctx.layers + 1], ctx.saved_tensors[ctx.layers + 1 :]
        here, beside = torch.cuda.current_stream(), _beside(gradient.device)
        found: list[Tensor] = []
        in_use: list[Tensor] = []  # by the other stream, so their memory must not be given to this one
        for (below, output), weight in zip(reversed([*pairwise(outputs)]), reversed(weights), strict=True):
            masked, parts = _of_relu(gradient.contiguous(), output)
            in_use += masked, parts
            beside.wait_stream(here)
            with torch.cuda.stream(beside):
                found += _sums(parts), masked.t().mm(below)
            if below is not outputs[0] or ctx.needs_input_grad[0]:
                gradient = masked.mm(weight)
        here.wait_stream(beside)
        return gradient if ctx.needs_input_grad[0] else None, *reversed(found)


class _Score(torch.autograd.Function):
    """`z = x·w + b`, one number for each row."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return the scores, shape `[n, 1]`."""
        inputs, (rows, width) = inputs.contiguous(), inputs.shape
        scores = inputs.new_empty(rows, 1)
        _scores[(triton.cdiv(rows, _ROWS),)](inputs, weight, bias, scores, rows, width, _ROWS, _COLUMNS)
        ctx.save_for_backward(inputs, weight)
        return scores

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of inputs, weight and bias."""
        inputs, weight = ctx.saved_tensors
        rows, width = inputs.shape
        to_inputs, tiles = torch.empty_like(inputs), triton.cdiv(rows, _ROWS)
        parts, bias_parts = inputs.new_empty(tiles, width), inputs.new_empty(tiles, 1)
        _score_gradients[(tiles, triton.cdiv(width, _COLUMNS))](
            gradient.contiguous(), inputs, weight, to_inputs, parts, bias_parts, rows, width, _ROWS, _COLUMNS
        )
        return to_inputs, _sums(parts)[None, :], _sums(bias_parts)


def relu_layers(inputs: Tensor, *parameters: Tensor) -> Tensor:
    """Return what layers with a ReLU behind each make of a batch; `parameters` are weight and bias of each in turn."""
    outputs: Tensor = _ReluLayers.apply(inputs, *parameters)  # type: ignore[no-untyped-call]
    return outputs


def score(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return what a linear layer with one output makes of a batch, shape `[n, 1]`."""
    scores: Tensor = _Score.apply(inputs, weight, bias)  # type: ignore[no-untyped-call]
    return scores


@cache
def _beside(device: torch.device) -> torch.cuda.Stream:
    """The stream of the layers' own gradients."""
    return torch.cuda.Stream(device)


def _of_relu(gradient: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of a ReLU's input, and parts of its sum over the rows."""
    rows, width = gradient.shape
    masked, tiles = torch.empty_like(gradient), triton.cdiv(rows, _ROWS)
    parts = gradient.new_empty(tiles, width)
    _masked[(tiles, triton.cdiv(width, _COLUMNS))](gradient, output, masked, parts, rows, width, _ROWS, _COLUMNS)
    return masked, parts


def _sums(parts: Tensor) -> Tensor:
    """Return the sum of each column."""
    count, width = parts.shape
    sums = parts.new_empty(width)
    _add_up[(triton.cdiv(width, 32),)](parts, sums, count, width, 64, 32)
    return sums
