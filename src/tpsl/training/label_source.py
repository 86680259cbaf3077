"""Where the noisy labels of a run come from: its vault (`tpsl.training.vaults`), or a release that was made before."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from tpsl.data.order import Rows
from tpsl.split.label_party import LabelParty
from tpsl.vault import NoisyLabels, Spent

HAND_OVER = "hand-over"
"""The folder in a run's folder for the exchange in which noisy labels cross (`exchange: labels`)."""


class LabelSource(ABC):
    """Gives a run the noisy labels of its training records, in their order; none of it is a true label."""

    @abstractmethod
    def noisy(self) -> NoisyLabels:
        """Return the noisy labels that training begins with."""

    @abstractmethod
    def total(self) -> Spent:
        """Return what the training records have spent in all."""

    def admit(self, party: LabelParty, batch: Rows, step: int) -> None:  # noqa: B027
        """Have the noisy labels of a step's records in the label party; it has had all from the beginning."""


@dataclass(frozen=True)
class ReleasedLabels(LabelSource):
    """Noisy labels that were released before, and what their records have spent as far as is known.

    A feature party was handed them over, or all runs of a search share them.
    """

    labels: NoisyLabels
    spent: Spent
    origin: Path
    """The vault, or the file or folder that they were read from."""

    @classmethod
    def of(cls, labels: NoisyLabels, origin: Path) -> ReleasedLabels:
        """Return labels of which no more is known than their own release."""
        return cls(labels, Spent(labels.epsilon, labels.delta, labels.private, len(labels)), origin)

    def noisy(self) -> NoisyLabels:
        """Return the noisy labels."""
        return self.labels

    def total(self) -> Spent:
        """Return what the records have spent."""
        return self.spent
