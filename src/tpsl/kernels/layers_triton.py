"""Dense layers on a CUDA device: what PyTorch does in many small kernels, in few, and side by side where it can be.

A layer's own gradient does not stand in the way of the layers below it, so it is computed on a stream of its own. The
products are cuBLAS's, in the precision that PyTorch is set to; under autocast their factors, and all that lies between
two layers, are bfloat16. All sums have a fixed order, so a step that is repeated has the same bits, and nothing waits
for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from tpsl.kernels.pieces import pieces
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
    values = tl.where(is_active, tl.load(gradient + place, mask=mask, other=0.0).to(tl.float32), 0.0)
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
        total += tl.sum(
            values.to(tl.float32) * tl.load(weight + column, mask=column < width, other=0.0)[None, :], axis=1
        )
    tl.store(scores + row, total + tl.load(bias), mask=row < rows)


@triton.jit(do_not_specialize=["rows"])
def _through_score(
    gradient, weight, output, masked, parts, score_parts, rows, width, all_widths,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The same as `_masked` where `z = x·w + b` is behind the ReLU; also the gradients of w and after it b, summed."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = (row < rows)[:, None] & (column < width)[None, :]
    place = row.to(tl.int64)[:, None] * width + column[None, :]
    of_score = tl.load(gradient + row, mask=row < rows, other=0.0)
    inputs = tl.load(output + place, mask=mask, other=0.0).to(tl.float32)
    weights = tl.load(weight + column, mask=column < width, other=0.0)
    values = tl.where(inputs > 0, of_score[:, None] * weights[None, :], 0.0)
    tl.store(masked + place, values, mask=mask)
    part = tl.program_id(0) * all_widths
    tl.store(parts + part + column, tl.sum(values, axis=0), mask=column < width)
    tl.store(score_parts + part + column, tl.sum(inputs * of_score[:, None], axis=0), mask=column < width)
    tl.store(score_parts + part + width, tl.sum(of_score, axis=0))


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
    """`h ← max(0, W h + b)`, layer after layer; if `is_scored`, `z = h·w + b` behind them."""

    @staticmethod
    def forward(ctx: Any, is_scored: bool, inputs: Tensor, *parameters: Tensor) -> Tensor:
        """Return what the last layer says; `parameters` are weight and bias of each layer in turn."""
        of_score = parameters[-2:] if is_scored else ()
        parameters = parameters[: len(parameters) - len(of_score)]
        ctx.input_type, factor_type = (
            inputs.dtype,
            torch.bfloat16 if torch.is_autocast_enabled("cuda") else torch.float32,
        )
        factors = _converted(parameters, factor_type)
        outputs, weights = [inputs.to(factor_type).contiguous()], factors[::2]
        ctx.layers, ctx.width, ctx.is_scored = len(weights), weights[0].shape[1], is_scored
        if padding := inputs.shape[1] - ctx.width:
            weights[0] = functional.pad(weights[0], (0, padding))
        by_column, ctx.wait_for_copies = _laid_out(weights)
        for weight, bias in zip(weights, factors[1::2], strict=True):
            outputs.append(torch._addmm_activation(bias, outputs[-1], weight.t()))
        ctx.save_for_backward(*outputs, *by_column, *of_score[:1])
        return _scored(outputs[-1], *of_score) if is_scored else outputs[-1].float()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the inputs and of all parameters."""
        outputs, weights = ctx.saved_tensors[: ctx.layers + 1], ctx.saved_tensors[ctx.layers + 1 :]
        score_weight = weights[-1] if ctx.is_scored else None
        beside, widths = side_stream(gradient.device), [output.shape[1] for output in outputs[1:]]
        of_score = [widths[-1], 1] if ctx.is_scored else []
        shape = triton.cdiv(len(gradient), _ROWS), sum(widths) + sum(of_score)
        parts = torch.empty(shape, device=gradient.device)
        of_weights: list[Tensor] = []
        ctx.wait_for_copies()
        for layer, part in reversed([*enumerate(parts.split([*widths, *of_score], dim=1)[: ctx.layers])]):
            below, output = outputs[layer : layer + 2]
            masked = _masked_gradient(gradient.contiguous(), output, part, score_weight)
            score_weight = None
            with beside.running(masked, below):
                of_weight = _product(masked.t(), below, torch.float32)
                of_weights.insert(0, of_weight if layer else of_weight[:, : ctx.width].contiguous())
            if layer or ctx.needs_input_grad[1]:
                gradient = _product(masked, weights[layer], masked.dtype if layer else ctx.input_type)
        with beside.running(parts):
            sums = _sums(parts).split([*widths, *of_score])
        beside.join()
        of_layers = chain.from_iterable(zip(of_weights, sums[: ctx.layers], strict=True))
        of_last = (sums[-2][None], sums[-1]) if ctx.is_scored else ()
        return None, gradient if ctx.needs_input_grad[1] else None, *of_layers, *of_last


def relu_layers(inputs: Tensor, *parameters: Tensor) -> Tensor:
    """Return what layers with a ReLU behind each make of a batch; `parameters` are weight and bias of each in turn.

    The inputs may have columns of zeros behind those that the first layer reads.
    """
    outputs: Tensor = _ReluLayers.apply(False, inputs, *parameters)
    return outputs


def score(inputs: Tensor, *parameters: Tensor) -> Tensor:
    """Return what such layers and a last one with one output and no ReLU make of a batch, shape `[n, 1]`."""
    scores: Tensor = _ReluLayers.apply(True, inputs, *parameters)
    return scores


def _converted(parameters: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Return the same numbers in a type, all in one kernel."""
    if parameters[0].dtype == dtype:
        return list(parameters)
    converted = [torch.empty_like(parameter, dtype=dtype) for parameter in parameters]
    torch._foreach_copy_(pieces(converted), pieces(parameters))
    return converted


def _product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a product as numbers of this type, rounded once."""
    return left.mm(right) if left.dtype == dtype else torch.mm(left, right, out_dtype=dtype)


def _laid_out(weights: Sequence[Tensor]) -> tuple[list[Tensor], Callable[[], None]]:
    """Return weights as the gradients of inputs are fastest taken through them, and what has to be called before.

    Where a layer has more inputs than outputs, cuBLAS's products in TF32 are faster if a copy lies column by column:
    measured on an H200, batch 8192, 128 × 624 takes 13 µs instead of 18, but 128 × 128 takes 11 instead of 8. Copies
    are made beside the forward pass.
    """
    in_tf32, beside = torch.get_float32_matmul_precision() != "highest", side_stream(weights[0].device)
    copied = [weight for weight in weights if in_tf32 and weight.shape[1] > weight.shape[0]]
    if not copied:
        return list(weights), lambda: None
    copies = {id(weight): weight.new_empty(weight.shape[::-1]).t() for weight in copied}
    with beside.running(*copied, *copies.values()):
        for weight in copied:
            copies[id(weight)].copy_(weight)
    return [copies.get(id(weight), weight) for weight in weights], beside.mark()


def _scored(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return `z = x·w + b`, shape `[n, 1]`."""
    rows, width = inputs.shape
    scores = torch.empty(rows, 1, device=inputs.device)
    _scores[(triton.cdiv(rows, _ROWS),)](inputs, weight, bias, scores, rows, width, _ROWS, _COLUMNS)
    return scores


def _masked_gradient(gradient: Tensor, output: Tensor, parts: Tensor, score_weight: Tensor | None) -> Tensor:
    """Return the gradient of a ReLU's input; its sums over the rows of each tile go into `parts`.

    If a score is behind the ReLU, `gradient` is that of the score, and the sums of its weight and bias follow `parts`.
    """
    (rows, width), tiles = output.shape, len(parts)
    masked, shape = torch.empty_like(output), (rows, width, parts.stride(0), _ROWS, _COLUMNS)
    grid = tiles, triton.cdiv(width, _COLUMNS)
    if score_weight is None:
        _masked[grid](gradient, output, masked, parts, *shape)
    else:
        score_parts = parts.as_strided(parts.shape, parts.stride(), parts.storage_offset() + width)
        _through_score[grid](gradient, score_weight, output, masked, parts, score_parts, *shape)
    return masked


def _sums(parts: Tensor) -> Tensor:
    """Return the sum of each column."""
    count, width = parts.shape
    sums = parts.new_empty(width)
    _add_up[(triton.cdiv(width, 32),)](parts, sums, count, width, 64, 32)
    return sums
