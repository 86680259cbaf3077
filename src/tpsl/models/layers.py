"""Dense layers: PyTorch's own, but in training on a CUDA device with fewer and larger kernels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor, nn


class ReluLayers(nn.Sequential):
    """Linear layers, each with a ReLU behind it."""

    def __init__(self, width: int, widths: Sequence[int]) -> None:
        layers: list[nn.Module] = []
        for next_width in widths:
            layers += [nn.Linear(width, next_width), nn.ReLU()]
            width = next_width
        super().__init__(*layers)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return what the last layer says."""
        if len(self) == 0 or not _has_kernels(inputs):
            outputs: Tensor = super().forward(inputs)
            return outputs
        from tpsl.kernels.layers_triton import relu_layers

        return relu_layers(inputs, *self.parameters())


class Output(nn.Linear):
    """The last layer."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits."""
        if self.out_features != 1 or not _has_kernels(inputs):
            return super().forward(inputs)
        from tpsl.kernels.layers_triton import score

        return score(inputs, self.weight, self.bias)


def _has_kernels(inputs: Tensor) -> bool:
    return inputs.is_cuda and torch.is_grad_enabled() and _has_triton()


@cache
def _has_triton() -> bool:
    """Triton comes with PyTorch's builds for CUDA."""
    return find_spec("triton") is not None
