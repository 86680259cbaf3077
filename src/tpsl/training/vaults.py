"""Which label of the vault a run releases: found again by what it holds.

A label is released once and for good, and the label party's one vault adds up whatever is released of it
(`tpsl.vault.place`). So a run looks through the labels of the vault for the one that has its training records with the
same values, and makes a further one only where there is none. What the label party does not permit is refused here,
before a port is opened and before a label is stored. What others see of a refusal does not depend on whom the label
party knows, where an alignment keeps that secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain, count
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
from tpsl.vault.cost import Planned, PlannedStatistic, as_json
from tpsl.vault.ledger import describe_release, now
from tpsl.vault.place import address_of, is_vault, the_vault


@dataclass(frozen=True)
class VaultChoice:
    """What the label party says of its vault, whatever the job says."""

    named: Path | None = None
    """The vault's folder, or FOLDER/LABEL; None: the label party's one vault, or the run's own of a scratch run."""
    policy: ReleasePolicy | None = None
    """What is permitted; None: no limits for a scratch run, and the default limits for every other."""
    wait: float = 3600.0
    """Seconds to wait for a late label, or for a vault that is busy, where labels arrive while the job runs."""
    scratch: bool = False
    """Whether the run is for its owner alone: the vault is in its folder, counts in no total, and nothing leaves."""


class RunVault:
    """The vault of one run, and its training records in it."""

    def __init__(
        self,
        setup: RunSetup,
        side: LabelSide,
        path: Path,
        policy: ReleasePolicy | None = None,
        *,
        scratch: bool = False,
    ) -> None:
        policy, self.scratch = policy or (NO_LIMITS if scratch else ReleasePolicy()), scratch
        self.job, self.run, self._notice = setup.job, setup.run, setup.watching.notice
        self.records, self.path, self.policy = side.records, path, policy
        self.side, self._stored, self._continues = side, False, setup.run.origin(LABEL_PARTY) is not None
        self._noisy: NoisyLabels | None = None
        noted = setup.run.noted_ledger() or {}
        self._statistics: list[str] = list(noted.get("statistics", []))
        self._statistics_before: int | None = noted.get("statistics_before")
        self._total: Spent | None = None

    def store(self) -> None:
        """Have the labels of the training records in the vault; nothing is released, unless people are counted.

        How long it takes may depend on them, so a label party that listens does it before it opens its port.
        """
        new = not Vault.exists(self.path)
        store_labels(self.side, self.path, self._notice, name=vault_name(self.job), scratch=self.scratch)
        self._stored = True
        with Vault.open(self.path) as vault:
            self.path = vault.address
        if new and self.job.releases:
            self.check()  # now the vault knows which of its labels are the same as this one
        if self.records.ids_are_new:
            self.noisy()

    def check(self) -> None:
        """Raise what the releases would raise, before anything is stored or drawn."""
        job, records = self.job, self.records
        if not Vault.exists(self.path):
            check_first_releases(job, records.classes, len(records.train), self.policy)
            self._refuse_released_labels()
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
                check_labels(vault, self.side)

    def _refuse_released_labels(self) -> None:
        """Raise a `VaultError` if a new label is one that the vault has released under another name."""
        folder = address_of(self.path).folder
        for label in Vault.labels(folder) if not (self.scratch or self.policy.compose) else ():
            with Vault.open(folder / label) as vault:
                overlap = compared_without_alignment(vault, self.side) or compared(vault, self.side)
                spent = vault.total(None).epsilon if overlap.same_label else 0.0
            if spent:
                raise VaultError(
                    f"the labels are those that the vault {folder} has as {label!r}, with other names or numbers of "
                    f"classes maybe, and {overlap.released:,} of them were released: a release of them as "
                    f"{self.path.name!r} adds its ε to theirs; permit it with --set local.compose=true "
                    "(in Python compose=True)"
                )

    def _planned(self) -> Planned:
        """The release of noisy labels."""
        mechanism = self.job.privacy.build(self.records.classes)
        return Planned(mechanism, self.job.privacy.draws, self.job.privacy.noise_seed)

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
            head, identity = vault.head(), vault.identity
        content = {
            "release": describe_release(str(planned.mechanism), planned.draws, planned.seed),
            **({"statistics": self._statistics} if self._statistics else {}),
            **({} if self._statistics_before is None else {"statistics_before": self._statistics_before}),
            "identity": identity,
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
    Otherwise it is the label of the vault that holds the run's training records with the same values, or a new label.
    """
    run, scratch = setup.run, choice.scratch
    own = run.label / "vault"
    if not setup.job.releases:
        return RunVault(setup, side, own, choice.policy, scratch=scratch)
    begun, origin = begun_with(run, choice.named), run.origin(LABEL_PARTY)
    if begun is not None:
        path = begun
    elif origin is not None and origin.ledgered is not None:
        path = _continued(origin.ledgered, choice.named)
    else:
        path = choice.named or (own if scratch else the_vault())
        path = path if scratch else _label_in(path, setup.job, side, is_named=choice.named is not None)
    chosen = RunVault(setup, side, path, choice.policy, scratch=scratch)
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

    It is none if a vault is named, or if it goes on, or starts from a run, with a vault that counts.
    """
    if choice.named is not None or not isinstance(setup.job.data, FlightsData | SyntheticData):
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
    begun = _where_it_is(Path(noted["vault"])) if noted else run.label / "vault"
    if not Vault.exists(begun):
        return None
    if named is not None and noted and address_of(begun).folder.resolve() != address_of(named).folder.resolve():
        raise RunError(f"{run.path}: this run was begun with the vault {begun}, not with {named}; choose another --out")
    return None if named is not None and not noted else begun


def _where_it_is(vault: Path) -> Path:
    """Return where the label is that was at this path, if the vault was moved."""
    moved = the_vault() / vault.name
    return moved if not Vault.exists(vault) and Vault.exists(moved) else vault


def _continued(earlier: Ledgered, named: Path | None) -> Path:
    """The vault of the run that training starts from: its ledger adds up what old and new records spend."""
    path = _where_it_is(Path(earlier.vault)) if named is None else named
    if not Vault.exists(path):
        raise VaultError(f"the run that training starts from has released from the vault {path}, which is not there")
    with Vault.open(path) as vault:
        if vault.entries_since(earlier.head) is None:
            raise VaultError(
                f"training starts from a run that has released from the vault {earlier.vault}, and {path} is another "
                "one: new labels go into the same vault, whose ledger then speaks of all that the weights have learned"
            )
    return path


def _label_in(path: Path, job: Job, side: LabelSide, *, is_named: bool) -> Path:
    """The label of a vault that holds the run's records with the same values, or a path for a new one.

    A label of the same name that knows none of the records gets them, and so does the only label of a vault that was
    named. One that knows them with a few other values has to be corrected first.
    """
    folder, named = address_of(path)
    if named is not None or not (is_vault(folder) or folder == the_vault()):
        return path  # a label that is named, or the first one of a new vault
    records, name, overlaps = side.records, vault_name(job), dict[str, Overlap]()
    for label in Vault.labels(folder):
        with Vault.open(folder / label) as vault:
            if vault.classes == records.classes and vault.counts_people == records.ids_are_new:
                overlaps[label] = compared(vault, side)
    # Where ids are new they tell the alignment, and labels decide nothing that others see: people are counted together.
    found = [label for label, overlap in overlaps.items() if overlap.same or records.ids_are_new]
    only = set(overlaps) if is_named and len(Vault.labels(folder)) == 1 else set()
    found += [label for label in overlaps if label in {name, *only} and not overlaps[label].known]
    if found:
        return folder / (name if name in found else found[0])
    for label, overlap in overlaps.items():
        if overlap.same_label and 2 * overlap.differing < overlap.known:
            raise VaultError(overlap.difference(folder / label))
    taken = set(Vault.labels(folder))
    return folder / next(
        each for each in chain([name], (f"{name}-{number}" for number in count(2))) if each not in taken
    )


def vault_name(job: Job) -> str:
    """A name that says what a label is of: the data and the column."""
    data = job.data
    label: str = data.task if isinstance(data, FlightsData) else ""
    if isinstance(data, TableData):
        label = data.label.label or "membership"
    return "-".join(filter(None, [data.source, re.sub(r"[^\w.-]+", "-", label).strip("-.")]))
