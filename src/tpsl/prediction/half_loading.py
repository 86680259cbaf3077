"""The trained halves of a finished run: one party's alone, or all of them in one process.

`TrainedBottom` turns a party's inputs into its share of the cut, `TrainedTop` turns all shares into probabilities, and
`TrainedHalves` is both. Only private halves are read, so what comes out is post-processing of the vault's release. The
local head (`head: local`) was trained on true labels and never leaves the label party: no function here reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tpsl.data.dataset import class_names, feature_party_names
from tpsl.data.features import Features, Inputs
from tpsl.data.order import Rows
from tpsl.data.own import source_inputs
from tpsl.heads.wide_part import AdditiveModel, with_scores
from tpsl.models.halves import Bottom
from tpsl.models.members import Bottoms, Tops
from tpsl.net.peers import LABEL_PARTY
from tpsl.perturb import Loss
from tpsl.split.batches import Batches
from tpsl.training.build import build_bottoms, build_top
from tpsl.training.checkpoint import load_weights
from tpsl.training.job import Job
from tpsl.training.own_parts import OwnParts
from tpsl.training.run_folder import RunFolder, epoch_folder
from tpsl.training.schedule import in_parts
from tpsl.training.stages.prepare import PRETRAINED, load_wide

_BOTTOM, _TOP = "bottom.safetensors", "top.safetensors"
Probabilities = npt.NDArray[np.float32]


class PredictionError(ValueError):
    """A run that cannot predict these records; the message names the file or the party."""


class Embedder(Protocol):
    """What turns one party's inputs into what it hands over to the label party."""

    @property
    def width(self) -> int:
        """The width of a record's share."""

    def embed(self, inputs: Features | Inputs, rows: Rows | None = None) -> Tensor:
        """Return the share of these rows (of all, if None): float32 `[n, width]`."""


class Predictor(Protocol):
    """What turns the shares of all parties into probabilities."""

    @property
    def widths(self) -> Mapping[str, int]:
        """The width of each party's share, in the order of the shares: feature parties, then the label party."""

    def probabilities(self, shares: Mapping[str, Tensor]) -> Probabilities:
        """Return the probabilities of the records whose shares these are: of class 1 (`[n]`), or of each of k."""


@dataclass(frozen=True)
class TrainedBottom:
    """One party's bottom half, with its wide part if the network has one."""

    party: str
    bottom: Bottoms
    wide: AdditiveModel | None = None

    @property
    def width(self) -> int:
        """The width of the party's share of the cut."""
        return self.bottom.width

    @torch.no_grad()
    def embed(self, inputs: Features | Inputs, rows: Rows | None = None) -> Tensor:
        """Return the party's share of the cut for these rows of its inputs (all, if None): float32 `[n, width]`.

        Guarantee: bit for bit what the party sends in a run when the same rows are evaluated at once; with a wide part,
        for rows that it was not fitted on.
        """
        self._check(inputs)
        if rows is None:
            rows = np.arange(len(inputs), dtype=np.int64)
        if self.wide is not None and isinstance(inputs, Features):
            inputs, rows = inputs.take(rows), np.arange(len(rows), dtype=np.int64)
            inputs = with_scores(inputs, self.wide.scores(inputs))
        share: Tensor = self.bottom(*Batches(inputs).batch(rows))
        return share

    def _check(self, inputs: Features | Inputs) -> None:
        """Raise unless the half can read these inputs; a half of the party's own sees for itself."""
        half = self.bottom.members[0]
        if not isinstance(half, Bottom):
            return
        if isinstance(inputs, Features):
            fields = (inputs.categorical.shape[1], inputs.numeric.shape[1] + (self.wide is not None))
            if (inputs.embedding_rows if fields[0] else 0, *fields) == half.reads:
                return
        raise PredictionError(f"the party {self.party!r} has other features than the network was trained with")


@dataclass(frozen=True)
class SideBySide:
    """A share that is those of several halves: the frozen and the trained one, or the members of a committee."""

    parts: tuple[Embedder, ...]

    @property
    def width(self) -> int:
        """The width of all parts."""
        return sum(part.width for part in self.parts)

    def embed(self, inputs: Features | Inputs, rows: Rows | None = None) -> Tensor:
        """Return the shares of all parts for these rows, side by side."""
        return torch.cat([part.embed(inputs, rows) for part in self.parts], dim=1)


@dataclass(frozen=True)
class TrainedTop:
    """The label party's top half."""

    top: Tops
    loss: Loss
    classes: int
    cuts: Mapping[str, int]
    """The width of each party's share of the cut, in the order of the shares: feature parties, then the label party."""
    sent: Mapping[str, int] | None = None
    """The width of what each party sends, if that is more than its share of the cut, which then comes last."""

    @property
    def widths(self) -> Mapping[str, int]:
        """The width of what each party sends."""
        return self.sent or self.cuts

    @torch.no_grad()
    def probabilities(self, shares: Mapping[str, Tensor]) -> Probabilities:
        """Return the probabilities of the records whose shares these are: of class 1 (`[n]`), or of each of k classes.

        Guarantee: bit for bit what the label party computes in a run from the same shares of as many records.
        """
        return self.loss.probabilities(self._mean_logits(shares)).numpy()

    @torch.no_grad()
    def log_odds(self, shares: Mapping[str, Tensor]) -> Tensor:
        """Return what a sigmoid or a softmax turns into the probabilities: `[n, 1]` for two classes, `[n, k]` for k."""
        found = self.loss.log_odds(self._mean_logits(shares))
        return found.reshape(len(found), -1)

    def _mean_logits(self, shares: Mapping[str, Tensor]) -> Tensor:
        z: Tensor = self.top([shares[party][:, -width:] for party, width in self.cuts.items()])
        return z.mean(dim=0)


@dataclass(frozen=True)
class TrainedHalves:
    """The halves of a trained network, or of several: a bottom half for each party with features, and the top half."""

    bottoms: Mapping[str, Embedder]
    """By party, in the order of their shares of the cut: the feature parties as in the job, then the label party."""
    top: Predictor
    networks: int = 1
    """How many networks these are the halves of: one, or the members of a committee."""

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

    @property
    def parties(self) -> tuple[str, ...]:
        """The parties whose inputs are needed."""
        return tuple(self.bottoms)

    def part(self, inputs: Mapping[str, Features | Inputs], rows: Mapping[str, Rows]) -> Probabilities:
        """Return the probabilities of some records, computed at once; `rows` are theirs in each party's inputs."""
        shares = {party: bottom.embed(inputs[party], rows[party]) for party, bottom in self.bottoms.items()}
        return self.top.probabilities(shares)


def require_finished(run: RunFolder, party: str) -> None:
    """Raise if a party's part of a run is not in its folder, or not finished."""
    if not run.party(party).is_dir():
        raise PredictionError(
            f"{run.path}: the part of {party!r} is not here, so it cannot predict alone; `tpsl predict` with "
            "--listen or --connect does it together with the other parties"
        )
    if (run.result() if party == LABEL_PARTY else run.party_result(party)) is None:
        raise PredictionError(f"{run.path}: the part of {party!r} in the run is not finished, so it cannot predict")


def load_bottom(
    run_path: Path,
    party: str,
    own: OwnParts | None = None,
    inputs: Features | Inputs | None = None,
    epoch: int | None = None,
) -> TrainedBottom:
    """Return a party's trained bottom half from a folder that need hold no other party's.

    Its dimensions are those of the saved encoder; where a party's own half reads inputs of its own, those of the source
    that it trained with. `own` replaces the noted factories if they were objects, `inputs` like those of the training
    replace the encoder or the source; their values are not looked at. `epoch` is for a run that keeps its epochs.
    """
    run = RunFolder(run_path)
    job, folder = run.job(), run.party(party)
    if epoch is None:
        require_finished(run, party)
    bottom = _build_bottom(job, run, party, own, inputs)
    load_weights(bottom, (folder if epoch is None else epoch_folder(folder, epoch)) / _BOTTOM, PredictionError)
    try:
        return TrainedBottom(party, bottom, load_wide(run.party(party)) if job.model.wide else None)
    except ValueError as error:
        raise PredictionError(str(error)) from error


def load_pretrained_bottom(
    run_path: Path, party: str, own: OwnParts | None = None, inputs: Features | Inputs | None = None
) -> TrainedBottom:
    """Return a feature party's half as it was pre-trained, without a wide part: what it sends for a head too."""
    run = RunFolder(run_path)
    bottom = _build_bottom(run.job().without_wide_part(), run, party, own, inputs)
    load_weights(bottom, run.party(party) / PRETRAINED, PredictionError)
    return TrainedBottom(party, bottom)


def _build_bottom(
    job: Job, run: RunFolder, party: str, own: OwnParts | None, inputs: Features | Inputs | None
) -> Bottoms:
    """Return a party's half, whose weights are to be loaded."""
    parts = own or run.own_parts(party)
    read = inputs_like_those_of_training(run, party, parts) if inputs is None else inputs
    if job.model.wide and isinstance(read, Features):
        read = with_scores(read, np.zeros(len(read), np.float32))
    return build_bottoms(job, party, read, parts).eval()


def load_top(run_path: Path, own: OwnParts | None = None, epoch: int | None = None) -> TrainedTop:
    """Return the trained top half from the label party's folder; `own` replaces the noted factory of an object.

    `epoch` is for a run that keeps its epochs: then it need not be finished.
    """
    run = RunFolder(run_path)
    job, classes = run.job(), len(class_names(run.job().data))
    if epoch is None:
        require_finished(run, LABEL_PARTY)
    if not job.trains:
        raise PredictionError(f"{run_path}: was trained with privacy.gradients 'none': only its local head has learned")
    folder = run.label if epoch is None else epoch_folder(run.label, epoch)
    shares = [*feature_party_names(job.data), *([LABEL_PARTY] if (folder / _BOTTOM).exists() else [])]
    top = build_top(job, shares, classes, own or run.own_parts(LABEL_PARTY)).eval()
    load_weights(top, folder / _TOP, PredictionError)
    widths = {party: job.model.cut_width(party) for party in shares}
    return TrainedTop(top, job.training.build_loss(classes), classes, widths)


def has_label_features(run: RunFolder) -> bool:
    """Return whether the label party has features of its own in this run."""
    return (run.label / _BOTTOM).exists()


def inputs_like_those_of_training(run: RunFolder, party: str, parts: OwnParts) -> Features | Inputs:
    """Return what a party's bottom half reads: of a table no record, of a source of the party's own its records."""
    make_source = parts.source(party)
    if make_source is not None:
        return source_inputs(party, make_source)
    encoder = run.encoder(party)
    nothing = np.empty((0, len(encoder.categories)), np.int32), np.empty((0, len(encoder.numeric_fields)), np.float32)
    return encoder.features(*nothing)
