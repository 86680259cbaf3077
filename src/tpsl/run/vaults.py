"""Where the noisy labels of a run come from: its vault, or a release that was made before.

A label is released once and for good, and the label party's one vault adds up whatever is released of it
(`tpsl.vault.place`). So a run looks through the labels of the vault for the one that has its training records with the
same values, and makes a further one only where there is none. What the label party does not permit is refused here,
before a port is opened and before anything is drawn. What others see of a refusal does not depend on whom the label
party knows, where an alignment keeps that secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tpsl.data.config import FlightsData, SyntheticData, TableData
from tpsl.data.sides import LabelSide
from tpsl.net.messages import LABEL_PARTY
from tpsl.run.job import Job
from tpsl.run.releases import (
    check_first_releases,
    check_labels,
    labelled_ids,
    overlap_with_vault,
    planned_labels,
    release_labels,
    statistic_ids,
    statistic_plan,
    store_labels,
    tell_of_rare_labels,
)
from tpsl.run.result import LedgerNote, ReleasedBefore
from tpsl.run.run_folder import RunError, RunFolder
from tpsl.run.setup import RunSetup
from tpsl.vault import NO_LIMITS, NoisyLabels, NoisyStatistic, Overlap, ReleasePolicy, Spent, Vault, VaultError
from tpsl.vault.cost import Planned, PlannedStatistic
from tpsl.vault.errors import VaultChanged
from tpsl.vault.ledger import describe_release, now
from tpsl.vault.place import address_of, is_vault, the_vault

HAND_OVER = "hand-over"
"""The folder in a run's folder for the exchange in which noisy labels cross (`exchange: labels`)."""


class LabelSource:
    """Gives a run the noisy labels of its training records, in their order; no true label.

    Of several workers of a label party the first has one that can. This one, which all others have, cannot.
    """

    def noisy(self) -> NoisyLabels:
        """Return the noisy labels that training begins with."""
        raise RuntimeError("only worker 0 of the label party has its vault")

    def total(self) -> Spent:
        """Return what the training records have spent in all."""
        raise RuntimeError("only worker 0 of the label party has its vault")


@dataclass(frozen=True)
class ReleasedLabels(LabelSource):
    """Noisy labels that were released before: a feature party was handed them over, or runs of a search share them."""

    labels: NoisyLabels
    spent: Spent
    """By their records in all, as far as is known."""
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


@dataclass(frozen=True)
class VaultChoice:
    """What the label party says of its vault, whatever the job says."""

    named: Path | None = None
    """The vault's folder, or FOLDER/LABEL; None: the label party's one vault, or the run's own of a scratch run."""
    policy: ReleasePolicy | None = None
    """What is permitted; None: no limits for a scratch run, and the default limits for every other."""
    scratch: bool = False
    """Whether the run is for its owner alone: the vault is in its folder, counts in no total, and nothing leaves."""


Place = tuple[Path, Collection[str] | None]
"""Which label of a vault a run releases, and the labels that the vault had when this one was found to be new; None if
it was named, or is there."""


class RunVault(LabelSource):
    """The vault of one run, and its training records in it; `released` are noisy labels that several runs share."""

    def __init__(
        self,
        setup: RunSetup,
        side: LabelSide,
        place: Path | Callable[[], Place],
        policy: ReleasePolicy | None = None,
        *,
        scratch: bool = False,
        released: ReleasedLabels | None = None,
    ) -> None:
        self.job, self.run, self._notice = setup.job, setup.run, setup.watching.notice
        self.side, self.records, self.scratch = side, side.records, scratch
        self.policy = policy or (NO_LIMITS if scratch else ReleasePolicy())
        self._find: Callable[[], Place] = place if callable(place) else lambda: (place, None)
        self._place = self._find()
        self.path = self._place[0]
        self._released, self._noisy = released, None if released is None else released.labels
        self._is_stored = False
        self._continues = setup.run.origin(LABEL_PARTY) is not None
        note = setup.run.noted_ledger()
        self._statistics = list(note.statistics) if note else []
        self._statistics_before = note.statistics_before if note else None
        self._total: Spent | None = None

    @property
    def release(self) -> Planned:
        """The release of noisy labels."""
        return planned_labels(self.job, self.records.classes)

    def store(self) -> None:
        """Have the labels of the training records in the vault; nothing is released, unless people are counted.

        How long it takes may depend on them, so a label party that listens does it before it opens its port. If others
        have stored labels since this one was chosen, it is chosen again: two runs never store different labels as one.
        """
        is_new, name, before = not Vault.exists(self.path), vault_name(self.job), self._place[1]
        try:
            store_labels(self.side, self.path, self._notice, name=name, scratch=self.scratch, labels_before=before)
        except VaultError as error:
            place = self._find()
            if place == self._place and not isinstance(error, VaultChanged):
                raise
            self._place, self.path = place, place[0]
            self.check()
            self.store()
            return
        self._is_stored = True
        with Vault.open(self.path) as vault:
            self.path = vault.address
        if is_new and self.job.releases:
            self.check()  # now the vault knows which of its labels are the same as this one
        if self.records.ids_are_new:
            self.noisy()

    def check(self) -> None:
        """Raise what the releases would raise, before anything is drawn."""
        job, records = self.job, self.records
        if not Vault.exists(self.path):
            check_first_releases(job, records.classes, len(records.train), self.policy)
            return
        with Vault.open(self.path) as vault:
            if job.statistic is not None:
                plan = statistic_plan(job, records.classes)
                vault.check_statistic(plan, statistic_ids(job, records), policy=self.policy)
            ids, planned = labelled_ids(job, records), self.release
            vault.check_release(planned.mechanism, ids, draws=planned.draws, seed=planned.seed, policy=self.policy)
            check_labels(vault, self.side)

    def noisy(self) -> NoisyLabels:
        """Return the noisy labels that training begins with, which are released now unless they were before."""
        if self._noisy is None:
            if not self._is_stored:
                self.store()
            self._noisy = release_labels(self.job, self.records, self.path, self._notice, self.policy)
        if self._total is None:
            self.total()
        return self._noisy

    def statistic(self, width: int, blocks: Iterable[npt.NDArray[np.integer]]) -> NoisyStatistic:
        """Release a statistic of the job, of integer vectors of this width; the same ones again cost nothing.

        A run releases as many as its job says. A feature party that was restarted and sends something else does not get
        another, whatever the policy permits to different runs.
        """
        if not self._is_stored:
            self.store()
        plan, ids = statistic_plan(self.job, self.records.classes, width), statistic_ids(self.job, self.records)
        with Vault.open(self.path) as vault:
            there = vault.count_statistics(plan, ids)
            if self._statistics_before is None:
                self._statistics_before = there
                self.total()  # noted before anything is drawn: a run that is killed right after it knows what it drew
            policy = self.policy if there == self._statistics_before else replace(self.policy, compose=False)
            found = vault.release_statistic(plan, ids, blocks, policy=policy)
        described = PlannedStatistic(plan, self.records.classes).description
        self._notice(f"{described}, of {len(ids):,} labels, is released")
        self._statistics = list(dict.fromkeys([*self._statistics, describe_release(described, 1, plan.seed)]))
        self.total()
        return found

    def total(self) -> Spent:
        """Return what the records whose labels are in the weights have spent by now, and note it.

        They are the training records; in a run that started from others all that the vault has released. What people
        have spent is known at the release, and so is what records have spent that were released for several runs.
        The note, with where the vault is and the ledger's head, outlives the vault.
        """
        if self.records.ids_are_new and self._total is not None:
            return self._total
        release = self.release
        with Vault.open(self.path) as vault:
            if self._released is not None:
                total = self._released.spent
            else:
                total = vault.total(None if self._continues else self.records.training_ids)
            note = LedgerNote(
                vault=self.path,
                release=describe_release(str(release.mechanism), release.draws, release.seed),
                identity=vault.identity,
                head=vault.head(),
                epsilon=total.epsilon,
                delta=total.delta,
                private=total.private,
                records=total.records,
                time=now(),
                statistics=tuple(self._statistics),
                statistics_before=self._statistics_before,
                scratch=self.scratch,
            )
        self.run.note_ledger(note)
        self._total = total
        return total


def choose_vault(setup: RunSetup, side: LabelSide, choice: VaultChoice | ReleasedLabels) -> RunVault:
    """Return the vault of a run, checked against the label party's policy; nothing is stored or drawn yet.

    What was released for several runs was checked when it was released.

    A run that was begun goes on with its vault, and one that starts from an earlier run with the vault of that one.
    Otherwise it is the label of the vault that holds the run's training records with the same values, or a new label.
    """
    if isinstance(choice, ReleasedLabels):
        noted_vault(setup.run, choice.origin)
        return RunVault(setup, side, choice.origin, released=choice)
    run, scratch, own = setup.run, choice.scratch, setup.run.label / "vault"
    if not setup.job.releases:
        return RunVault(setup, side, own, choice.policy, scratch=scratch)
    noted, origin = noted_vault(run, choice.named), run.origin(LABEL_PARTY)
    place: Path | Callable[[], Place]
    if noted is not None:
        place = noted
    elif origin is not None and origin.released is not None:
        place = _vault_of_origin(origin.released, choice.named)
    elif scratch:
        place = choice.named or own
    else:
        place = partial(_label_in, choice.named or the_vault(), setup.job, side, is_named=choice.named is not None)
    chosen = RunVault(setup, side, place, choice.policy, scratch=scratch)
    if Vault.exists(chosen.path) and is_scratch(chosen.path) != scratch:
        kind = "counts in totals" if scratch else "is that of a scratch run"
        remedy = "leave --scratch out" if scratch else "add --scratch"
        raise VaultError(f"the vault {chosen.path} {kind}: {remedy}, or train anew with another --out")
    chosen.check()
    if setup.search is None:  # between the runs of a search a peer waits, and could measure it
        tell_of_rare_labels(setup.job, side, setup.watching.notice)
    if reason := setup.job.privacy.reason(side.records.classes):
        setup.watching.reason(reason)
    return chosen


def for_public_labels(setup: RunSetup, choice: VaultChoice) -> VaultChoice:
    """Return the choice for a run in one process: labels that come with tpsl are public, so it is a scratch run.

    Not if a vault is named, or if it goes on, or starts from a run, with a vault that counts.
    """
    if choice.named is not None or not isinstance(setup.job.data, FlightsData | SyntheticData):
        return choice
    origin = setup.run.origin(LABEL_PARTY)
    released = origin.released if origin else None
    before = noted_vault(setup.run, None) or (released.vault if released else None)
    return replace(choice, scratch=before is None or not Vault.exists(before) or is_scratch(before))


def is_scratch(vault: Path) -> bool:
    """Whether a vault counts in no total, and nothing of it may leave."""
    with Vault.open(vault) as opened:
        return opened.scratch


def noted_vault(run: RunFolder, named: Path | None) -> Path | None:
    """Return the vault of a run that has released labels already; None for a new run, or if its vault is gone."""
    note = run.noted_ledger()
    noted = _where_it_is(note.vault) if note else run.label / "vault"
    if not Vault.exists(noted) or (named is not None and not note):
        return None
    if named is not None and address_of(noted).folder.resolve() != address_of(named).folder.resolve():
        raise RunError(f"{run.path}: this run was begun with the vault {noted}, not with {named}; choose another --out")
    return noted


def _where_it_is(vault: Path) -> Path:
    """Return where the label is that was at this path, if the vault was moved."""
    moved = the_vault() / vault.name
    return moved if not Vault.exists(vault) and Vault.exists(moved) else vault


def _vault_of_origin(earlier: ReleasedBefore, named: Path | None) -> Path:
    """Return the vault of the run that training starts from: it adds up what old and new records spend."""
    path = _where_it_is(earlier.vault) if named is None else named
    if not Vault.exists(path):
        raise VaultError(f"the run that training starts from has released from the vault {path}, which is not there")
    with Vault.open(path) as vault:
        if vault.entries_since(earlier.head) is None:
            raise VaultError(
                f"training starts from a run that has released from the vault {earlier.vault}, and {path} is another "
                "one: new labels go into the same vault, whose ledger then speaks of all that the weights have learned"
            )
    return path


def _label_in(path: Path, job: Job, side: LabelSide, *, is_named: bool) -> Place:
    """Return the label of a vault that holds the run's records with the same values, or the place of a new one.

    A label of the same name that knows none of the records gets them, and so does the only label of a vault that was
    named. One that knows them with a few other values has to be corrected first.
    """
    folder, named = address_of(path)
    if named is not None:
        return path, None
    if not (is_vault(folder) or folder == the_vault()):
        return path, ()  # the first label of a new vault
    records, name, overlaps = side.records, vault_name(job), dict[str, Overlap]()
    labels = Vault.labels(folder)
    for label in labels:
        with Vault.open(folder / label) as vault:
            if vault.classes == records.classes and vault.counts_people == records.ids_are_new:
                overlaps[label] = overlap_with_vault(vault, side)
    # Where ids are new they tell the alignment, and labels decide nothing that others see: people are counted together.
    found = [label for label, overlap in overlaps.items() if overlap.same or records.ids_are_new]
    only = set(overlaps) if is_named and len(labels) == 1 else set()
    found += [label for label in overlaps if label in {name, *only} and not overlaps[label].known]
    if found:
        return folder / (name if name in found else found[0]), None
    for label, overlap in overlaps.items():
        if overlap.same_label and 2 * overlap.differing < overlap.known:
            raise VaultError(overlap.difference(folder / label))
    numbered = chain([name], (f"{name}-{number}" for number in count(2)))
    return folder / next(each for each in numbered if each not in labels), labels


def vault_name(job: Job) -> str:
    """Return a name that says what a label is of: the data and the column."""
    data = job.data
    label: str = data.task if isinstance(data, FlightsData) else ""
    if isinstance(data, TableData):
        label = data.label.label or "membership"
    return "-".join(filter(None, [data.source, re.sub(r"[^\w.-]+", "-", label).strip("-.")]))
