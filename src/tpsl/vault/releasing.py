"""Labels out of the vault, in the two ways there are: noisy labels, and one noisy statistic of many records.

Both are drawn once, stored before anyone can read them, and always the same. A statistic is summed from true labels
here.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms import clip_rows, secure_words, seeded_words
from tpsl.progress import Progress, no_progress
from tpsl.vault import coverage, ledger
from tpsl.vault.accounting import Account
from tpsl.vault.blocks import CHUNK, Positions, by_chunk, chunk_count, count_records, id_at, labels_at, read_block
from tpsl.vault.cost import Planned, PlannedStatistic, Series
from tpsl.vault.coverage import PositionSet, outcomes_of_chunk
from tpsl.vault.errors import VaultError
from tpsl.vault.ledger import Entry
from tpsl.vault.noisy import VAULT_ONLY, NoisyLabels, NoisyStatistic, Room
from tpsl.vault.store import Store
from tpsl.vault.texts import Texts

Rows = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.integer]
Sums = npt.NDArray[np.int64]

_ROWS_AT_ONCE = 65_536
_NUMBERS_AT_ONCE = 1 << 22


@dataclass(frozen=True, kw_only=True)
class ReleaseReport(Planned):
    """What a release did. `released` is 0 when every record had its noisy label already: nothing was drawn or spent."""

    requested: int
    released: int
    composed: int
    """How many of the newly released records had been released before under something else."""

    @property
    def already_released(self) -> int:
        """How many of the requested records had their noisy labels already."""
        return self.requested - self.released

    def __str__(self) -> str:
        if not self.released:
            return f"all {self.requested:,} records had their noisy labels already: nothing drawn, nothing spent"
        draws = "" if self.draws == 1 else f" in {self.draws} draws (together ε = {self.epsilon:.6g})"
        already = f"; {self.already_released:,} had theirs already" if self.already_released else ""
        composed = f"; {self.composed:,} had another release before" if self.composed else ""
        warning = "" if self.private else " — NOT PRIVATE"
        return f"released {self.released:,} noisy labels by {self.mechanism}{draws}{already}{composed}{warning}"


def release(
    store: Store, account: Account, planned: Planned, wanted: PositionSet, *, progress: Progress
) -> ReleaseReport:
    """Draw for every wanted record that this series does not cover yet, inside the running transaction."""
    missing, elsewhere = account.histories.without(planned.series, wanted)
    requested, released, composed = len(wanted), len(missing), elsewhere.total()
    if released:
        _draw(store, planned, missing, released, progress)
    return ReleaseReport(
        planned.mechanism, planned.draws, planned.seed, requested=requested, released=released, composed=composed
    )


def check_conflicts(account: Account, wanted: PositionSet, series: Series | None, after: str) -> None:
    """Raise a `VaultError` if a release in this series would be a second one for any wanted record.

    None: a series of its own. `after` says whom it would bring to which ε.
    """
    elsewhere = account.conflicts(wanted, series)
    if not elsewhere:
        return
    under = "; ".join(f"{count:,} under {' and '.join(texts)}" for texts, count in elsewhere.most_common(3))
    raise VaultError(
        f"{elsewhere.total():,} records were released before under something else ({under}): the same mechanism and ε "
        "again cost nothing; `tpsl train --scratch` tries another ε in a run that never leaves and is counted in no "
        f"total; --set local.compose=true (in Python compose=True) releases the labels a second time, "
        f"which brings {after}, for good"
    )


def noisy_labels(store: Store, planned: Planned, positions: Positions, room: Room) -> NoisyLabels:
    """Read the stored outcomes of the records at these positions, in their order; memory is the room for them."""
    mechanism, draws, number = planned.mechanism, planned.draws, _number_of(store, planned.series)
    outcomes = room((draws, len(positions), *mechanism.outcome_shape), mechanism.outcome_dtype)
    missing, first_missing = 0, len(positions)
    for chunk, rows in by_chunk(positions):
        places = positions[rows] % CHUNK
        covered, found = outcomes_of_chunk(store, chunk, number, mechanism, draws)
        outcomes[:, rows] = found[:, places]
        not_released = rows[~covered[places]]
        missing, first_missing = missing + len(not_released), int(not_released.min(initial=first_missing))
    if missing:
        noise = "secure noise" if planned.seed is None else f"noise seeded with {planned.seed}"
        raise VaultError(
            f"{missing:,} of the {len(positions):,} records are not released under {mechanism}, {draws} "
            f"draw{'s' if draws > 1 else ''}, {noise} (the first is {id_at(store, int(positions[first_missing]))!r}); "
            "release them first"
        )
    outcomes.flags.writeable = False
    return NoisyLabels(mechanism, tuple(outcomes), planned.private, VAULT_ONLY)


def outcomes_of_series(store: Store, planned: Planned) -> tuple[npt.NDArray[np.bool_], npt.NDArray[Any]]:
    """Which positions a series covers, and outcomes `[draws, records, …]`, which mean nothing at the others."""
    mechanism, draws, records = planned.mechanism, planned.draws, count_records(store)
    covered = np.zeros(records, np.bool_)
    outcomes = np.zeros((draws, records, *mechanism.outcome_shape), mechanism.outcome_dtype)
    number = _number_of(store, planned.series)
    for chunk in range(chunk_count(records)):
        here, count = slice(chunk * CHUNK, (chunk + 1) * CHUNK), min(CHUNK, records - chunk * CHUNK)
        mask, found = outcomes_of_chunk(store, chunk, number, mechanism, draws)
        covered[here], outcomes[:, here] = mask[:count], found[:, :count]
    return covered, outcomes


def _number_of(store: Store, series: Series) -> int | None:
    """The number of a series; None where nothing was released in it."""
    entries = ledger.Entries(store)
    return next((number for number in coverage.series_numbers(store) if entries[number].series == series), None)


def _draw(store: Store, planned: Planned, missing: PositionSet, records: int, progress: Progress) -> None:
    """Draw and store the outcomes of the missing positions, and enter the release into the ledger."""
    mechanism, draws = planned.mechanism, planned.draws
    entry = ledger.read_last(store)[0] + 1
    number = _number_of(store, planned.series) or entry
    secure, ids_digest, outcomes_digest, done = secure_words(), sha256(), sha256(), 0
    for chunk, mask in missing.masks():
        block = read_block(store, chunk)
        covered, count = mask[: len(block)], int(mask.sum())
        outcomes = np.empty((draws, count, *mechanism.outcome_shape), mechanism.outcome_dtype)
        for draw in range(draws):
            if planned.seed is None:
                outcomes[draw] = mechanism.release(block.labels[covered], secure).outcomes
            else:
                # The noise of a position depends on the seed and the position alone, not on which records are
                # released together, so an experiment can be repeated after records arrived in another order.
                words = seeded_words(planned.seed, mechanism.digest, draw + 1, chunk)
                outcomes[draw] = mechanism.release(block.labels, words).outcomes[covered]
        coverage.add_release(store, chunk, entry, number, mask, outcomes)
        ids_digest.update(block.ids.take(covered).to_bytes())
        outcomes_digest.update(coverage.encode_outcomes(outcomes))
        done += count
        progress(done, records, "releasing labels")
    digests = {"ids_digest": ids_digest.hexdigest(), "outcomes_digest": outcomes_digest.hexdigest()}
    ledger.append(store, "released", {**planned.details(), "records": records, **digests})


class StatisticRequest:
    """A request for a statistic of the records at these positions, inside the running transaction.

    No record may be in it twice: its label would move the statistic by twice the bound.
    """

    def __init__(self, store: Store, planned: PlannedStatistic, positions: npt.NDArray[np.int64]) -> None:
        self._store, self._planned, self.positions = store, planned, positions
        if not len(positions):
            raise VaultError("a statistic needs at least one record")
        self.wanted, digest = PositionSet(), sha256()
        self.wanted.add(positions)
        if len(self.wanted) < len(positions):
            ordered = np.sort(positions)
            id = id_at(store, int(ordered[1:][ordered[1:] == ordered[:-1]][0]))
            raise VaultError(f"the record {id!r} occurs twice in a statistic; each may be in it once")
        for ids in self._ids_by_chunk():
            digest.update(ids.to_bytes())
        self._ids_digest = digest.hexdigest()

    def release(
        self, blocks: Iterable[Vectors], permit: Callable[[PlannedStatistic], None], progress: Progress = no_progress
    ) -> NoisyStatistic:
        """The statistic as it was released before, if it was; otherwise it is drawn and stored, if `permit` lets it.

        Whether it was is known only when all q_i are. Where it cannot have been, `permit` is asked before any is read.
        It is asked for all that are left of the plan's releases: for all of them if this is the first.
        """
        candidates, releases = self.candidates(), self._planned.plan.releases
        left = replace(self._planned, releases=releases - len(candidates) % releases)
        if not candidates:
            permit(left)
        sums, phi_digest = self.sum(blocks, progress)
        for entry in candidates:
            if entry.details["phi_digest"] == phi_digest:
                return self.stored(entry)
        if candidates:
            permit(left)
        return self._draw(sums, phi_digest, len(candidates))

    def candidates(self) -> list[Entry]:
        """The releases that this may be, if the q_i are the same: of the same records under the same plan."""
        plan, ids_digest = self._planned.plan, self._ids_digest
        asked = (plan.noise.spec(), plan.noise.digest, plan.bound, plan.seed, plan.releases, ids_digest)
        names = ("mechanism", "noise_digest", "bound", "seed", "releases", "ids_digest")
        in_first = coverage.read_chunk(self._store, int(self.positions.min()) // CHUNK)
        entries = ledger.Entries(self._store)
        return [
            entry
            for entry in (entries[row.entry] for row in in_first)
            if entry.kind == "statistic" and tuple(entry.details[name] for name in names) == asked
        ]

    def require_one_alignment(self) -> None:
        """Raise a `VaultError` if records of several alignments are in it, which may be about the same people.

        People are charged alignment by alignment, and labels in one statistic share its noise.
        """
        names = {id.rstrip("0123456789") for ids in self._ids_by_chunk() for id in ids.to_list()}
        if len(names) > 1:
            raise VaultError(
                f"a statistic of records of {len(names)} alignments is refused in a vault that counts people, who may "
                "have several records in it; release one for each alignment"
            )

    def sum(self, blocks: Iterable[Vectors], progress: Progress = no_progress) -> tuple[Sums, str]:
        """`T` without noise, and the digest of the q_i: of positions and rows, as the vault has scaled them down.

        The rows come in the order of the records, in blocks of any length; whoever chose them, no record moves T by
        more than the bound. What is computed, and for how long, does not depend on the labels.
        """
        plan, classes = self._planned.plan, self._planned.classes
        sums = np.zeros(plan.shape(classes), np.int64)
        digest, done = sha256(self.positions.astype("<i8").tobytes()), 0
        at_once = max(1, min(_ROWS_AT_ONCE, _NUMBERS_AT_ONCE // max(plan.shape(classes))))
        for block in blocks:
            self._check(block, done)
            for start in range(0, len(block), at_once):
                rows = clip_rows(block[start : start + at_once], plan.bound, plan.noise.norm)
                labels = labels_at(self._store, self.positions[done : done + len(rows)])
                sums += _sums_by_class(labels, rows, classes)
                digest.update(rows.astype("<i4", copy=False).tobytes())
                done += len(rows)
                progress(done, len(self.positions), "summing the statistic")
        if done < len(self.positions):
            raise VaultError(f"a statistic of {len(self.positions):,} records got rows for {done:,} of them")
        return sums, digest.hexdigest()

    def stored(self, entry: Entry) -> NoisyStatistic:
        """What was released by this entry, which has the same q_i."""
        shape = self._planned.plan.shape(self._planned.classes)
        return self._released(decode_values(read_values(self._store, entry), shape))

    def _draw(self, sums: Sums, phi_digest: str, earlier: int) -> NoisyStatistic:
        """Add the noise, and store what is released with its ledger entry; `earlier` ones have the same plan."""
        plan, ids_digest = self._planned.plan, self._ids_digest
        context = [plan.noise.digest, ids_digest, *([str(earlier)] if earlier else [])]
        words = secure_words() if plan.seed is None else seeded_words(plan.seed, *context)
        values = sums + plan.noise.sample(sums.size, words).reshape(sums.shape)
        blob = values.astype("<i8", copy=False).tobytes()
        digests = {"ids_digest": ids_digest, "phi_digest": phi_digest, "values_digest": sha256(blob).hexdigest()}
        details = {**self._planned.details(), "records": len(self.positions), **digests}
        entry = ledger.append(self._store, "statistic", details)
        for chunk, mask in self.wanted.masks():
            coverage.add_release(self._store, chunk, entry.sequence, entry.sequence, mask)
        self._store.execute("INSERT INTO statistics VALUES (?, ?)", (entry.sequence, blob))
        return self._released(values)

    def _ids_by_chunk(self) -> Iterator[Texts]:
        """The ids of the records in the order of their positions."""
        for chunk, mask in self.wanted.masks():
            ids = read_block(self._store, chunk).ids
            yield ids.take(mask[: len(ids)])

    def _released(self, values: Sums) -> NoisyStatistic:
        return NoisyStatistic(values, self._planned.plan, len(self.positions), self._planned.private, VAULT_ONLY)

    def _check(self, block: Vectors, done: int) -> None:
        """Raise a `VaultError` unless a block has rows of integers for records that have none yet."""
        width = self._planned.plan.width
        if not isinstance(block, np.ndarray) or block.dtype.kind not in "iu" or block.shape[1:] != (width,):
            what = f"{block.dtype} of shape {block.shape}" if isinstance(block, np.ndarray) else type(block).__name__
            raise VaultError(f"a statistic is summed from integers, {width:,} for each record, not from {what}")
        if done + len(block) > len(self.positions):
            raise VaultError(f"a statistic of {len(self.positions):,} records got rows for more of them")


def read_values(store: Store, entry: Entry) -> bytes:
    """The stored numbers of the statistic of this entry, as `decode_values` reads them."""
    found = store.execute("SELECT vectors FROM statistics WHERE entry = ?", (entry.sequence,)).fetchone()
    return bytes(found[0]) if found else b""


def decode_values(blob: bytes, shape: tuple[int, int]) -> Sums:
    """The stored numbers of a statistic."""
    if len(blob) != 8 * shape[0] * shape[1]:
        raise VaultError("the numbers of a statistic have the wrong length; run verify on the vault")
    return np.frombuffer(blob, "<i8").astype(np.int64).reshape(shape)


def _sums_by_class(labels: npt.NDArray[np.int64], rows: npt.NDArray[np.int32], classes: int) -> Sums:
    """`Σ_i 1[y_i = c] q_i` for each class c; of two classes for class 1 alone.

    One dense product: the same instructions for all labels. Doubles hold it exactly, since no partial sum of 65,536
    numbers up to 2^20 reaches 2^53.
    """
    counted = np.arange(classes) if classes > 2 else np.ones(1, np.int64)
    is_counted = (labels == counted[:, None]).astype(np.float64)
    sums: Sums = (is_counted @ rows.astype(np.float64)).astype(np.int64)
    return sums
