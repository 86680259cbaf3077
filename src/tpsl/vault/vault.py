"""`Vault`: where the label party keeps true labels, and the only place they leave: noisy, once, and accounted for."""

import contextlib
import re
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms import Mechanism
from tpsl.progress import Notice, Progress, no_progress
from tpsl.vault import (
    ingest,
    ledger,
    place,
    releasing,
    same_labels,
    storage,
    verify,
)
from tpsl.vault.accounting import Account, Charge
from tpsl.vault.blocks import CHUNK, Positions, count_records, ids_in_order, labels_at
from tpsl.vault.canonical import Given as Column
from tpsl.vault.canonical import GivenIds, ids_as_text
from tpsl.vault.cost import (
    NO_LIMITS,
    Planned,
    PlannedStatistic,
    ReleasePolicy,
    Series,
    Spent,
    StatisticPlan,
    spent_after,
)
from tpsl.vault.coverage import PositionSet
from tpsl.vault.errors import DATABASE_ERRORS, VaultChanged, VaultError, explained, sqlite_errors
from tpsl.vault.id_index import find_positions
from tpsl.vault.ingest import Added, Batch, LabelTable
from tpsl.vault.ledger import Ledger
from tpsl.vault.near_duplicates import warn
from tpsl.vault.noise_tests import accusations, level_at, statistic_noise_tests
from tpsl.vault.noisy import NoisyLabels, NoisyStatistic, Room
from tpsl.vault.place import Address
from tpsl.vault.releasing import ReleaseReport, StatisticRequest
from tpsl.vault.same_labels import Overlap
from tpsl.vault.statement import facts
from tpsl.vault.store import Store
from tpsl.vault.texts import Texts

AnyIds = Sequence[Any] | npt.NDArray[Any]
Given = Iterable[Batch | LabelTable] | LabelTable
"""Records: (ids, labels, units or None) batches, or tables in files."""


class Vault:
    """A folder of true labels and their releases, for the label party alone.

    No method gives out a true label. Labels leave in two ways: as noisy labels (`release`), or many of them in one
    noisy statistic (`release_statistic`).
    Guarantees: a record gets one outcome for each draw of a series (mechanism, draws, noise), and a statistic is drawn
    once for the same vectors; both are stored durably before anyone can read them, and always the same. A second,
    different release of a record happens only if composing is permitted, and the ledger adds what it cost. Every
    operation happens whole or not at all, also under kill -9. With noisy labels fixed once, any number of epochs, runs
    and models is post-processing of one release (the recorded perturbation for multi-epoch training of "Differentially
    Private Label Protection in Split Learning").
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, address: Address) -> None:
        self.path = path
        folder = address.folder
        with storage.reading(connection, folder):
            storage.require_format(connection, folder)
            created = ledger.read_first(Store(connection, folder))
            found = same_labels.label_called(Store(connection, folder), address.label)
        self.label, self.classes, self.counts_people = found.name, found.classes, found.counts_people
        self._store = Store(connection, folder, found.number)
        self._last_known = 0
        self.scratch, self.apart = bool(created.details.get("scratch")), created.details.get("apart")
        self.identity = created.hash  # of the ledger's first entry: tells a vault from others, wherever it lies

    @classmethod
    def create(
        cls,
        path: str | PathLike[str],
        *,
        label: str | None = None,
        classes: int = 2,
        batches: Given = (),
        counts_people: bool = False,
        scratch: bool = False,
        apart: str | None = None,
        notice: Notice = warn,
        labels_before: Collection[str] | None = None,
    ) -> Self:
        """Create a vault for labels 0..classes-1, together with its first records if `batches` (`LabelTable`) has any.

        `path` is the folder of the vault, or FOLDER/LABEL for a further label of a vault that is there; `label` names
        the label of a new vault. A label party has one vault (`tpsl.vault.place`): a second one takes a sentence that
        says why its labels are nobody's in the first (`apart`). With `counts_people` the same people come again under
        new ids, ALIGNMENT-NUMBER: totals and limits are what a person can have spent over all alignments
        (`tpsl.vault.accounting`). A `scratch` vault is counted in no total, and nothing of it may leave. Either the
        label exists afterwards with all of the records, or an error is raised and nothing has changed. Near-duplicate
        ids are told to `notice`. If the vault does not have the labels any more that it had when this one was chosen
        (`labels_before`), that is a `VaultChanged`.
        """
        path = Path(path)
        folder, name = place.address_of(path) if label is None else (path, label)
        name = name or "label"
        if isinstance(classes, bool) or not isinstance(classes, (int, np.integer)) or not 2 <= classes <= 65_536:
            raise VaultError(f"a label needs at least 2 and at most 65536 classes, not {classes!r}")
        if not re.fullmatch(r"[\w][\w.+-]{0,99}", name):
            raise VaultError(f"a label is called by letters, digits, '.', '+', '_' and '-', not {name!r}")
        there, _ = _at(folder)
        if apart and there:
            raise VaultError(f"{folder} is a vault already: that a vault is apart is said when it is made")
        if not (scratch or there.get("scratch")):
            place.require_counted(folder, apart or there.get("apart"))
        storage.make_file(folder)
        with (
            contextlib.closing(storage.connect(folder)) as connection,
            storage.writing(connection, folder),
        ):
            store = Store(connection, folder)
            if storage.is_blank(connection):
                storage.write_schema(connection)
                kind = {"scratch": scratch, "apart": apart}
            else:
                storage.require_format(connection, folder)
                kind = {}
            if labels_before is not None and same_labels.labels_of(store).keys() != set(labels_before):
                raise VaultChanged(folder)
            if name in same_labels.labels_of(store):
                raise VaultError(
                    f"the vault {folder} has a label {name!r} already: `tpsl vault add` adds records to it"
                )
            kind["counts_people"] = counts_people
            store = storage.add_label(store, name, int(classes), {key: value for key, value in kind.items() if value})
            ingest.add(store, int(classes), batches, notice)
        return cls.open(path if label is None else folder / name)

    @classmethod
    def open(cls, path: str | PathLike[str]) -> Self:
        """Open a label of an existing vault, FOLDER/LABEL; what a killed process left unfinished is undone first.

        FOLDER alone means the only label that the vault has.
        """
        address = place.address_of(Path(path))
        connection = storage.connect(address.folder)
        try:
            return cls(Path(path), connection, address)
        except BaseException:
            connection.close()
            raise

    @staticmethod
    def labels(folder: str | PathLike[str]) -> list[str]:
        """The names of the labels of the vault in a folder, oldest first; none where there is no vault."""
        return _at(Path(folder))[1]

    @classmethod
    def exists(cls, path: str | PathLike[str]) -> bool:
        """Say whether there is such a vault, or such a label; a creation that was killed midway counts as nothing.

        Raises a `VaultError` for a file that is no vault, rather than taking its place for free.
        """
        folder, label = place.address_of(Path(path))
        labels = cls.labels(folder)
        return bool(labels) if label is None else label in labels

    @property
    def address(self) -> Path:
        """FOLDER/LABEL: what this label is found by, however many the vault gets."""
        return self._store.folder / self.label

    def close(self) -> None:
        """Close the vault's file; the object cannot be used afterwards."""
        self._store.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        """The number of records."""
        with sqlite_errors(self._store.folder):
            return count_records(self._store)

    def knows(self, ids: AnyIds) -> npt.NDArray[np.bool_]:
        """For each of these records, whether the vault has it, and so its label."""
        return self.positions(ids) >= 0

    def _reading(self) -> contextlib.AbstractContextManager[None]:
        """One state of the vault for all reads, whatever others write at the same time."""
        return storage.reading(self._store.connection, self._store.folder)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """All or nothing; when it ends, what was done is durable."""
        with storage.writing(self._store.connection, self._store.folder):
            # Those of others since the last time: one of a kind that is not known is an error.
            for entry in ledger.read_entries(self._store, self._last_known):
                self._last_known = entry.sequence
            yield

    def require_units(self, ids: AnyIds, units: Column) -> None:
        """Raise a `VaultError` unless the vault has these records with these units."""
        texts = GivenIds(units, "unit", "the units").where(np.ones(len(units), np.bool_))
        with self._reading():
            ingest.require_units(self._store, self._known(ids), texts)

    def compare(self, ids: AnyIds, labels: npt.NDArray[np.int64]) -> Overlap:
        """Count which of these records the vault knows, with another label, and with a release.

        A negative label is unknown and differs from none. The comparison happens here: no true label leaves the vault.
        """
        with self._reading():
            return same_labels.compare(self._store, ids, self._find(ids), labels)

    def keep_file_records(self, ids: Column, labels: npt.NDArray[np.int64]) -> None:
        """Keep the records of the label party's file that alignments make new ones of, to recognise them later."""
        with self._writing():
            same_labels.keep_file_records(self._store, ids, labels)

    def add(self, batches: Given, *, notice: Notice = warn, only_new: bool = False) -> Added:
        """Add (ids, labels, units or None) batches: all of them, or none if anything in them is wrong.

        New ids are appended. A known id with another label gets the new label and keeps its release, if it has one;
        with `only_new` any known id is a `VaultChanged`. Near-duplicates among the new ids are told to `notice`.
        """
        with self._writing():
            added = ingest.add(self._store, self.classes, batches, notice)
            if only_new and (added.unchanged or added.changed):
                raise VaultChanged(self._store.folder)
            return added

    def release(
        self,
        mechanism: Mechanism,
        *,
        draws: int = 1,
        ids: AnyIds | None = None,
        compose: bool = False,
        seed: int | None = None,
        policy: ReleasePolicy = NO_LIMITS,
        progress: Progress = no_progress,
    ) -> ReleaseReport:
        """Draw the noisy labels of all records (or of `ids`) that do not have one in this series yet.

        `draws=1` is section 4.2 of the paper (epsilon), `draws=2` its Algorithm 3 (two independent draws, 2 epsilon).
        Asking again draws nothing. Records that were released under another mechanism, epsilon, number of draws or
        noise are refused, unless `compose=True`: then they get a further release and the ledger adds up. A `seed` makes
        the noise repeatable for experiments, and the release NOT PRIVATE. What the `policy` does not permit is an error
        before anything is drawn: by default a δ above 1/records.
        """
        planned = self._planned(mechanism, draws, seed)
        self._require_counted()
        with self._writing():
            wanted = self._wanted(ids)
            account = Account(self._store)
            self._require(account, wanted, planned.series, account.spent(wanted, planned), policy, compose=compose)
            return releasing.release(self._store, account, planned, wanted, progress=progress)

    def noisy_labels(
        self, mechanism: Mechanism, ids: AnyIds, *, draws: int = 1, seed: int | None = None, room: Room = np.empty
    ) -> NoisyLabels:
        """The released noisy labels of these records, in the order of `ids`; the same ones at every call.

        Raises a `VaultError` with the count and the first id if records are unknown or not released in this series.
        """
        planned = self._planned(mechanism, draws, seed)
        with self._reading():
            return releasing.noisy_labels(self._store, planned, self._known(ids), room)

    def released(
        self, mechanism: Mechanism, *, draws: int = 1, seed: int | None = None
    ) -> Iterator[tuple[list[str], npt.NDArray[Any]]]:
        """All records that are released in this series, as (ids, outcomes `[draws, records, …]`) in blocks.

        In the order of their ids, as text: that of the positions is the order of the label party's file, which may be
        sorted by label, and then it would tell every one of them. In the memory of the outcomes, without the ids. What
        is released after the first block was asked for is left out.
        """
        planned = self._planned(mechanism, draws, seed)
        with self._reading():
            covered, outcomes = releasing.outcomes_of_series(self._store, planned)
            ordered = ids_in_order(self._store)
        with ordered:
            for ids, positions in ordered.parts():
                here = np.flatnonzero(covered[positions])
                for start in range(0, len(here), CHUNK):
                    rows = here[start : start + CHUNK]
                    yield Texts(ids).take(rows).to_list(), outcomes[:, positions[rows]]

    def release_statistic(
        self,
        plan: StatisticPlan,
        ids: AnyIds,
        blocks: Iterable[npt.NDArray[np.integer]],
        *,
        policy: ReleasePolicy = NO_LIMITS,
        progress: Progress = no_progress,
    ) -> NoisyStatistic:
        """Release `T = Σ_i y_i q_i` of these records once, with noise: the second kind of release.

        `blocks` are the integer vectors q_i in the order of `ids`, cut into blocks anyhow; they are read while the
        vault is locked. Guarantee: the plan's cost for each record, whoever chose the vectors and however, since the
        vault itself keeps them within the bound. The same vectors for the same records, under the same plan, give what
        was stored the first time: nothing is drawn, nothing spent. Other vectors are another release. Records with any
        release before are refused unless the policy permits composing; what it does not permit is an error before
        anything is drawn. A plan of several releases is asked for as a whole with the first one.
        """
        self._require_counted()
        with self._writing():
            request = self._statistic(plan, ids)
            return request.release(blocks, lambda left: self._permit(request, left, policy), progress)

    def noisy_statistics(self, plan: StatisticPlan, ids: AnyIds) -> list[NoisyStatistic]:
        """The statistics of these records that were released under this plan, oldest first; nothing is drawn."""
        with self._reading():
            request = self._statistic(plan, ids)
            found = [entry for entry in request.candidates() if entry.details["width"] == plan.width]
            if not found:
                raise VaultError(f"vault {self.path} has released no statistic of these records under this plan")
            return [request.stored(entry) for entry in found]

    def count_statistics(self, plan: StatisticPlan, ids: AnyIds) -> int:
        """How many statistics of these records were released under this plan, of vectors of any width."""
        with self._reading():
            return len(self._statistic(plan, ids).candidates())

    def check_statistic(self, plan: StatisticPlan, ids: AnyIds, *, policy: ReleasePolicy) -> None:
        """Raise what a statistic of these records would raise; nothing is drawn, and the vault need not know them yet.

        Where the vault has a statistic of these records with this noise and bound, its vectors may be the same, and
        nothing is raised. The width plays no part.
        """
        planned = PlannedStatistic(plan, self.classes, plan.releases)
        with self._reading():
            positions = self._find(ids)
            if (positions >= 0).all() and StatisticRequest(self._store, planned, positions).candidates():
                return
            self._check(planned, ids, policy)

    def statistic_problems(
        self, plan: StatisticPlan, ids: AnyIds, blocks: Iterable[npt.NDArray[np.integer]]
    ) -> list[str]:
        """Test the noise of a released statistic against the true labels, which needs its vectors; a sentence each.

        Sound noise is accused with probability at most 1e-6, all statistics of the vault together.
        """
        with self._reading():
            request = self._statistic(plan, ids)
            verify.require_unchanged_labels(self._store)
            sums, phi_digest = request.sum(blocks)
            found = [entry for entry in request.candidates() if entry.details["phi_digest"] == phi_digest]
            if not found:
                raise VaultError(f"vault {self.path} has released no statistic of these records with these vectors")
            added, sequence = request.stored(found[0]).values - sums, found[0].sequence
            return accusations(statistic_noise_tests(plan.noise, added, f"release {sequence}"), level_at(sequence))

    def class_counts(self, ids: AnyIds | None = None) -> list[int]:
        """How many of all records (or of `ids`) have each label: for the label party to see before it releases them."""
        counts = np.zeros(self.classes, np.int64)
        with self._reading():
            for chunk, mask in self._wanted(ids).masks():
                labels = labels_at(self._store, chunk * CHUNK + np.flatnonzero(mask))
                counts += np.bincount(labels, minlength=self.classes)
        return [int(count) for count in counts]

    def ledger(self) -> Ledger:
        """What happened to this vault and what it has spent."""
        with self._reading():
            return Account(self._store).ledger()

    def positions(self, ids: AnyIds) -> npt.NDArray[np.int64]:
        """The position of each id, or -1 where the label does not know it."""
        with self._reading():
            return self._find(ids)

    def head(self) -> str:
        """The hash of the newest entry of the ledger."""
        with self._reading():
            return ledger.read_last(self._store)[1]

    def total(self, ids: AnyIds | None) -> Spent:
        """The largest ε and δ that any of these records, or people, has spent over all releases; rounded up.

        None: of all records.
        """
        with self._reading():
            return Account(self._store).spent(self._wanted(ids))

    def check_release(
        self,
        mechanism: Mechanism,
        ids: AnyIds,
        *,
        draws: int = 1,
        seed: int | None = None,
        policy: ReleasePolicy,
    ) -> None:
        """Raise what a release of these records would raise; nothing is drawn, and the vault need not know them yet."""
        with self._reading():
            self._check(self._planned(mechanism, draws, seed), ids, policy)

    def _check(self, planned: Charge, ids: Column, policy: ReleasePolicy) -> None:
        """Raise what the release of these records would raise, some of which the vault does not know yet."""
        positions, known = self._find(ids), PositionSet()
        known.add(positions[positions >= 0])
        account, new = Account(self._store), GivenIds(ids).where(positions < 0)
        after = account.spent(known, planned, new)
        self._require(account, known, planned.series, after, policy, new=len(new))

    def _permit(self, request: StatisticRequest, planned: PlannedStatistic, policy: ReleasePolicy) -> None:
        """Raise a `VaultError` unless this statistic may be drawn, and what is left of its plan's releases after it."""
        account, permitted_with_the_first = Account(self._store), planned.releases < planned.plan.releases
        after = account.spent(request.wanted, planned)
        self._require(account, request.wanted, None, after, policy, compose=permitted_with_the_first)
        if self.counts_people:
            request.require_one_alignment()

    def _require(
        self,
        account: Account,
        wanted: PositionSet,
        series: Series | None,
        after: Spent,
        policy: ReleasePolicy,
        *,
        compose: bool = False,
        new: int = 0,
    ) -> None:
        """Raise a `VaultError` unless a release in a series may bring the records to what they have spent `after` it.

        None: a series of its own. A second release that nobody has asked for comes first: its error names what costs
        nothing. `new` records will be in the vault by then.
        """
        if not (compose or policy.compose):
            releasing.check_conflicts(account, wanted, series, spent_after(after))
        policy.check(after, count_records(self._store) + new)

    def back_up(self, folder: str | PathLike[str]) -> None:
        """Copy the vault as it is at one moment, also while others use it, to a folder that is new or empty."""
        storage.back_up(self._store.connection, self._store.folder, Path(folder))

    def verify(self, progress: Progress = no_progress) -> list[str]:
        """Recompute all that the ledger claims; return a sentence for each thing that is wrong, none if it is sound.

        The noise is tested too: how often each outcome stands with each label, and whether the noise of neighbouring
        records and of several releases is independent. Sound noise is accused with probability at most 1e-6 in the life
        of a vault, however many labels and releases it has and however often it is verified. Nothing is drawn: the same
        vault always gives the same sentences.
        """
        try:
            self._store.execute("BEGIN")
            return verify.verify(self._store, progress)
        except DATABASE_ERRORS as error:
            return [str(explained(self._store.folder, error))]
        finally:
            self._store.connection.rollback()

    def entries_since(self, head: str) -> int | None:
        """How many entries the ledger got after the one with this hash; None if none has it, so it was cut or replaced.

        Says something about the entries before only if `verify` finds the vault sound.
        """
        with self._reading():
            return ledger.entries_since(self._store, head)

    def statement(self) -> dict[str, Any]:
        """What can be stated to others about this label, as JSON-able data (`tpsl.vault.statement`)."""
        self.refuse_scratch()
        with self._reading():
            return facts(self._store)

    def refuse_scratch(self) -> None:
        """Raise a `VaultError` if nothing of this vault may leave."""
        if self.scratch:
            raise VaultError(f"{self.path} is the vault of a scratch run: nothing of it may leave")

    def _require_counted(self) -> None:
        """Raise a `VaultError` if what this vault releases would be missing in the label party's total."""
        if not self.scratch:
            place.require_counted(self._store.folder, self.apart)

    def cannot_see(self) -> list[str]:
        """Say, a sentence each, what `verify` cannot find."""
        with self._reading():
            return verify.cannot_see(self._store)

    def _planned(self, mechanism: Mechanism, draws: int, seed: int | None) -> Planned:
        if mechanism.classes != self.classes:
            raise VaultError(
                f"vault {self.path} has labels of {self.classes} classes, the mechanism {mechanism} is for "
                f"{mechanism.classes}"
            )
        return Planned(mechanism, draws, seed)

    def _find(self, ids: AnyIds) -> Positions:
        """The position of each of these ids, -1 where the vault does not know it."""
        return find_positions(self._store, GivenIds(ids))

    def _known(self, ids: AnyIds) -> Positions:
        """The position of each of these ids, all of which the vault must know."""
        positions = self._find(ids)
        unknown = np.flatnonzero(positions < 0)
        if len(unknown):
            first = ids_as_text(ids[int(unknown[0]) :][:1])[0]
            raise VaultError(
                f"vault {self.path} does not know {len(unknown)} of the {len(ids)} records (the first is {first!r})"
            )
        return positions

    def _statistic(self, plan: StatisticPlan, ids: AnyIds) -> StatisticRequest:
        """The request for a statistic of these ids, all of which the vault must know."""
        return StatisticRequest(self._store, PlannedStatistic(plan, self.classes), self._known(ids))

    def _wanted(self, ids: AnyIds | None) -> PositionSet:
        """The positions of these ids, all of which the vault must know; None: of all records."""
        if ids is None:
            return PositionSet.up_to(count_records(self._store))
        wanted = PositionSet()
        wanted.add(self._known(ids))
        return wanted


def _at(folder: Path) -> tuple[Mapping[str, Any], list[str]]:
    """What the ledger says of the creation of the vault in a folder, and its labels; nothing where there is none."""
    if not place.is_vault(folder):
        return {}, []
    with contextlib.closing(storage.connect(folder)) as connection, storage.reading(connection, folder):
        if storage.is_blank(connection):
            return {}, []
        storage.require_format(connection, folder)
        store = Store(connection, folder)
        return ledger.read_first(store).details, list(same_labels.labels_of(store))
