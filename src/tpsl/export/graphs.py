"""A party's trained half as one module of tensors alone: what `torch.export` and ONNX can hold."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tpsl.export.wide_graph import WideScore
from tpsl.prediction.halves import TrainedBottom, TrainedTop


class BottomGraph(nn.Module):
    """Categories and numbers as the encoder gives them, or inputs of the party's own → the party's share of the cut.

    With a wide part the score is computed inside.
    """

    def __init__(self, half: TrainedBottom) -> None:
        super().__init__()
        self.bottom = half.bottom
        self.wide = None if half.wide is None else WideScore(half.wide)

    def forward(self, *batch: Tensor) -> Tensor:
        """Return embeddings, float32 of shape `[n, width]`."""
        if self.wide is not None:
            categorical, numeric = batch
            batch = (categorical, torch.cat([numeric, self.wide(categorical, numeric)], dim=1))
        share: Tensor = self.bottom(*batch)
        return share


class TopGraph(nn.Module):
    """The shares of the feature parties, then what the label party's own bottom half reads → probabilities."""

    def __init__(self, half: TrainedTop, own: TrainedBottom | None) -> None:
        super().__init__()
        self.top, self._loss = half.top, half.loss
        self.own = None if own is None else BottomGraph(own)
        self._feature_parties = len(half.widths) - (own is not None)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the probability of class 1, `[n]`, or of each of k classes, `[n, k]`: of the members' mean logits."""
        return self._loss.probabilities(self.top(self._shares(inputs)).mean(dim=0))

    def _shares(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        received, own = inputs[: self._feature_parties], inputs[self._feature_parties :]
        return [*received, *([] if self.own is None else [self.own(*own)])]
