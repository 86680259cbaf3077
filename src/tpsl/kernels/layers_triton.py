"""Dense layers on a CUDA device: what PyTorch does in many small kernels, in few, and side by side where it can be.

A layer's own gradient does not stand in the way of the layers below it, so it is computed on a stream of its own. The
products are cuBLAS's, in the precision that PyTorch is set to. All sums have a fixed order, so a step that is repeated
has the same bits, and nothing waits for the device.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from tpsl.kernels.side_stream import side_stream

_ROWS, _COLUMNS = 64, 128
"""The tile of one program."""


@triton.jit(do_not_specialize=["rows"])
def _masked(gradient, output, masked, parts, rows, width, all_widths, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The gradient of a ReLU's input, and its sum over each tile's rows, which stand beside those of other layers."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = (row < rows)[:, None] & (column < width)[None, :]
    place = row.to(tl.int64)[:, None] * width + column[None, :]
    is_active = tl.load(output + place, mask=mask, other=0.0) > 0
    values = tl.where(is_active, tl.load(gradient + place, mask=mask, other=0.0), 0.0)
    tl.store(masked + place, values, mask=mask)
    tl.store(parts + tl.program_id(0) * all_widths + column, tl.sum(values, axis=0), mask=column < width)


@triton.jit(do_not_specialize=["rows"])
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


@triton.jit(do_not_specialize=["rows"])
def _score_gradients(
    gradient, inputs, weight, to_inputs, parts, rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """The gradients of `z = x·w + b`: of x; and of w and after it b, summed over each tile's rows."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = (row < rows)[:, None] & (column < width)[None, :]
    place = row.to(tl.int64)[:, None] * width + column[None, :]
    of_score = tl.load(gradient + row, mask=row < rows, other=0.0)
    values = tl.load(inputs + place, mask=mask, other=0.0)
    part = parts + tl.program_id(0) * (width + 1)
    tl.store(part + column, tl.sum(values * of_score[:, None], axis=0), mask=column < width)
    tl.store(part + width, tl.sum(of_score, axis=0))
    weights = tl.load(weight + column, mask=column < width, other=0.0)
    tl.store(to_inputs + place, of_score[:, None] * weights[None, :], mask=mask)


@triton.jit(do_not_specialize=["count"])
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
        outputs, weights = [inputs.contiguous()], list(parameters[::2])
        ctx.layers, ctx.width = len(weights), weights[0].shape[1]
        if padding := inputs.shape[1] - ctx.width:
            weights[0] = functional.pad(weights[0], (0, padding))
        for weight, bias in zip(weights, parameters[1::2], strict=True):
            outputs.append(torch._addmm_activation(bias, outputs[-1], weight.t()))
        ctx.save_for_backward(*outputs, *weights)
        return outputs[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the inputs and of all parameters."""
        outputs, weights = ctx.saved_tensors[: ctx.layers + 1], ctx.saved_tensors[ctx.layers + 1 :]
        beside, widths = side_stream(gradient.device), [len(weight) for weight in weights]
        parts = gradient.new_empty(triton.cdiv(len(gradient), _ROWS), sum(widths))
        of_weights: list[Tensor] = []
        for layer, part in reversed([*enumerate(parts.split(widths, dim=1))]):
            below, output = outputs[layer : layer + 2]
            masked = _of_relu(gradient.contiguous(), output, part)
            with beside.running(masked, below):
                of_weight = masked.t().mm(below)
                of_weights.insert(0, of_weight if layer else of_weight[:, : ctx.width].contiguous())
            if layer or ctx.needs_input_grad[0]:
                gradient = masked.mm(weights[layer])
        with beside.running(parts):
            of_biases = _sums(parts).split(widths)
        beside.join()
        of_layers = chain.from_iterable(zip(of_weights, of_biases, strict=True))
        return gradient if ctx.needs_input_grad[0] else None, *of_layers


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
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of inputs, weight and bias."""
        inputs, weight = ctx.saved_tensors
        rows, width = inputs.shape
        to_inputs, tiles = torch.empty_like(inputs), triton.cdiv(rows, _ROWS)
        parts = inputs.new_empty(tiles, width + 1)
        _score_gradients[(tiles, triton.cdiv(width, _COLUMNS))](
            gradient.contiguous(), inputs, weight, to_inputs, parts, rows, width, _ROWS, _COLUMNS
        )
        beside = side_stream(gradient.device)
        with beside.running(parts):
            sums = _sums(parts)
        beside.join()
        return to_inputs, sums[None, :-1], sums[-1:]


def relu_layers(inputs: Tensor, *parameters: Tensor) -> Tensor:
    """Return what layers with a ReLU behind each make of a batch; `parameters` are weight and bias of each in turn.

    The inputs may have columns of zeros behind those that the first layer reads.
    """
    outputs: Tensor = _ReluLayers.apply(inputs, *parameters)
    return outputs


def score(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return what a linear layer with one output makes of a batch, shape `[n, 1]`."""
    scores: Tensor = _Score.apply(inputs, weight, bias)
    return scores


def _of_relu(gradient: Tensor, output: Tensor, parts: Tensor) -> Tensor:
    """Return the gradient of a ReLU's input; its sums over the rows of each tile go into `parts`."""
    (rows, width), (tiles, _) = gradient.shape, parts.shape
    masked, grid = torch.empty_like(gradient), (tiles, triton.cdiv(width, _COLUMNS))
    _masked[grid](gradient, output, masked, parts, rows, width, parts.stride(0), _ROWS, _COLUMNS)
    return masked


def _sums(parts: Tensor) -> Tensor:
    """Return the sum of each column."""
    count, width = parts.shape
    sums = parts.new_empty(width)
    _add_up[(triton.cdiv(width, 32),)](parts, sums, count, width, 64, 32)
    return sums
