"""Predicting with a finished run, in one process that holds every party's features.

Only the private halves are read, so what comes out is post-processing of the vault's release. The local head
(`head: local`) was trained on true labels and never leaves the label party: no function here reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import nn

from tpsl.data.dataset import Dataset, feature_party_names
from tpsl.data.features import Features
from tpsl.models import Bottom, BottomMembers, Top, TopMembers, make_top
from tpsl.party.feature_party import FeatureTensors, Rows
from tpsl.party.wide import AdditiveModel, newly_scored_features, unscored_features
from tpsl.training.build import build_feature_party
from tpsl.training.run_folder import RunFolder
from tpsl.training.schedule import TEST_ROWS_AT_ONCE
from tpsl.training.stages.wide import load_wide
from tpsl.transport.peers import LABEL_PARTY

Probabilities = npt.NDArray[np.float32]


class PredictionError(ValueError):
    """A run that cannot predict these records; the message names the file or the party."""


@dataclass(frozen=True)
class TrainedHalves:
    """The halves of one trained network: a bottom half for each feature party, in the job's order, and the top half."""

    bottoms: Mapping[str, Bottom | BottomMembers]
    label_bottom: Bottom | BottomMembers | None
    """The label party's own bottom half, if it has features."""
    top: Top | TopMembers
    wide: Mapping[str, AdditiveModel]
    """The wide part of each party with features, by its name; empty if the network has none."""

    @torch.no_grad()
    def probabilities(
        self, feature_parties: Mapping[str, Features], label_features: Features | None, rows: Rows | None = None
    ) -> Probabilities:
        """Return the probabilities of these rows (all, if None): of class 1 for two classes (`[n]`), of each for k.

        They are, bit for bit, those that the label party computes in a run for the same rows; with a wide part, for
        rows that it was not fitted on.
        """
        held = [(bottom, self._read(bottom, name, feature_parties.get(name))) for name, bottom in self.bottoms.items()]
        if self.label_bottom is not None:
            held.append((self.label_bottom, self._read(self.label_bottom, LABEL_PARTY, label_features)))
        inputs = [(bottom, FeatureTensors(features)) for bottom, features in held]
        wanted = np.arange(len(held[0][1]), dtype=np.int64) if rows is None else rows
        parts = []
        for start in range(0, max(1, len(wanted)), TEST_ROWS_AT_ONCE):
            part = wanted[start : start + TEST_ROWS_AT_ONCE]
            shares = [bottom(*tensors.batch(part)) for bottom, tensors in inputs]
            z = self.top(shares[0] if len(shares) == 1 else torch.cat(shares, dim=1))
            z = z.mean(dim=0) if isinstance(self.top, TopMembers) else z
            parts.append((torch.sigmoid(z) if z.ndim == 1 else torch.softmax(z, dim=1)).numpy())
        return np.concatenate(parts)

    def _read(self, half: Bottom | BottomMembers, party: str, features: Features | None) -> Features:
        """Return a party's features as its half reads them, if they are there and of the right kind."""
        if features is not None and party in self.wide:
            model = self.wide[party]
            if (len(model.effects), len(model.slopes)) != (features.categorical.shape[1], features.numeric.shape[1]):
                raise PredictionError(f"the party {party!r} has other features than the network was trained with")
            features = newly_scored_features(features, model)
        return _fitting(half, party, features)


def load_halves(
    run_path: Path, feature_parties: Mapping[str, Features], label_features: Features | None
) -> TrainedHalves:
    """Return the halves of a finished run whose parties have features like these; their values are not looked at.

    The folder must hold every party's half: one process trained the run, or the folders were put together.
    """
    run = RunFolder(run_path)
    job, result = run.job(), run.result()
    if result is None:
        raise PredictionError(f"{run_path}: the run is not finished, so it cannot predict")
    names = feature_party_names(job.data)
    for name in names:
        if name not in feature_parties:
            raise PredictionError(
                f"{run_path}: was trained with the feature party {name!r}, whose features are missing"
            )

    def as_read(features: Features) -> Features:
        return unscored_features(features) if job.model.wide else features

    bottoms = {name: build_feature_party(job, name, as_read(feature_parties[name])).bottom for name in names}
    for name, bottom in bottoms.items():
        _load_into(bottom, run.party(name) / "bottom.safetensors")
    own_path = run.label / "bottom.safetensors"
    if own_path.exists() != (label_features is not None):
        has = "has" if own_path.exists() else "has no"
        raise PredictionError(f"{run_path}: the label party {has} features of its own in this run")
    own = None
    if label_features is not None:
        own = build_feature_party(job, "label bottom", as_read(label_features)).bottom
        _load_into(own, own_path)
    shares = len(bottoms) + (own is not None)
    top = make_top(shares, result.classes, job.model, [torch.Generator() for _ in range(job.model.members)])
    _load_into(top, run.label / "top.safetensors")
    parties = [*names, *([LABEL_PARTY] if own is not None else [])]
    try:
        wide = {name: load_wide(run.party(name)) for name in parties} if job.model.wide else {}
    except ValueError as error:
        raise PredictionError(str(error)) from error
    return TrainedHalves(bottoms, own, top, wide)


def predict(run_path: Path, data: Dataset, rows: Rows | None = None) -> Probabilities:
    """Return what a finished run predicts for these rows of a data set (all, if None), in their order.

    Probabilities of class 1 for two classes (`[n]`), of each class for k (`[n, k]`). Guarantee: true labels are not
    read, neither those of `data` nor what a local head learned from them.
    """
    halves = load_halves(run_path, data.feature_parties, data.label_features)
    return halves.probabilities(data.feature_parties, data.label_features, rows)


def _fitting(half: Bottom | BottomMembers, party: str, features: Features | None) -> Features:
    """Return the features if they are there and a bottom half can read them."""
    if features is None:
        raise PredictionError(f"the network needs the features of the party {party!r}, which are not given")
    bottom = cast(Bottom, half.members[0]) if isinstance(half, BottomMembers) else half
    embedding, first_layer = bottom.embedding, cast(nn.Linear, bottom.layers[0])
    rows, width = (embedding.num_embeddings, embedding.embedding_dim) if embedding is not None else (0, 0)
    inputs = features.categorical.shape[1] * width + features.numeric.shape[1]
    if (features.embedding_rows, inputs) != (rows, first_layer.in_features):
        raise PredictionError(f"the party {party!r} has other features than the network was trained with")
    return features


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
