"""Dense layers on a CUDA device, with a side stream for what nothing waits for.

A layer's own gradient does not stand in the way of the layers below it, so it is computed on a stream of its own. The
products are cuBLAS's, in the precision that PyTorch is set to; under autocast their factors, and all that lies between
two layers, are bfloat16. All sums have a fixed order, so a step that is repeated has the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional


class SideStream:
    """Work beside the current stream of a CUDA device. On a device without streams it is done at once, in turn.

    Within `open()` a `join()` is put off: whatever needs the results has to run beside, too.
    """

    def __init__(self, device: torch.device) -> None:
        # Its kernels are small and come between large ones: they go first.
        on_gpu = device.type == "cuda"
        self._stream = torch.cuda.Stream(device, priority=-1) if on_gpu else None  # type: ignore[no-untyped-call]
        self._in_use: list[Tensor] = []
        self._is_open = False

    @contextmanager
    def running(self, *inputs: Tensor) -> Iterator[None]:
        """Run what is launched here beside, after all that was launched before; the inputs are kept until `join`."""
        if self._stream is None:
            yield
            return
        # Memory that is let go could be given out on the current stream while this one still reads it.
        self._in_use += inputs
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """Have the current stream wait for all that runs beside."""
        if self._stream is not None and not self._is_open:
            torch.cuda.current_stream().wait_stream(self._stream)
            self._in_use.clear()

    @contextmanager
    def open(self) -> Iterator[None]:
        """Join at the end of this context, and not before."""
        self._is_open = True
        try:
            yield
        finally:
            self._is_open = False
            self.join()


@cache
def side_stream(device: torch.device) -> SideStream:
    """Return the side stream of a device."""
    return SideStream(device)


class _Layers(torch.autograd.Function):
    """`h ← max(0, W h + b)`, layer after layer; if `has_output`, the last is `z = W h + b` in float32."""

    @staticmethod
    def forward(ctx: Any, has_output: bool, inputs: Tensor, *parameters: Tensor) -> Tensor:
        """Return what the last layer says; `parameters` are weight and bias of each layer in turn."""
        of_output = parameters[-2:] if has_output else ()
        factors = list(parameters[: len(parameters) - len(of_output)])
        ctx.input_type, ctx.layers, ctx.width = inputs.dtype, len(factors) // 2, factors[0].shape[1]
        if torch.is_autocast_enabled(inputs.device.type):
            torch._foreach_copy_(rounded := [torch.empty_like(each, dtype=torch.bfloat16) for each in factors], factors)
            factors = rounded
        if padding := inputs.shape[1] - ctx.width:
            factors[0] = functional.pad(factors[0], (0, padding))
        with torch.autocast(inputs.device.type, enabled=False):
            values = [inputs.to(factors[0].dtype).contiguous()]
            for weight, bias in zip(factors[::2], factors[1::2], strict=True):
                values.append(torch._addmm_activation(bias, values[-1], weight.t()))
            ctx.save_for_backward(*values, *factors[::2], *of_output[:1])
            result = values[-1].float()
            return torch.addmm(of_output[1], result, of_output[0].t()) if of_output else result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the inputs and of all parameters."""
        values, weights = ctx.saved_tensors[: ctx.layers + 1], ctx.saved_tensors[ctx.layers + 1 :]
        beside, found = side_stream(gradient.device), []
        if len(weights) > ctx.layers:
            with beside.running(gradient, values[-1]):
                found.append((gradient.t() @ values[-1].float(), gradient.sum(0)))
            gradient = gradient @ weights[-1]
        for layer in reversed(range(ctx.layers)):
            below, output = values[layer : layer + 2]
            masked = torch.ops.aten.threshold_backward(gradient.to(output.dtype), output, 0)
            with beside.running(masked, below):
                of_weight = _product(masked.t(), below, torch.float32)
                of_weight = of_weight if layer else of_weight[:, : ctx.width].contiguous()
                found.append((of_weight, masked.sum(0, dtype=torch.float32)))
            if layer or ctx.needs_input_grad[1]:
                gradient = _product(masked, weights[layer], masked.dtype if layer else ctx.input_type)
        beside.join()
        return None, gradient if ctx.needs_input_grad[1] else None, *chain.from_iterable(reversed(found))


def layers(inputs: Tensor, *parameters: Tensor, has_output: bool = False) -> Tensor:
    """Return what layers with a ReLU behind each make of a batch; `parameters` are weight and bias of each in turn.

    The inputs may have columns of zeros behind those that the first layer reads. With `has_output` the last two
    parameters are those of a layer without a ReLU, in float32 whatever the precision of products is.
    """
    outputs: Tensor = _Layers.apply(has_output, inputs, *parameters)  # type: ignore[no-untyped-call]
    return outputs


def _product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a product as numbers of this type, rounded once."""
    return left.mm(right) if left.dtype == dtype else torch.mm(left, right, out_dtype=dtype)
