"""The paper's network (section 5), cut in two.

`Bottom` is f: an embedding layer and two 128-unit ReLU layers; its output is the cut. `Top` is h: two 128-unit ReLU
layers and the output. A label party with features of its own has a `Bottom` too, whose output joins the others at
the cut. These are the halves of one network, and what a party has that brings none of its own; `members` holds
whatever a party has.

With a wide part (Wide & Deep, Cheng et al. 2016) each party's last number is a score that it has fitted on noisy labels
(`tpsl.heads.wide_part`). The bottom half reads it and also passes it on beside its output; the top half adds the
scores of all parties to its logit, and starts from nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.nn import functional

from tpsl.models.model_config import ModelConfig
from tpsl.models.table import Table


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


def _has_kernels(inputs: Tensor) -> bool:
    return inputs.is_cuda and torch.is_grad_enabled() and _has_triton()


@cache
def _has_triton() -> bool:
    """Triton comes with PyTorch's builds for CUDA."""
    return find_spec("triton") is not None


class Bottom(nn.Module):
    """`f`: categories and numbers of one party → its share of the cut.

    With a wide part the last number is the score: it goes into the layers, and beside their output into the cut.
    """

    def __init__(
        self,
        embedding_rows: int,
        categorical_fields: int,
        numeric_fields: int,
        config: ModelConfig,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.embedding: Table | None = None
        if categorical_fields:
            self.embedding = Table(embedding_rows, config.embedding_dim, lazy=config.is_lazy(embedding_rows))
        width = categorical_fields * config.embedding_dim + numeric_fields
        self.layers = ReluLayers(width, config.bottom)
        self.reads = (embedding_rows if categorical_fields else 0, categorical_fields, numeric_fields)
        self.deep_width, self.width = config.bottom[-1], config.bottom[-1] + config.wide
        draw_weights(self, generator)

    def forward(self, categorical: Tensor, numeric: Tensor) -> Tensor:
        """Return the embeddings `e = f(x)` of a batch, shape `[n, width]`."""
        output = self.deep(categorical, numeric)
        return output if self.width == self.deep_width else torch.cat([output, numeric[:, -1:]], dim=1)

    def deep(self, categorical: Tensor, numeric: Tensor) -> Tensor:
        """Return what the layers say, without the score: shape `[n, deep_width]`."""
        inputs = numeric if self.embedding is None else self.embedding.beside(categorical, numeric)
        output: Tensor = self.layers(inputs)
        return output


class Top(nn.Module):
    """`h`: the cut → logits, one for two classes, k for k classes.

    With a wide part the logit is what the layers say plus the weighted scores. It begins as the mean of the scores.
    """

    def __init__(self, cut_width: int, classes: int, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        self._share_width = config.share_width("any party: a wide part has one width for all")
        shares = cut_width // self._share_width if config.wide else 0
        deep_width = cut_width - shares
        self.layers = ReluLayers(deep_width, config.top)
        self.output = Output(config.top[-1] if config.top else deep_width, 1 if classes == 2 else classes)
        draw_weights(self, generator)
        self.score_weights = None
        if config.wide:
            if classes != 2:
                raise ValueError(f"a wide part is for two classes, not for {classes}: set model.wide to false")
            nn.init.zeros_(self.output.weight)
            self.score_weights = nn.Parameter(torch.full((shares,), 1 / shares))

    def forward(self, cut: Tensor) -> Tensor:
        """Return the logits, shape `[n]` for two classes and `[n, k]` for k."""
        if self.score_weights is not None:
            shares = cut.reshape(cut.shape[0], cut.shape[1] // self._share_width, self._share_width)
            deep = self.output(self.layers(shares[:, :, :-1].flatten(start_dim=1)))
            logit: Tensor = (deep + shares[:, :, -1] @ self.score_weights[:, None]).squeeze(1)
            return logit
        logits: Tensor = self.output(self.layers(cut))
        return logits.squeeze(1) if logits.shape[1] == 1 else logits


def draw_weights(module: nn.Module, generator: torch.Generator) -> None:
    """Draw weights from `N(0, 2/fan_in)`, embeddings from `N(0, 1/dim)`, and set biases to 0.

    Embeddings are the first layer's inputs; variance 1/dim makes a field count as much as one standardised number.
    """
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, nn.Linear):
                part.weight.normal_(0.0, math.sqrt(2.0 / part.in_features), generator=generator)
                part.bias.zero_()
            elif isinstance(part, nn.Embedding):
                part.weight.normal_(0.0, math.sqrt(1.0 / part.embedding_dim), generator=generator)
