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
from collections.abc import Callable
from dataclasses import replace
from time import sleep
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tpsl.data.order import Rows
from tpsl.data.rawtable import NO_LABEL
from tpsl.data.sides import LabelSide
from tpsl.split.label_party import LabelParty
from tpsl.training.setup import RunSetup
from tpsl.training.vaults import RunVault, VaultChoice, choose_vault, vault_name
from tpsl.vault import NoisyLabels, Spent, Vault, VaultBusy
from tpsl.vault.errors import VaultChanged
from tpsl.vault.place import address_of, the_vault
from tpsl.vault.vault import AnyIds

Answer = TypeVar("Answer")

_LOOK_EVERY = 1.0  # seconds
_MOST_AHEAD = 1 << 19  # records


class LabelsMissing(ValueError):
    """Labels did not arrive in time; the sentence names the step and the vault."""


class LateLabels(RunVault):
    """The vault of a run whose labels arrive while it trains.

    It is open only for the moments of looking and releasing, so that others can write to it; one that is busy is asked
    again. A vault that does not exist yet is made, empty.
    """

    def __init__(self, setup: RunSetup, side: LabelSide, choice: VaultChoice) -> None:
        if choice.named is None and choice.scratch:
            raise ValueError(
                "labels 'arriving' come out of a vault that is filled while the job runs: name it, with --vault FOLDER "
                "or `vault` in the local file"
            )
        # The label is found by its name: no value is known by which it could be.
        self.path = choice.named or the_vault() / vault_name(setup.job)
        choice = replace(choice, named=self.path)
        self._wait, self._observer = choice.wait, setup.watching.observer
        chosen = self._retry_while_busy(lambda: choose_vault(setup, side, choice))
        super().__init__(setup, chosen.side, chosen.path, chosen.policy)
        self._ids, self._units = self.records.training_ids, self.records.training_units
        self._ahead = 0
        if self._retry_while_busy(self._create_if_missing):
            self._notice(f"made the empty vault {self.path}; `tpsl vault add` fills it")
        self.noisy()  # a vault that does not fit the job is refused before anybody connects

    def store(self) -> None:
        """Store nothing: others do, when they know the labels."""

    def noisy(self) -> NoisyLabels:
        """Return the noisy labels of no record: what a label party begins with."""
        return self._ask(lambda vault: self._noisy_labels(vault, []))

    def admit(self, party: LabelParty, batch: Rows, step: int) -> None:
        """Have the noisy labels of a step's records in the label party, as soon as they are in the vault.

        No other role could go on, so the thread waits; over a network others keep the connections alive. Raises
        `LabelsMissing` if none of those that are missing comes within the limit.
        """
        if party.holds(batch):
            return
        first, records, missing, since = int(batch[0]), len(batch), 0, time.monotonic()
        while isinstance(found := self._ask(lambda vault: self._release_from(vault, first, records)), int):
            now = time.monotonic()
            if found != missing:
                missing, since = found, now
                self._observer.waiting_for(f"labels: {missing:,} of {records:,} of step {step + 1:,} are missing")
            elif now - since >= self._wait:
                raise LabelsMissing(
                    f"{missing:,} of the {records:,} labels of step {step + 1:,} are not in the vault "
                    f"{self.path}, and none came within {self._wait:g} s; the same command goes on when they are there"
                )
            sleep(min(_LOOK_EVERY, max(0.0, since + self._wait - now)))
        if missing:
            self._observer.waiting_for(None)
        party.admit(found, first)

    def with_late_labels(self, labels: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the true labels of the test records with those that have arrived, for their evaluation alone.

        Those that are `NO_LABEL` are taken from the vault. Nobody waits for them, and none is released.
        """
        labels = labels.copy()
        unknown = np.flatnonzero(labels == NO_LABEL)
        if len(unknown):
            ids = self.records.test_ids.take(pa.array(unknown))
            known = self._ask(lambda vault: vault.knows(ids))
            late = ids.filter(pa.array(known))
            labels[unknown[known]] = self._ask(lambda vault: vault.true_labels_for_evaluation(late))
            if not known.all():
                self._notice(
                    f"{int((~known).sum()):,} of the {len(labels):,} test records have no label yet: "
                    "the test metrics are those of the others"
                )
        return labels

    def total(self) -> Spent:
        """Return what the training records have spent by now, and note it."""
        return self._retry_while_busy(super().total)

    def _noisy_labels(self, vault: Vault, ids: AnyIds) -> NoisyLabels:
        release = self.release
        return vault.noisy_labels(release.mechanism, ids, draws=release.draws, seed=release.seed)

    def _release_from(self, vault: Vault, first: int, records: int) -> NoisyLabels | int:
        """Release all that has arrived from `first` on, up to the first missing label, or far enough; return it.

        Returns how many are missing instead if that does not reach `records`. Each time all is there it goes twice as
        far, so that labels that are early take few releases; labels that are late are looked for one batch at a time.
        What was released before is the same as ever.
        """
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

    def _ask(self, ask: Callable[[Vault], Answer]) -> Answer:
        """Open the vault, ask, and close it."""

        def opened() -> Answer:
            with Vault.open(self.path) as vault:
                return ask(vault)

        return self._retry_while_busy(opened)

    def _retry_while_busy(self, act: Callable[[], Answer]) -> Answer:
        """Do something with the vault, again and again while another process is writing to it."""
        since = time.monotonic()
        while True:
            try:
                return act()
            except VaultBusy:
                if time.monotonic() - since >= self._wait:
                    raise
                self._observer.waiting_for(f"the vault {self.path}, which is busy")
                sleep(_LOOK_EVERY)
                self._observer.waiting_for(None)

    def _create_if_missing(self) -> bool:
        """Make the vault unless there is one, or another process makes it first; say whether it was made here."""
        folder, label = address_of(self.path)
        there = Vault.labels(folder)
        if Vault.exists(self.path):
            return False
        try:
            Vault.create(folder, label=label, classes=self.records.classes, labels_before=there).close()
        except VaultChanged:
            return self._create_if_missing()
        return True
