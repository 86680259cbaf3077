"""Predicting with the head of a statistic: the private head of a run that has one.

It reads what was collected in training (`tpsl.training.stages.collect`): of each feature party its codes, if the job
shares them, the frozen pre-trained embedding, if there is one, and the cut; then the label party's own codes, the
log-odds of the network, if one was trained, and the label party's own cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tpsl.data.features import Features, Inputs, table_features
from tpsl.data.order import Rows
from tpsl.heads.feature_map import CodeBook
from tpsl.heads.statistic_fit import StatisticHead
from tpsl.net.peers import LABEL_PARTY
from tpsl.prediction.half_loading import PredictionError, Probabilities, TrainedTop, require_finished
from tpsl.training.checkpoint import read_weights
from tpsl.training.run_folder import RunFolder
from tpsl.training.stages.collect import CODE_COLUMNS, CODES, STATISTIC_HEAD


@dataclass(frozen=True)
class CodesOfFields:
    """The codes of a party's fields, which come before its cut."""

    book: CodeBook

    @property
    def width(self) -> int:
        """The number of fields."""
        return self.book.width

    def embed(self, inputs: Features | Inputs, rows: Rows | None = None) -> Tensor:
        """Return the codes of these rows (of all, if None): float32 `[n, width]`."""
        features = table_features(inputs, "statistic.share_codes")
        return self.book.embed(features, np.arange(len(features), dtype=np.int64) if rows is None else rows)


@dataclass(frozen=True)
class TrainedStatisticHead:
    """The private head that a statistic gave."""

    head: StatisticHead
    top: TrainedTop | None
    """The top half, whose log-odds it reads; None where no network was trained."""
    widths: Mapping[str, int]
    own_codes: int
    """How many codes the label party's own share begins with."""

    def probabilities(self, shares: Mapping[str, Tensor]) -> Probabilities:
        """Return the probabilities of the records whose shares these are: of class 1 (`[n]`), or of each of k."""
        return self.head.probabilities(self.inputs(shares)).numpy()

    def inputs(self, shares: Mapping[str, Tensor]) -> Tensor:
        """Return what the head reads of the records whose shares these are."""
        received = [shares[party] for party in self.widths if party != LABEL_PARTY]
        own = [shares[LABEL_PARTY]] if LABEL_PARTY in self.widths else []
        log_odds = [] if self.top is None else [self.top.log_odds(shares)]
        return head_inputs(received, log_odds, own, self.own_codes)


def head_inputs(received: list[Tensor], log_odds: list[Tensor], own: list[Tensor], own_codes: int) -> Tensor:
    """Return what the head reads, in the order of training; `own` is the label party's share, if it has one."""
    codes, cut = [share[:, :own_codes] for share in own], [share[:, own_codes:] for share in own]
    return torch.cat([*received, *codes, *log_odds, *cut], dim=1)


def load_statistic_head(run: RunFolder, top: TrainedTop | None, reads: Mapping[str, int]) -> TrainedStatisticHead:
    """Return the statistic's head of a finished run; `reads` are the widths of the parties' shares without codes."""
    require_finished(run, LABEL_PARTY)
    path = run.label / STATISTIC_HEAD
    tensors = read_weights(path, PredictionError)
    try:
        *of_parties, own = tensors.pop(CODE_COLUMNS).tolist()
        head = StatisticHead.of(tensors).eval()
    except (KeyError, RuntimeError, ValueError) as error:
        raise PredictionError(f"{path}: holds no head of a statistic ({error})") from error
    codes = dict(zip((party for party in reads if party != LABEL_PARTY), of_parties, strict=True))
    widths = {party: width + codes.get(party, own) for party, width in reads.items()}
    return TrainedStatisticHead(head, top, widths, own)


def sends_codes(run: RunFolder, party: str) -> bool:
    """Whether codes of a party's fields are part of its share."""
    return (run.party(party) / CODES).exists()


def load_codes(run: RunFolder, party: str) -> CodesOfFields:
    """Return what makes the codes of a party's fields."""
    path = run.party(party) / CODES
    try:
        return CodesOfFields(CodeBook(read_weights(path, PredictionError)))
    except KeyError as error:
        raise PredictionError(f"{path}: holds no codes of fields ({error})") from error
