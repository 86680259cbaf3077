"""Labels that arrive while training goes on: another process fills the vault, and a step waits for its records' labels.

Which records there are, their features and their order is known to all parties from the beginning; only the labels of
training records come late. Each record is used once, in that order (the paper's online setting), and its label is
released once, when training gets there: the ε of a record is that of a run whose labels were all there before, and so
are the weights, bit for bit.

What waiting reveals: a feature party sees how long a step takes, and so when the last label of the batch came into the
vault. ε does not speak of that. *When* a label is added must therefore not depend on *what* it is: if positives are
added at once and negatives when a time-out has passed, the wait for a batch tells whether it has a late negative. Add
the labels of all records of a period together, when the window in which a label may come is over.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from time import sleep

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tpsl.data.order import Rows
from tpsl.data.rawtable import NO_LABEL
from tpsl.data.sides import LabelRecords, LabelSide
from tpsl.progress import Notice
from tpsl.split.label_party import LabelParty
from tpsl.training.setup import RunSetup
from tpsl.training.vaults import RunVault, VaultChoice, choose_vault, vault_name
from tpsl.vault import NoisyLabels, Vault, VaultBusy
from tpsl.vault.place import address_of, the_vault
from tpsl.vault.vault import AnyIds

_LOOK_EVERY = 1.0  # seconds
_MOST_AHEAD = 1 << 19  # records


class LabelsMissing(ValueError):
    """Labels did not arrive in time; the sentence names the step and the vault."""


class LateLabels(RunVault):
    """The vault of a run whose labels arrive while it trains. One that does not exist yet is made, empty."""

    def __init__(self, setup: RunSetup, side: LabelSide, choice: VaultChoice) -> None:
        if choice.named is None and choice.scratch:
            raise ValueError(
                "labels 'arriving' come out of a vault that is filled while the job runs: name it, with --vault FOLDER "
                "or `vault` in the local file"
            )
        # The label is found by its name: no value is known by which it could be.
        chosen = choose_vault(setup, side, replace(choice, named=choice.named or the_vault() / vault_name(setup.job)))
        super().__init__(setup, chosen.side, chosen.path, chosen.policy)
        self._wait, self._observer = choice.wait, setup.watching.observer
        self._ids, self._units = self.records.training_ids, self.records.training_units
        self._ahead = 0
        if not Vault.exists(self.path):
            folder, label = address_of(self.path)
            Vault.create(folder, label=label, classes=self.records.classes).close()
            self._notice(f"made the empty vault {self.path}; `tpsl vault add` fills it")
        self.noisy()  # a vault that does not fit the job is refused before anybody connects

    def store(self) -> None:
        """Store nothing: others do, when they know the labels."""

    def noisy(self) -> NoisyLabels:
        """Return the noisy labels of no record: what a label party begins with."""
        with Vault.open(self.path) as vault:
            return self._noisy_labels(vault, [])

    def admit(self, party: LabelParty, batch: Rows, step: int) -> None:
        """Have the noisy labels of a step's records in the label party, as soon as they are in the vault.

        No other role could go on, so the thread waits; over a network others keep the connections alive. Labels are
        missing, too, while another process is writing to the vault. Raises `LabelsMissing` if none of those that are
        missing comes within the limit.
        """
        if party.holds(batch):
            return
        first, records, missing, since = int(batch[0]), len(batch), 0, time.monotonic()
        while isinstance(found := self._released_from(first, records), int):
            now = time.monotonic()
            if found != missing:
                missing, since = found, now
                self._observer.waiting_for(f"labels: {missing:,} of {records:,} of step {step + 1:,} are missing")
            elif now - since >= self._wait:
                raise LabelsMissing(
                    f"{missing:,} of the {records:,} labels of step {step + 1:,} are not in the vault {self.path}, and "
                    f"none came within {self._wait:g} s; the same command goes on when they are there"
                )
            sleep(min(_LOOK_EVERY, max(0.0, since + self._wait - now)))
        if missing:
            self._observer.waiting_for(None)
        party.admit(found, first)

    def _released_from(self, first: int, records: int) -> NoisyLabels | int:
        """Release all that has arrived from `first` on, up to the first missing label, or far enough; return it.

        Returns how many are missing instead if that does not reach `records`. Each time all is there it goes twice as
        far, so that labels that are early take few releases; labels that are late are looked for one batch at a time.
        What was released before is the same as ever.
        """
        try:
            with Vault.open(self.path) as vault:
                return self._release_from(vault, first, records)
        except VaultBusy:
            return records

    def _release_from(self, vault: Vault, first: int, records: int) -> NoisyLabels | int:
        ids = self._ids.slice(first, max(records, self._ahead))
        known = vault.knows(ids)
        here = len(ids) if known.all() else int(known.argmin())
        self._ahead = min(2 * here, _MOST_AHEAD) if here == len(ids) else 0
        if here < records:
            return int((~known[:records]).sum())
        ids = ids.slice(0, here)
        if self._units is not None:
            vault.require_units(ids, self._units.slice(first, here))
        release = self.release
        vault.release(release.mechanism, draws=release.draws, ids=ids, seed=release.seed, policy=self.policy)
        return self._noisy_labels(vault, ids)

    def _noisy_labels(self, vault: Vault, ids: AnyIds) -> NoisyLabels:
        return vault.noisy_labels(self.release.mechanism, ids, draws=self.release.draws, seed=self.release.seed)


def with_late_labels(
    labels: npt.NDArray[np.int64], records: LabelRecords, path: Path, notice: Notice
) -> npt.NDArray[np.int64]:
    """Return the true labels of the test records with those that have arrived in a vault, for their evaluation alone.

    Nobody waits for those that have not, and none is released.
    """
    labels = labels.copy()
    unknown = np.flatnonzero(labels == NO_LABEL)
    ids = records.test_ids.take(pa.array(unknown))
    with Vault.open(path) as vault:
        known = vault.knows(ids)
        labels[unknown[known]] = vault.true_labels_for_evaluation(ids.filter(pa.array(known)))
    if not known.all():
        notice(
            f"{int((~known).sum()):,} of the {len(labels):,} test records have no label yet: "
            "the test metrics are those of the others"
        )
    return labels
