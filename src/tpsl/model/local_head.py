"""Predicting with the local head (`head: local`), at the label party alone. It was trained on true labels: NOT PRIVATE.

The head reads what each feature party sends (its share of the cut, after the frozen pre-trained one if there is one),
the private head's log-odds and the label party's own share, in the order in which they were collected in training
(`tpsl.training.stages.collect`). Feature parties send the same whichever head is used, so they cannot tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from tpsl.data.dataset import feature_party_names
from tpsl.data.features import Features, Inputs
from tpsl.heads.local_training import LocalHead
from tpsl.model.half_loading import (
    Embedder,
    PredictionError,
    Predictor,
    Probabilities,
    SideBySide,
    TrainedTop,
    has_label_features,
    load_bottom,
    load_pretrained_bottom,
    load_top,
)
from tpsl.model.statistic_head import load_codes, load_statistic_head, sends_codes
from tpsl.net.peers import LABEL_PARTY
from tpsl.training.checkpoint import read_weights
from tpsl.training.job import Job
from tpsl.training.own_parts import OwnParts
from tpsl.training.run_folder import NOT_PRIVATE, RunFolder


@dataclass(frozen=True)
class TrainedLocalHead:
    """The local head. NOT PRIVATE: what it says stays with the label party."""

    head: LocalHead
    top: TrainedTop | None
    """The private head, whose log-odds it reads; None where nothing was released."""
    widths: Mapping[str, int]
    reads: Mapping[str, int]
    """How many numbers the head reads of each party's share: its end."""

    def probabilities(self, shares: Mapping[str, Tensor]) -> Probabilities:
        """Return the probabilities of the records whose shares these are: of class 1 (`[n]`), or of each of k."""
        return self.head.predict(self.inputs(shares).numpy())

    @property
    def inputs_width(self) -> int:
        """How many numbers the head reads of a record."""
        log_odds = 0 if self.top is None else 1 if self.top.classes == 2 else self.top.classes
        return sum(self.reads.values()) + log_odds

    def inputs(self, shares: Mapping[str, Tensor]) -> Tensor:
        """Return what the head reads of the records whose shares these are; it depends on no true label."""
        read = {party: shares[party][:, -width:] for party, width in self.reads.items()}
        own = [read.pop(LABEL_PARTY)] if LABEL_PARTY in read else []
        log_odds = [] if self.top is None else [self.top.log_odds(shares)]
        return torch.cat([*read.values(), *log_odds, *own], dim=1)


def load_embedder(
    run_path: Path,
    party: str,
    own: OwnParts | None = None,
    epoch: int | None = None,
    inputs: Features | Inputs | None = None,
) -> Embedder:
    """Return what makes a party's share for prediction: codes, the frozen embedding and the cut, as the job sends them.

    `epoch` is for a run that keeps its epochs; `inputs` are as in `load_bottom`.
    """
    run = RunFolder(run_path)
    parts: list[Embedder] = [load_bottom(run_path, party, own, inputs, epoch)]
    if party != LABEL_PARTY and _sends_frozen(run.job()):
        parts.insert(0, load_pretrained_bottom(run_path, party, own, inputs))
    if sends_codes(run, party):
        parts.insert(0, load_codes(run, party))
    return SideBySide(tuple(parts)) if len(parts) > 1 else parts[0]


def load_predictor(
    run_path: Path, *, local_head: bool = False, own: OwnParts | None = None, epoch: int | None = None
) -> Predictor:
    """Return what the label party predicts with, from its folder: the private head, or the local one.

    `epoch` is for the private head of a run that keeps its epochs.
    """
    run = RunFolder(run_path)
    job = run.job()
    if local_head and run.lacks_local_head(job):
        raise PredictionError(
            f"{run_path}: the local head is not trained yet: `tpsl label evaluate {run_path}` does it"
        )
    if local_head and run.local_head() is None:
        raise PredictionError(f"{run_path}: the run has no local head; it needs training.head: local")
    has_top = job.trains or not (local_head or job.releases)
    top = load_top(run_path, own, epoch) if has_top else None
    reads = {party: job.head_width(party) for party in feature_party_names(job.data)}
    if has_label_features(run):
        reads[LABEL_PARTY] = job.model.cut_width(LABEL_PARTY)
    statistic = None if job.statistic is None else load_statistic_head(run, top, reads)
    if not local_head and statistic is not None:
        return statistic
    if not local_head and top is not None:
        return replace(top, sent=reads) if _sends_frozen(job) else top
    path, widths = run.label / NOT_PRIVATE / "local_head.safetensors", reads if statistic is None else statistic.widths
    try:
        return TrainedLocalHead(LocalHead.of(read_weights(path, PredictionError)), top, widths, reads)
    except (KeyError, RuntimeError) as error:
        raise PredictionError(f"{path}: holds no local head ({error})") from error


def _sends_frozen(job: Job) -> bool:
    """Whether feature parties send their frozen pre-trained embeddings too, which a top half does not read."""
    return job.sends_frozen and (job.training.head == "local" or job.statistic is not None)
