"""Noisy labels that a feature party was handed over, as the source of a run's labels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tpsl.data.order import Rows
from tpsl.party.label_party import LabelParty
from tpsl.vault import NoisyLabels, Spent

HAND_OVER = "hand-over"
"""The folder in a run's folder for the exchange in which noisy labels cross (`exchange: labels`)."""


@dataclass(frozen=True)
class HandedLabels:
    """The noisy labels of a run's training records, in their order, and what these have spent as far as is known."""

    labels: NoisyLabels
    spent: Spent
    origin: Path
    """The file or folder that they were read from."""

    @classmethod
    def of(cls, labels: NoisyLabels, origin: Path) -> HandedLabels:
        """Return labels of which no more is known than their own release."""
        return cls(labels, Spent(labels.epsilon, labels.delta, labels.private, len(labels)), origin)

    def noisy(self) -> NoisyLabels:
        """Return the noisy labels."""
        return self.labels

    def admit(self, party: LabelParty, batch: Rows, step: int) -> None:
        """Do nothing: the label party has had them from the beginning."""

    def total(self) -> Spent:
        """Return what the records have spent."""
        return self.spent
