"""Dense layers: PyTorch's own, but in training on a CUDA device with fewer and larger kernels.

On a CPU, matrices whose rows do not fill cache lines cost up to 1.8 times as much: measured, the product that takes
gradients through the paper's first layer (26 fields and 13 numbers, batch 8192) takes 19 ms with rows of 429 numbers
and 11 with rows of 432. On a GPU the fast products need rows of whole 16 bytes. So in training the inputs have some
columns of zeros behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.nn import functional

_LINE = 16
"""Numbers in a cache line."""


def padded_width(width: int) -> int:
    """Return how wide inputs of this width should be made in training."""
    return -(-width // _LINE) * _LINE


class PaddedLinear(nn.Linear):
    """A linear layer that reads the first columns of its inputs; any others have to be zeros."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return what the layer says."""
        if (padding := inputs.shape[1] - self.in_features) == 0:
            return super().forward(inputs)
        return functional.linear(inputs, functional.pad(self.weight, (0, padding)), self.bias)


class ReluLayers(nn.Sequential):
    """Linear layers, each with a ReLU behind it; inputs may be padded with zeros."""

    def __init__(self, width: int, widths: Sequence[int]) -> None:
        layers: list[nn.Module] = []
        for next_width in widths:
            layers += [PaddedLinear(width, next_width), nn.ReLU(inplace=True)]
            width = next_width
        super().__init__(*layers)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return what the last layer says."""
        if len(self) == 0 or not _has_kernels(inputs):
            outputs: Tensor = super().forward(inputs)  # type: ignore[no-untyped-call]
            return outputs
        from tpsl.kernels.layers_triton import relu_layers

        return relu_layers(inputs, *self.parameters())


class Output(nn.Linear):
    """The last layer, in float32 whatever the precision of products is."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits."""
        if not torch.is_autocast_enabled(inputs.device.type):
            return super().forward(inputs)
        with torch.autocast(inputs.device.type, enabled=False):
            return super().forward(inputs.float())

    def after(self, layers: ReluLayers, inputs: Tensor) -> Tensor:
        """Return the logits that this layer says behind others."""
        if self.out_features != 1 or len(layers) == 0 or not _has_kernels(inputs):
            logits: Tensor = self(layers(inputs))
            return logits
        from tpsl.kernels.layers_triton import score

        return score(inputs, *layers.parameters(), self.weight, self.bias)


def _has_kernels(inputs: Tensor) -> bool:
    return inputs.is_cuda and torch.is_grad_enabled() and _has_triton()


@cache
def _has_triton() -> bool:
    """Triton comes with PyTorch's builds for CUDA."""
    return find_spec("triton") is not None
