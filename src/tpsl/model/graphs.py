"""A party's trained half as one module of tensors alone: what `torch.export` and ONNX can hold."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tpsl.model.committee import Committee
from tpsl.model.half_loading import Embedder, Predictor, SideBySide, TrainedBottom, TrainedTop
from tpsl.model.local_head import TrainedLocalHead
from tpsl.model.statistic_head import CodesOfFields, TrainedStatisticHead, head_inputs
from tpsl.model.wide_graph import WideScore


class BottomGraph(nn.Module):
    """Categories and numbers as the encoder gives them, or inputs of the party's own → the party's share.

    With a wide part the score is computed inside. Codes of fields and a frozen pre-trained embedding come before the
    cut, if they are sent.
    """

    def __init__(self, half: Embedder) -> None:
        super().__init__()
        halves = half.parts if isinstance(half, SideBySide) else [half]
        self.parts = nn.ModuleList(map(_part, halves))

    def forward(self, *batch: Tensor) -> Tensor:
        """Return embeddings, float32 of shape `[n, width]`."""
        return torch.cat([part(*batch) for part in self.parts], dim=1)


class TopGraph(nn.Module):
    """The shares of the feature parties, then what the label party's own bottom half reads → probabilities."""

    def __init__(self, predictor: Predictor, own: Embedder | None) -> None:
        super().__init__()
        self._received = len(predictor.widths) - (own is not None)
        self.own = None if own is None else BottomGraph(own)
        self.head = _head(predictor)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the probability of class 1, `[n]`, or of each of k classes, `[n, k]`."""
        received, own = list(inputs[: self._received]), inputs[self._received :]
        probabilities: Tensor = self.head(received, [] if self.own is None else [self.own(*own)])
        return probabilities


def _part(half: Embedder) -> nn.Module:
    """Return what makes one part of a share."""
    if isinstance(half, CodesOfFields):
        return half.book
    if not isinstance(half, TrainedBottom):
        raise TypeError(f"{type(half).__name__} is no part of a share")
    return _OneBottom(half)


def _head(predictor: Predictor) -> nn.Module:
    """Return what turns shares, those received and the label party's own, into probabilities."""
    if isinstance(predictor, Committee):
        return _CommitteeHead(predictor)
    if isinstance(predictor, TrainedLocalHead):
        return _LocalHead(predictor)
    if isinstance(predictor, TrainedStatisticHead):
        return _StatisticHead(predictor)
    return _PrivateHead(predictor)


class _OneBottom(nn.Module):
    """One bottom half, with its wide part."""

    def __init__(self, half: TrainedBottom) -> None:
        super().__init__()
        self.bottom = half.bottom
        self.wide = None if half.wide is None else WideScore(half.wide)

    def forward(self, *batch: Tensor) -> Tensor:
        if self.wide is not None:
            categorical, numeric = batch
            batch = (categorical, torch.cat([numeric, self.wide(categorical, numeric)], dim=1))
        share: Tensor = self.bottom(*batch)
        return share


class _PrivateHead(nn.Module):
    """The top half. It reads the end of each share, its cut."""

    def __init__(self, half: Predictor) -> None:
        super().__init__()
        if not isinstance(half, TrainedTop):
            raise TypeError(f"{type(half).__name__} is no top half of a network")
        self.top, self._loss, self._cuts = half.top, half.loss, list(half.cuts.values())

    def forward(self, received: list[Tensor], own: list[Tensor]) -> Tensor:
        return self._loss.probabilities(self._mean_logits([*received, *own]))

    def log_odds(self, shares: list[Tensor]) -> Tensor:
        found = self._loss.log_odds(self._mean_logits(shares))
        return found[:, None] if found.ndim == 1 else found

    def _mean_logits(self, shares: list[Tensor]) -> Tensor:
        z: Tensor = self.top([share[:, -cut:] for share, cut in zip(shares, self._cuts, strict=True)])
        return z.mean(dim=0)


class _CommitteeHead(nn.Module):
    """The heads of a committee's members, mixed by their weights in float64, as `tpsl.model.committee` does."""

    def __init__(self, half: Committee) -> None:
        super().__init__()
        self.members = nn.ModuleList(_head(member) for _, member in half.members)
        self._weights = [weight for weight, _ in half.members]
        self._widths = [[member.widths[party] for _, member in half.members] for party in half.widths]

    def forward(self, received: list[Tensor], own: list[Tensor]) -> Tensor:
        shares = [
            torch.split(share, widths, dim=1) for share, widths in zip([*received, *own], self._widths, strict=True)
        ]
        mixed = []
        for number, (weight, member) in enumerate(zip(self._weights, self.members, strict=True)):
            parts = [share[number] for share in shares]
            mixed.append(weight * member(parts[: len(received)], parts[len(received) :]).double())
        return torch.stack(mixed).sum(dim=0).float()


class _LocalHead(nn.Module):
    """The local head. NOT PRIVATE."""

    def __init__(self, half: TrainedLocalHead) -> None:
        super().__init__()
        self.head = half.head
        self.private = None if half.top is None else _PrivateHead(half.top)
        self._reads = list(half.reads.values())

    def forward(self, received: list[Tensor], own: list[Tensor]) -> Tensor:
        private = [] if self.private is None else [self.private.log_odds([*received, *own])]
        read = [share[:, -width:] for share, width in zip([*received, *own], self._reads, strict=True)]
        inputs = [*read[: len(received)], *private, *read[len(received) :]]
        probabilities = torch.softmax(self.head(torch.cat(inputs, dim=1)), dim=1)
        return probabilities[:, 1] if probabilities.shape[1] == 2 else probabilities


class _StatisticHead(nn.Module):
    """The private head of a statistic, and the top half whose log-odds it reads."""

    def __init__(self, half: TrainedStatisticHead) -> None:
        super().__init__()
        self.head, self._own_codes = half.head, half.own_codes
        self.top = None if half.top is None else _PrivateHead(half.top)

    def forward(self, received: list[Tensor], own: list[Tensor]) -> Tensor:
        log_odds = [] if self.top is None else [self.top.log_odds([*received, *own])]
        return self.head.probabilities(head_inputs(received, log_odds, own, self._own_codes))
