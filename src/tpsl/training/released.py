"""A release that several runs share: labels are stored, noise is drawn and spending is counted once for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tpsl.data.sides import LabelSide
from tpsl.training.handed_labels import HandedLabels
from tpsl.training.setup import RunSetup
from tpsl.training.vaults import RunVault, begun_with
from tpsl.vault import NoisyLabels, Spent


@dataclass(frozen=True)
class Released:
    """The one release that all runs of a search share."""

    noisy: NoisyLabels
    total: Spent
    vault: Path
    """Where it comes from: the vault, or what a feature party was handed over."""

    @classmethod
    def of_handed(cls, labels: HandedLabels) -> Released:
        """Return what a feature party was handed over."""
        return cls(labels.noisy(), labels.total(), labels.origin)


class SharedVault(RunVault):
    """The vault of a run whose noisy labels have been released for several runs; no record is looked up in it again."""

    def __init__(self, setup: RunSetup, side: LabelSide, released: Released) -> None:
        begun_with(setup.run, released.vault)
        super().__init__(setup, side, released.vault)
        self._released = released

    def noisy(self) -> NoisyLabels:
        """Return the noisy labels; when they are asked for the first time, the run notes its vault."""
        if self._noisy is None:
            self._noisy = self._released.noisy
            self.total()
        return self._noisy

    def total(self) -> Spent:
        """Return what the training records had spent when the noisy labels were released, and note it."""
        return self._noted(self._released.total)
