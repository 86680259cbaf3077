"""Dense layers on a CUDA device: the gradients of a ReLU and of its bias in one kernel, where PyTorch has several.

With PyTorch's own layers a step takes 1.6 times as long on an H200. A layer's own gradient does not stand in the way of
the layers below it, so it is computed on a stream of its own. The products are cuBLAS's, in the precision that PyTorch
is set to; under autocast their factors, and all that lies between two layers, are bfloat16. All sums have a fixed
order, so a step that is repeated has the same bits, and nothing waits for the device.
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

from tpsl.kernels.rows import stream_beside

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


class FusedLayers(torch.autograd.Function):
    """`h ← max(0, W h + b)`, layer after layer; behind the inputs that the first one reads there may be zeros."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, *parameters: Tensor) -> Tensor:
        """Return what the last layer says; `parameters` are weight and bias of each layer in turn."""
        ctx.input_type, ctx.layers, ctx.width = inputs.dtype, len(parameters) // 2, parameters[0].shape[1]
        factor_type = torch.bfloat16 if torch.is_autocast_enabled("cuda") else torch.float32
        factors = [each.to(factor_type) for each in parameters]
        outputs, weights = [inputs.to(factor_type).contiguous()], factors[::2]
        if padding := inputs.shape[1] - ctx.width:
            weights[0] = functional.pad(weights[0], (0, padding))
        for weight, bias in zip(weights, factors[1::2], strict=True):
            outputs.append(torch._addmm_activation(bias, outputs[-1], weight.t()))
        ctx.save_for_backward(*outputs, *weights)
        return outputs[-1].float()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the inputs and of all parameters."""
        outputs, weights = ctx.saved_tensors[: ctx.layers + 1], ctx.saved_tensors[ctx.layers + 1 :]
        # All that is on the stream beside is waited for within this pass.
        current, beside = torch.cuda.current_stream(), stream_beside(gradient.device, priority=-1)
        widths = [output.shape[1] for output in outputs[1:]]
        parts = torch.empty(triton.cdiv(len(gradient), _ROWS), sum(widths), device=gradient.device)
        of_parts, sums, of_weights = parts.split(widths, dim=1), parts.new_empty(sum(widths)), list[Tensor]()
        for layer in reversed(range(ctx.layers)):
            below, output = outputs[layer : layer + 2]
            (rows, width), masked = output.shape, torch.empty_like(output)
            _masked[len(parts), triton.cdiv(width, _COLUMNS)](
                gradient.contiguous(), output, masked, of_parts[layer], rows, width, len(sums), _ROWS, _COLUMNS
            )
            beside.wait_stream(current)
            with torch.cuda.stream(beside):
                of_weight = _product(masked.t(), below, torch.float32)
                of_weights.insert(0, of_weight if layer else of_weight[:, : ctx.width].contiguous())
            if layer or ctx.needs_input_grad[0]:
                gradient = _product(masked, weights[layer], masked.dtype if layer else ctx.input_type)
        _add_up[(triton.cdiv(len(sums), 32),)](parts, sums, len(parts), len(sums), 64, 32)
        current.wait_stream(beside)
        of_layers = chain.from_iterable(zip(of_weights, sums.split(widths), strict=True))
        return gradient if ctx.needs_input_grad[0] else None, *of_layers


def _product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a product as numbers of this type, rounded once."""
    return left.mm(right) if left.dtype == dtype else torch.mm(left, right, out_dtype=dtype)
