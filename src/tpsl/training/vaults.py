"""Which vault a run releases from: one for a data set and its label, found again by what it holds.

A label is released once and for good. So a run does not make a vault of its own: it looks through the label party's
place for the vault that holds its training records, with the same labels, and makes one only where there is none.
What the label party does not permit is refused here, before a port is opened and before a label is stored. What others
see of a refusal does not depend on whom the label party knows, where an alignment keeps that secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tpsl.data.config import FlightsData, SyntheticData, TableData
from tpsl.data.order import Rows
from tpsl.data.sides import LabelSide
from tpsl.party.label_party import LabelParty
from tpsl.training.job import Job
from tpsl.training.origin import Ledgered
from tpsl.training.releases import (
    check_first_releases,
    check_labels,
    compared,
    compared_without_alignment,
    labelled_ids,
    release_labels,
    statistic_ids,
    statistic_plan,
    store_labels,
    tell_of_rare_labels,
)
from tpsl.training.run_folder import RunError, RunFolder
from tpsl.training.setup import RunSetup
from tpsl.transport.peers import LABEL_PARTY
from tpsl.vault import (
    NO_LIMITS,
    NoisyLabels,
    NoisyStatistic,
    Overlap,
    ReleasePolicy,
    Spent,
    Vault,
    VaultError,
)
from tpsl.vault.cost import as_json
from tpsl.vault.ledger import describe_release, now
from tpsl.vault.place import default_place, free_name, vaults_in
from tpsl.vault.planned import Planned, PlannedStatistic


@dataclass(frozen=True)
class VaultChoice:
    """What the label party says of vaults, whatever the job says."""

    named: Path | None = None
    """The vault to use; None: look for it in `place`."""
    place: Path | None = None
    """The folder of the label party's vaults; None: the vault is the run's own, in its folder (experiments)."""
    policy: ReleasePolicy | None = None
    """What is permitted; None: no limits for the run's own vault, and the default limits for every other."""
    wait: float = 3600.0
    """Seconds to wait for a late label, or for a vault that is busy, where labels arrive while the job runs."""
    may_be_new: bool = False
    """Whether a vault that is named may know none of the records yet: they are added."""
    scratch: bool = False
    """Whether the run is for its owner alone: the vault is in its folder, counts in no total, and nothing leaves."""


class RunVault:
    """The vault of one run, and its training records in it."""

    scratch = False
    """Whether nothing of the run may leave."""

    def __init__(
        self,
        setup: RunSetup,
        side: LabelSide,
        path: Path,
        policy: ReleasePolicy | None = None,
        *,
        may_be_new: bool = False,
    ) -> None:
        policy = policy or (NO_LIMITS if path == setup.run.label / "vault" else ReleasePolicy())
        self.job, self.run, self._notice = setup.job, setup.run, setup.watching.notice
        self.records, self.path, self.policy = side.records, path, policy
        self.side, self._stored, self._continues = side, False, setup.run.origin(LABEL_PARTY) is not None
        self._may_be_new = may_be_new or self._continues
        self._noisy: NoisyLabels | None = None
        noted = setup.run.noted_ledger() or {}
        self._statistics: list[str] = list(noted.get("statistics", []))
        self._statistics_before: int | None = noted.get("statistics_before")
        self._total: Spent | None = None

    def store(self) -> None:
        """Have the labels of the training records in the vault; nothing is released, unless people are counted.

        How long it takes may depend on them, so a label party that listens does it before it opens its port.
        """
        store_labels(self.side, self.path, self._notice, may_be_new=self._may_be_new, scratch=self.scratch)
        self._stored = True
        if self.records.ids_are_new:
            self.noisy()

    def check(self) -> None:
        """Raise what the releases would raise, before anything is stored or drawn."""
        job, records = self.job, self.records
        if not Vault.exists(self.path):
            check_first_releases(job, records.classes, len(records.train), self.policy)
            return
        with Vault.open(self.path) as vault:
            if job.statistic is not None:
                vault.check_statistic(
                    statistic_plan(job, records.classes), statistic_ids(job, records), policy=self.policy
                )
            ids, planned = labelled_ids(job, records), self._planned()
            draws, seed = planned.draws, planned.seed
            vault.check_release(planned.mechanism, ids, draws=draws, seed=seed, policy=self.policy)
            if not job.has_late_labels:
                check_labels(vault, self.side, may_be_new=self._may_be_new)

    def _planned(self) -> Planned:
        """The release of noisy labels."""
        mechanism = self.job.privacy.build(self.records.classes)
        return Planned(mechanism, self.job.privacy.draws, self.job.privacy.noise_seed)

    def compared_with(self, vault: Vault) -> Overlap:
        """Return what another vault has in common with the run's training records."""
        return compared(vault, self.side)

    def noisy(self) -> NoisyLabels:
        """Return the noisy labels that training begins with: released when they are asked for the first time.

        The run notes its vault and what the records have spent.
        """
        if not self._stored:
            self.store()
        if self._noisy is None:
            self._noisy = release_labels(self.job, self.records, self.path, self._notice, self.policy)
            self.total()
        return self._noisy

    def statistic(self, width: int, blocks: Iterable[npt.NDArray[np.integer]]) -> NoisyStatistic:
        """Release a statistic of the job, of integer vectors of this width; the same ones again cost nothing.

        A run releases as many as its job says. A feature party that was restarted and sends something else does not get
        another, whatever the policy permits to different runs.
        """
        if not self._stored:
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

    def admit(self, party: LabelParty, batch: Rows, step: int) -> None:
        """Have the noisy labels of a step's records in the label party: it has had them from the beginning."""

    def completed(self, labels: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return true labels of the test records with those that were not known when they were loaded: none here."""
        return labels

    def total(self) -> Spent:
        """Return what the records whose labels are in the weights have spent by now, and note it.

        They are the training records; in a run that started from others all that the vault has released. What people
        have spent is known at the release.
        """
        if self.records.ids_are_new and self._total is not None:
            return self._total
        with Vault.open(self.path) as vault:
            return self._noted(vault.total(None if self._continues else self.records.training_ids))

    def _noted(self, total: Spent) -> Spent:
        """Note in the run's folder where the vault is, what the records have spent and the ledger's head.

        The note outlives the vault's absence: a page that cannot reach the vault shows what was noted.
        """
        planned = self._planned()
        with Vault.open(self.path) as vault:
            head = vault.head()
        content = {
            "release": describe_release(str(planned.mechanism), planned.draws, planned.seed),
            **({"statistics": self._statistics} if self._statistics else {}),
            **({} if self._statistics_before is None else {"statistics_before": self._statistics_before}),
            "head": head,
            "epsilon": as_json(total.epsilon),
            "delta": total.delta,
            "private": total.private,
            "records": total.records,
            "time": now(),
            **({"scratch": True} if self.scratch else {}),
        }
        self.run.note_ledger(self.path, content)
        self._total = total
        return total


def choose_vault(setup: RunSetup, side: LabelSide, choice: VaultChoice) -> RunVault:
    """Return the vault of a run, checked against the label party's policy; nothing is stored or drawn yet.

    A run that was begun goes on with its vault, and one that starts from an earlier run with the vault of that one.
    Otherwise it is the vault that was named, or the one in the place that holds the run's training records with the
    same labels, or a new one. A second vault for records that another one has released is refused, unless the policy
    permits composing.
    """

    def at(path: Path) -> RunVault:
        return RunVault(setup, side, path, choice.policy, may_be_new=choice.may_be_new)

    run = setup.run
    if not setup.job.releases:
        return at(run.label / "vault")
    begun, origin = begun_with(run, choice.named), run.origin(LABEL_PARTY)
    if begun is not None:
        chosen = at(begun)
    elif origin is not None and origin.ledgered is not None:
        chosen = at(_continued(origin.ledgered, choice.named))
    elif choice.scratch:
        chosen = at(run.label / "vault")
    elif choice.named is not None:
        chosen = at(choice.named)
        if choice.place is not None and not chosen.policy.compose:
            _refuse_second_vault(chosen, choice.place)
    elif choice.place is None:
        chosen = at(run.label / "vault")
    else:
        chosen = at(_found(at(run.label / "vault"), choice.place))
        if not chosen.policy.compose:
            _refuse_people_of_another_vault(chosen, vaults_in(choice.place))
    chosen.scratch = choice.scratch
    if Vault.exists(chosen.path) and is_scratch(chosen.path) != choice.scratch:
        kind = "counts in totals" if choice.scratch else "is that of a scratch run"
        remedy = "leave --scratch out" if choice.scratch else "add --scratch"
        raise VaultError(f"the vault {chosen.path} {kind}: {remedy}, or train anew with another --out")
    chosen.check()
    if setup.search is None:  # between the runs of a search a peer waits, and could measure it
        tell_of_rare_labels(setup.job, side, setup.watching.notice)
    if reason := setup.job.privacy.reason(side.records.classes):
        setup.watching.reason(reason)
    return chosen


def for_public_labels(setup: RunSetup, choice: VaultChoice) -> VaultChoice:
    """Return the choice for a run in one process: labels that come with tpsl are public, so it is a scratch run.

    It is none if a vault or another place is named, or if it goes on, or starts from a run, with a vault that counts.
    """
    is_named = choice.named is not None or choice.place not in (None, default_place())
    if is_named or not isinstance(setup.job.data, FlightsData | SyntheticData):
        return choice
    origin = setup.run.origin(LABEL_PARTY)
    ledgered = origin.ledgered if origin else None
    before = begun_with(setup.run, None) or (Path(ledgered.vault) if ledgered else None)
    return replace(choice, scratch=before is None or not Vault.exists(before) or is_scratch(before))


def is_scratch(vault: Path) -> bool:
    """Whether a vault counts in no total, and nothing of it may leave."""
    with Vault.open(vault) as opened:
        return opened.scratch


def begun_with(run: RunFolder, named: Path | None) -> Path | None:
    """Return the vault of a run that has released labels already; None for a new run, or if its vault is not there."""
    noted = run.noted_ledger()
    own = run.label / "vault"
    begun = Path(noted["vault"]) if noted else own
    if not Vault.exists(begun):
        return None
    if named is not None and noted and begun.resolve() != named.resolve():
        raise RunError(f"{run.path}: this run was begun with the vault {begun}, not with {named}; choose another --out")
    return None if named is not None and not noted else begun


def _continued(earlier: Ledgered, named: Path | None) -> Path:
    """The vault of the run that training starts from: its ledger adds up what old and new records spend."""
    path = Path(earlier.vault) if named is None else named
    if not Vault.exists(path):
        raise VaultError(f"the run that training starts from has released from the vault {path}, which is not there")
    with Vault.open(path) as vault:
        if vault.entries_since(earlier.head) is None:
            raise VaultError(
                f"training starts from a run that has released from the vault {earlier.vault}, and {path} is another "
                "one: new labels go into the same vault, whose ledger then speaks of all that the weights have learned"
            )
    return path


def _found(run: RunVault, place: Path) -> Path:
    """The one vault in the place that holds the run's records, or counts people where they are new, or a new path."""
    overlaps = _overlaps(run, vaults_in(place))
    are_new = run.records.ids_are_new  # then ids tell the alignment, and labels decide nothing that others see
    same = [vault for vault, overlap in overlaps.items() if overlap.same or (are_new and overlap.known)]
    what = "the training records are in"
    if are_new and not same:
        same, what = list(_counting_people(run, vaults_in(place))), "people are counted by"
    if len(same) > 1:
        raise VaultError(f"{what} several vaults: {_listed(same)}; choose one with --vault FOLDER")
    if same:
        return same[0]
    for vault, overlap in overlaps.items():
        if overlap.differing:
            raise VaultError(overlap.difference(vault))
    return free_name(place, vault_name(run.job))


def _refuse_second_vault(run: RunVault, place: Path) -> None:
    """Refuse a named vault for records that another one has released, if it would release them again."""
    named = run.path
    own = _overlaps(run, [named]).get(named) if Vault.exists(named) else None
    if own is not None and own.released == len(run.records.train):
        return
    others = {path.resolve(): path for path in (*vaults_in(place), *vaults_in(named.parent))}
    others.pop(named.resolve(), None)
    _refuse_people_of_another_vault(run, others.values())
    which = f"of the {len(run.records.train):,} training records"
    released = {
        vault: overlap.released for vault, overlap in _overlaps(run, others.values()).items() if overlap.similar
    }
    if run.records.ids_are_new:
        which, released = "records, which may be about the same people,", _counting_people(run, others.values())
    for vault, count in released.items():
        if count:
            raise VaultError(
                f"{count:,} {which} were released by the vault {vault}, so a release by {named} would add its ε to "
                "theirs; use that vault, or permit a second release with --compose (in Python compose=True)"
            )


def _refuse_people_of_another_vault(run: RunVault, others: Iterable[Path]) -> None:
    """Refuse to release labels that another vault has released under the ids of an alignment, or without one."""
    for path in others:
        with Vault.open(path) as vault:
            overlap = compared_without_alignment(vault, run.side) if vault.classes == run.records.classes else None
        if overlap is not None and overlap.similar and overlap.released:
            raise VaultError(
                f"{overlap.released:,} labels of the same people were released by the vault {path}, "
                f"{'without' if run.records.ids_are_new else 'in'} an alignment of mode label-only, so a release by "
                f"{run.path} would add its ε to theirs; permit a second release with --compose (in Python compose=True)"
            )


def _counting_people(run: RunVault, vaults: Iterable[Path]) -> dict[Path, int]:
    """The vaults that count what people spend, with labels of as many classes, and how many records each released."""
    found = {}
    for path in vaults:
        with Vault.open(path) as vault:
            if vault.counts_people and vault.classes == run.records.classes:
                found[path] = sum(count for releases, count in vault.ways_out() if releases)
    return found


def _overlaps(run: RunVault, vaults: Iterable[Path]) -> dict[Path, Overlap]:
    """What each vault with labels of as many classes has in common with the run's training records."""
    found = {}
    for path in vaults:
        with Vault.open(path) as vault:
            if vault.classes == run.records.classes:
                found[path] = run.compared_with(vault)
    return found


def vault_name(job: Job) -> str:
    """A name that says what a vault holds: the data and the label."""
    data = job.data
    label: str = data.task if isinstance(data, FlightsData) else ""
    if isinstance(data, TableData):
        label = data.label.label or "membership"
    return "-".join(filter(None, [data.source, re.sub(r"[^\w.-]+", "-", label).strip("-.")]))


def _listed(vaults: Iterable[Path]) -> str:
    return ", ".join(map(str, vaults))
