"""What a finished run predicts with, as modules: what is exported is what predicts.

An `Embedder` turns the inputs of one party into its share, what it hands over to the label party. A `Predictor` turns
the shares of all parties into probabilities: the private head, the head of a statistic, an ensemble of either, or the
local head. Only the last one has learned from true labels: it is NOT PRIVATE, and neither it nor its scores leave the
label party. All others are post-processing of the vault's releases.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tpsl.data.features import Features, Inputs, table_features
from tpsl.data.order import Rows
from tpsl.heads.feature_map import CodeBook
from tpsl.heads.local_training import LocalHead
from tpsl.heads.statistic_fit import StatisticHead
from tpsl.heads.wide_part import AdditiveModel
from tpsl.models.halves import Bottom, Bottoms, Tops
from tpsl.net.messages import LABEL_PARTY
from tpsl.perturb import Loss
from tpsl.run.schedule import in_parts
from tpsl.split.batches import Batches

Probabilities = npt.NDArray[np.float32]


class PredictionError(ValueError):
    """A run that cannot predict these records; the message names the file or the party."""


def mixture(members: Iterable[tuple[float, npt.NDArray[np.floating]]]) -> Probabilities:
    """Return the mixture of weighted probabilities, of class 1 (`[n]`) or of each (`[n, k]`); the weights add up to 1.

    Members are asked for one at a time, and added up in their order.
    """
    total: npt.NDArray[np.float64] | None = None
    for weight, probabilities in members:
        weighted = weight * probabilities.astype(np.float64)
        total = weighted if total is None else total + weighted
    if total is None:
        raise ValueError("an ensemble without members predicts nothing")
    return total.astype(np.float32)


class TrainedBottom(nn.Module):
    """A party's bottom half: what its inputs are in a batch → its share of the cut. A wide part is computed inside."""

    def __init__(self, party: str, bottom: Bottoms, wide: AdditiveModel | None = None) -> None:
        super().__init__()
        self.party, self.bottom, self.wide = party, bottom, wide
        self.width = bottom.width

    def forward(self, *batch: Tensor) -> Tensor:
        """Return embeddings, float32 `[n, width]`."""
        if self.wide is not None:
            categorical, numeric = batch
            batch = (categorical, torch.cat([numeric, self.wide(categorical, numeric)], dim=1))
        share: Tensor = self.bottom(*batch)
        return share

    def check(self, inputs: Features | Inputs) -> None:
        """Raise unless the half can read these inputs; a half of the party's own sees for itself."""
        half = self.bottom.members[0]
        if not isinstance(half, Bottom):
            return
        if isinstance(inputs, Features):
            fields = (inputs.categorical.shape[1], inputs.numeric.shape[1] + (self.wide is not None))
            if (inputs.embedding_rows if fields[0] else 0, *fields) == half.reads:
                return
        raise PredictionError(f"the party {self.party!r} has other features than the network was trained with")


class Embedder(nn.Module):
    """What a party hands over of its records, part beside part: codes of fields, a frozen bottom half, the trained one.

    An ensemble has the parts of its members one after the other.
    """

    def __init__(self, parts: Iterable[TrainedBottom | CodeBook]) -> None:
        super().__init__()
        parts = list(parts)
        self.parts = nn.ModuleList(parts)
        self.width = sum(part.width for part in parts)

    def forward(self, *batch: Tensor) -> Tensor:
        """Return the party's share of a batch, float32 `[n, width]`."""
        return torch.cat([part(*batch) for part in self.parts], dim=1)

    @torch.no_grad()
    def embed(self, inputs: Features | Inputs, rows: Rows | None = None) -> Tensor:
        """Return the party's share for these rows of its inputs (all, if None): float32 `[n, width]`.

        Guarantee: bit for bit what the party sends in a run when the same rows are evaluated at once; with a wide part,
        for rows that it was not fitted on.
        """
        for part in self.parts:
            if isinstance(part, TrainedBottom):
                part.check(inputs)
            else:
                table_features(inputs, "statistic.share_codes")
        rows = np.arange(len(inputs), dtype=np.int64) if rows is None else rows
        share: Tensor = self(*Batches(inputs).batch(rows))
        return share


class Predictor(nn.Module):
    """What turns the shares of all parties into probabilities."""

    def __init__(self, widths: Mapping[str, int]) -> None:
        """`widths` are those of the shares in their order: of the feature parties, then of the label party."""
        super().__init__()
        self.widths = widths

    def forward(self, *shares: Tensor) -> Tensor:
        """Return the probability of class 1, `[n]`, or of each of k classes, `[n, k]`."""
        raise NotImplementedError

    @torch.no_grad()
    def probabilities(self, shares: Mapping[str, Tensor]) -> Probabilities:
        """Return the probabilities of the records whose shares these are: of class 1 (`[n]`), or of each of k classes.

        Guarantee: of the private head, bit for bit what the label party computes in a run from the same shares of as
        many records.
        """
        found: Tensor = self(*(shares[party] for party in self.widths))
        return found.numpy()


class PrivateHead(Predictor):
    """The label party's top half."""

    def __init__(self, top: Tops, loss: Loss, cuts: Mapping[str, int], widths: Mapping[str, int] | None = None) -> None:
        """`widths` are those of what parties send, if that is more than their share of the cut, which then is last."""
        super().__init__(widths or cuts)
        self.top, self._loss, self._cuts = top, loss, cuts

    def forward(self, *shares: Tensor) -> Tensor:
        """Return probabilities."""
        return self._loss.probabilities(self._mean_logits(shares))

    def log_odds(self, *shares: Tensor) -> Tensor:
        """Return what a sigmoid or a softmax turns into the probabilities: `[n, 1]` for two classes, `[n, k]` for k."""
        found = self._loss.log_odds(self._mean_logits(shares))
        return found[:, None] if found.ndim == 1 else found

    def _mean_logits(self, shares: Iterable[Tensor]) -> Tensor:
        z: Tensor = self.top(_ends(shares, self._cuts))
        return z.mean(dim=0)


class StatisticPredictor(Predictor):
    """The private head that a statistic gave, on what `tpsl.run.stages.collect` has collected.

    It reads the shares of the feature parties, the label party's own codes, the log-odds of the network, if one was
    trained, and the label party's own cut.
    """

    def __init__(self, head: StatisticHead, top: PrivateHead | None, widths: Mapping[str, int], own_codes: int) -> None:
        """`own_codes` is how many codes the label party's own share begins with."""
        super().__init__(widths)
        self.head, self.top, self._own_codes = head, top, own_codes

    def forward(self, *shares: Tensor) -> Tensor:
        """Return probabilities."""
        return self.head.probabilities(self.inputs(*shares))

    def inputs(self, *shares: Tensor) -> Tensor:
        """Return what the head reads of the records whose shares these are."""
        received, own = _received_and_own(shares, self.widths)
        log_odds = [] if self.top is None else [self.top.log_odds(*shares)]
        codes, cut = [share[:, : self._own_codes] for share in own], [share[:, self._own_codes :] for share in own]
        return torch.cat([*received, *codes, *log_odds, *cut], dim=1)


class LocalPredictor(Predictor):
    """The local head. NOT PRIVATE: what it says stays with the label party.

    It reads what each feature party sends (its share of the cut, after the frozen pre-trained one if there is one), the
    private head's log-odds and the label party's own share, in the order in which they were collected in training
    (`tpsl.run.stages.collect`). Feature parties send the same whichever head is used, so they cannot tell.
    """

    def __init__(
        self, head: LocalHead, top: PrivateHead | None, widths: Mapping[str, int], reads: Mapping[str, int]
    ) -> None:
        """`top` is None where nothing was released; `reads` is how many numbers at the end of a share are read."""
        super().__init__(widths)
        self.head, self.top, self._reads = head, top, reads

    def forward(self, *shares: Tensor) -> Tensor:
        """Return probabilities."""
        probabilities = torch.softmax(self.head(self.inputs(*shares)), dim=1)
        return probabilities[:, 1] if probabilities.shape[1] == 2 else probabilities

    def inputs(self, *shares: Tensor) -> Tensor:
        """Return what the head reads of the records whose shares these are; it depends on no true label."""
        received, own = _received_and_own(_ends(shares, self._reads), self._reads)
        log_odds = [] if self.top is None else [self.top.log_odds(*shares)]
        return torch.cat([*received, *log_odds, *own], dim=1)


class Ensemble(Predictor):
    """Several predictors, each with its weight; the weights add up to 1. A party's share is those of the members."""

    def __init__(self, members: Iterable[tuple[float, Predictor]]) -> None:
        weights, predictors = zip(*members, strict=True)
        parties = predictors[0].widths
        super().__init__({party: sum(member.widths[party] for member in predictors) for party in parties})
        self.members = nn.ModuleList(predictors)
        self.weights = list(map(float, weights))
        self._slices = [
            [slice(*ends) for ends in pairwise(accumulate((member.widths[party] for member in predictors), initial=0))]
            for party in parties
        ]

    def forward(self, *shares: Tensor) -> Tensor:
        """Return probabilities: those of all members, mixed in float64 in their order."""
        mixed = list[Tensor]()
        for number, (weight, member) in enumerate(zip(self.weights, self.members, strict=True)):
            own = [share[:, of[number]].contiguous() for share, of in zip(shares, self._slices, strict=True)]
            mixed.append(weight * member(*own).double())
        return sum(mixed[1:], mixed[0]).float()


def _ends(shares: Iterable[Tensor], widths: Mapping[str, int]) -> list[Tensor]:
    """Return the end of each share, as wide as `widths` says: the cut, or the cut after the frozen embedding."""
    return [share[:, -width:] for share, width in zip(shares, widths.values(), strict=True)]


def _received_and_own(shares: Iterable[Tensor], widths: Mapping[str, int]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the shares of the feature parties, and the label party's own, which is last, if it has one."""
    shares = list(shares)
    received = len(widths) - (LABEL_PARTY in widths)
    return shares[:received], shares[received:]


class LabelHalf(nn.Module):
    """The shares of the feature parties, then what the label party's own bottom half reads → probabilities."""

    def __init__(self, head: Predictor, own: Embedder | None) -> None:
        super().__init__()
        self.own, self.head = own, head
        self._received = len(head.widths) - (own is not None)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the probability of class 1, `[n]`, or of each of k classes, `[n, k]`."""
        own = [] if self.own is None else [self.own(*inputs[self._received :])]
        probabilities: Tensor = self.head(*inputs[: self._received], *own)
        return probabilities


@dataclass(frozen=True)
class TrainedHalves:
    """All that predicts, in one process: what makes the share of each party, and what predicts from the shares."""

    bottoms: Mapping[str, Embedder]
    """By party, in the order of their shares: the feature parties as in the job, then the label party."""
    top: Predictor
    networks: int = 1
    """How many networks these are the halves of: one, or the members of an ensemble."""

    @property
    def parties(self) -> tuple[str, ...]:
        """The parties whose inputs are needed."""
        return tuple(self.bottoms)

    def probabilities(self, inputs: Mapping[str, Features | Inputs], rows: Rows | None = None) -> Probabilities:
        """Return the probabilities of these rows (all, if None): of class 1 for two classes (`[n]`), of each for k.

        `inputs` are those of every party that has a bottom half. The probabilities are, bit for bit, those that the
        label party computes in a run for the same rows; with a wide part, for rows that it was not fitted on.
        """
        for party in self.bottoms:
            if party not in inputs:
                raise PredictionError(f"the network needs the features of the party {party!r}, which are not given")
        wanted = np.arange(len(inputs[next(iter(self.bottoms))]), dtype=np.int64) if rows is None else rows
        parts = in_parts(wanted, self.networks) or [wanted]
        return np.concatenate([self.part(inputs, dict.fromkeys(self.bottoms, part)) for part in parts])

    def part(self, inputs: Mapping[str, Features | Inputs], rows: Mapping[str, Rows]) -> Probabilities:
        """Return the probabilities of some records, computed at once; `rows` are theirs in each party's inputs."""
        shares = {party: bottom.embed(inputs[party], rows[party]) for party, bottom in self.bottoms.items()}
        return self.top.probabilities(shares)
