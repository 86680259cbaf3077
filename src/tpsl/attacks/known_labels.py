"""Attacks by a feature party that has come to know the labels of a few records (by a purchase, say, that it saw).

The direction attack compares gradients with those of known positives; model completion trains a head on what the
feature party's own half has learned. Beside them stands the attacker without a transcript, who has the features and the
same labels only: what an attack reaches beyond it, it owes to the transcript.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tpsl.data.features import Features
from tpsl.run.transcript import TranscriptStep
from tpsl.split.feature_party import FeatureParty

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
Similarity = Callable[[Rows], Floats]
"""From rows to their similarity with each known record, shape `[n, known]`."""

_NEAREST_DIRECTIONS = 8


@dataclass(frozen=True)
class KnownLabels:
    """Rows of the table and their labels, known to the attacker; they are left out when an attack is scored."""

    rows: Rows
    labels: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.labels):
            raise ValueError(f"{len(self.rows)} known rows have {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.rows)


def draw_known(rows: Rows, labels: npt.NDArray[np.int64], per_class: int, seed: int = 0) -> KnownLabels:
    """Choose `per_class` rows of each class at random; `labels` are those of all rows of the table."""
    generator = np.random.default_rng(seed)
    chosen = []
    for label in np.unique(labels[rows]):
        of_class = rows[labels[rows] == label]
        chosen.append(generator.choice(of_class, min(per_class, len(of_class)), replace=False))
    together = np.sort(np.concatenate(chosen))
    return KnownLabels(together, labels[together])


class DirectionAttack:
    """The direction attack of Li et al.: the cosine between a gradient and those of known positives.

    The direction of gradients turns as the top half is trained. So a batch is compared with the gradients of the known
    positives that were received at the nearest steps, before or after.
    """

    def __init__(self, steps: Iterable[TranscriptStep], known: KnownLabels) -> None:
        positives = known.rows[known.labels == 1]
        at, directions = [], []
        for seen in steps:
            found = seen.gradients[np.isin(seen.rows, positives)]
            at.extend([seen.step] * len(found))
            directions.append(_unit(found))
        if not at:
            raise ValueError(f"none of the {len(positives)} known positives is in the transcript")
        self._at = np.array(at)
        self._directions = np.concatenate(directions)

    def __call__(self, seen: TranscriptStep) -> Floats:
        """Score one step."""
        nearest = np.argsort(np.abs(self._at - seen.step), kind="stable")[:_NEAREST_DIRECTIONS]
        cosines: Floats = _unit(seen.gradients) @ self._directions[nearest].mean(axis=0)
        return cosines


def _unit(vectors: npt.NDArray[np.float32]) -> Floats:
    wide = vectors.astype(np.float64)
    length = np.linalg.norm(wide, axis=1, keepdims=True)
    return wide / np.where(length > 0, length, 1.0)


class LearnedAttack:
    """A classifier learned from the known labels: kernel ridge regression, which needs no tuning for a few records."""

    def __init__(self, similarity: Similarity, known: KnownLabels, classes: int) -> None:
        self._similarity = similarity
        gram = similarity(known.rows)
        self._offset = gram.mean(axis=0)
        centred = gram - self._offset
        centred -= centred.mean(axis=1, keepdims=True)  # the kernel of features whose mean over the known is 0
        # The ridge is as large as a known record's own share in the kernel: no record is believed alone.
        ridge = max(float(np.trace(centred)) / len(known), 1e-12)
        target = np.eye(classes)[known.labels]
        self._weights = np.linalg.solve(centred + ridge * np.eye(len(known)), target - target.mean(axis=0))

    def __call__(self, seen: TranscriptStep) -> Floats:
        """Score one step by its rows: shape `[n]` for two classes, `[n, k]` for k."""
        scores: Floats = (self._similarity(seen.rows) - self._offset) @ self._weights
        return scores[:, 1] if scores.shape[1] == 2 else scores


def embedding_similarity(parties: Mapping[str, FeatureParty], known: KnownLabels) -> Similarity:
    """Return the inner product of the trained bottom halves' outputs, each dimension scaled to equal spread."""

    def embed(rows: Rows) -> Floats:
        return np.concatenate([party.embed(rows).double().numpy() for party in parties.values()], axis=1)

    of_known = embed(known.rows)
    mean, spread = of_known.mean(axis=0), of_known.std(axis=0)
    scale = np.where(spread > 0, 1 / np.where(spread > 0, spread, 1.0), 0.0)
    standard = (of_known - mean) * scale
    return lambda rows: ((embed(rows) - mean) * scale) @ standard.T


def feature_similarity(features: Mapping[str, Features], known: KnownLabels) -> Similarity:
    """Return the inner product of the numbers plus the number of equal categories, over all parties' features."""

    def similarity(rows: Rows) -> Floats:
        total = np.zeros((len(rows), len(known)))
        for held in features.values():
            total += held.numeric[rows].astype(np.float64) @ held.numeric[known.rows].T
            for field in range(held.categorical.shape[1]):
                column = held.categorical[:, field]
                total += column[rows][:, None] == column[known.rows]
        return total

    return similarity
