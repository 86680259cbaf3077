"""Predicting with a finished run, in one process that holds every party's features.

Only the private halves are read, so what comes out is post-processing of the vault's release. The local head
(`head: local`) was trained on true labels and never leaves the label party: no function here reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import nn

from tpsl.data.dataset import Dataset, feature_party_names
from tpsl.data.features import Features
from tpsl.data.source import Inputs
from tpsl.data.split import Rows
from tpsl.models.halves import Bottom
from tpsl.models.members import Bottoms, Tops
from tpsl.party.batches import Batches
from tpsl.party.wide import AdditiveModel, newly_scored_features, unscored_features
from tpsl.perturb import Loss
from tpsl.training.build import build_feature_party, build_top
from tpsl.training.own_parts import OwnParts
from tpsl.training.run_folder import RunFolder
from tpsl.training.schedule import TEST_ROWS_AT_ONCE
from tpsl.training.stages.wide import load_wide
from tpsl.transport.peers import LABEL_PARTY

_BOTTOM = "bottom.safetensors"
Probabilities = npt.NDArray[np.float32]


class PredictionError(ValueError):
    """A run that cannot predict these records; the message names the file or the party."""


@dataclass(frozen=True)
class TrainedHalves:
    """The halves of one trained network: a bottom half for each party with features, and the top half."""

    bottoms: Mapping[str, Bottoms]
    """By party, in the order of their shares of the cut: the feature parties as in the job, then the label party."""
    top: Tops
    loss: Loss
    wide: Mapping[str, AdditiveModel]
    """The wide part of each party with features, by its name; empty if the network has none."""

    @torch.no_grad()
    def probabilities(self, inputs: Mapping[str, Features | Inputs], rows: Rows | None = None) -> Probabilities:
        """Return the probabilities of these rows (all, if None): of class 1 for two classes (`[n]`), of each for k.

        `inputs` are those of every party that has a bottom half. The probabilities are, bit for bit, those that the
        label party computes in a run for the same rows; with a wide part, for rows that it was not fitted on.
        """
        held = {party: self._read(party, inputs.get(party)) for party in self.bottoms}
        batches = {party: Batches(read) for party, read in held.items()}
        wanted = np.arange(len(next(iter(held.values()))), dtype=np.int64) if rows is None else rows
        parts = []
        for start in range(0, max(1, len(wanted)), TEST_ROWS_AT_ONCE):
            part = wanted[start : start + TEST_ROWS_AT_ONCE]
            z = self.top([bottom(*batches[party].batch(part)) for party, bottom in self.bottoms.items()])
            parts.append(self.loss.probabilities(z.mean(dim=0)).numpy())
        return np.concatenate(parts)

    def _read(self, party: str, inputs: Features | Inputs | None) -> Features | Inputs:
        """Return a party's inputs as its half reads them, if they are there and of the right kind."""
        if inputs is None:
            raise PredictionError(f"the network needs the features of the party {party!r}, which are not given")
        half = self.bottoms[party].members[0]
        if not isinstance(half, Bottom):
            return inputs
        if isinstance(inputs, Features):
            fields = (inputs.categorical.shape[1], inputs.numeric.shape[1] + (party in self.wide))
            if (inputs.embedding_rows if fields[0] else 0, *fields) == half.reads:
                return newly_scored_features(inputs, self.wide[party]) if party in self.wide else inputs
        raise PredictionError(f"the party {party!r} has other features than the network was trained with")


def load_halves(
    run_path: Path,
    feature_parties: Mapping[str, Features | Inputs],
    label_inputs: Features | Inputs | None,
    own: Mapping[str, OwnParts] | None = None,
) -> TrainedHalves:
    """Return the halves of a finished run whose parties have inputs like these; their values are not looked at.

    The folder must hold every party's half: one process trained the run, or the folders were put together. A party's
    own parts are made by the factories that are noted there; `own` replaces the notes of parties that gave objects.
    """
    run = RunFolder(run_path)
    job, result = run.job(), run.result()
    if result is None:
        raise PredictionError(f"{run_path}: the run is not finished, so it cannot predict")
    inputs = {}
    for name in feature_party_names(job.data):
        if name not in feature_parties:
            raise PredictionError(
                f"{run_path}: was trained with the feature party {name!r}, whose features are missing"
            )
        inputs[name] = feature_parties[name]
    if (run.label / _BOTTOM).exists() != (label_inputs is not None):
        has = "has no" if label_inputs is not None else "has"
        raise PredictionError(f"{run_path}: the label party {has} features of its own in this run")
    if label_inputs is not None:
        inputs[LABEL_PARTY] = label_inputs
    parts = {name: (own or {}).get(name) or run.own_parts(name) for name in (*inputs, LABEL_PARTY)}
    bottoms = {}
    for name, held in inputs.items():
        as_read = unscored_features(held) if job.model.wide and isinstance(held, Features) else held
        bottoms[name] = build_feature_party(job, name, as_read, own=parts[name]).bottom.eval()
        _load_into(bottoms[name], run.party(name) / _BOTTOM)
    top = build_top(job, list(inputs), result.classes, parts[LABEL_PARTY]).eval()
    _load_into(top, run.label / "top.safetensors")
    try:
        wide = {name: load_wide(run.party(name)) for name in inputs} if job.model.wide else {}
    except ValueError as error:
        raise PredictionError(str(error)) from error
    return TrainedHalves(bottoms, top, job.training.build_loss(result.classes), wide)


def predict(
    run_path: Path, data: Dataset, rows: Rows | None = None, own: Mapping[str, OwnParts] | None = None
) -> Probabilities:
    """Return what a finished run predicts for these rows of a data set (all, if None), in their order.

    Probabilities of class 1 for two classes (`[n]`), of each class for k (`[n, k]`). Guarantee: true labels are not
    read, neither those of `data` nor what a local head learned from them. `own` are parts that were given as objects.
    """
    halves = load_halves(run_path, data.feature_parties, data.label_features, own)
    label = {} if data.label_features is None else {LABEL_PARTY: data.label_features}
    return halves.probabilities({**data.feature_parties, **label}, rows)


def _load_into(half: nn.Module, path: Path) -> None:
    try:
        weights = load(path.read_bytes())
    except OSError as error:
        raise PredictionError(f"{path}: cannot be read ({error.strerror})") from error
    except SafetensorError as error:
        raise PredictionError(f"{path}: is damaged ({error})") from error
    try:
        half.load_state_dict(weights)
    except RuntimeError:
        raise PredictionError(f"{path}: holds weights of another network than job and features describe") from None
