"""Noisy labels out of the vault: drawn once, stored, and always the same."""

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms import secure_words, seeded_words
from tpsl.progress import Progress
from tpsl.vault import coverage, ledger
from tpsl.vault.accounting import Account
from tpsl.vault.blocks import CHUNK, Positions, by_chunk, chunk_count, count_records, id_at, read_block
from tpsl.vault.coverage import PositionSet
from tpsl.vault.errors import VaultError
from tpsl.vault.id_index import Found
from tpsl.vault.ledger import Series
from tpsl.vault.noisy import VAULT_ONLY, NoisyLabels, Room
from tpsl.vault.planned import Planned
from tpsl.vault.store import Store
from tpsl.vault.texts import TextDigest

Rows = npt.NDArray[np.int64]


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
        f"total; --compose (in Python compose=True) releases the labels a second time, which brings {after}, for good"
    )


def noisy_labels(store: Store, planned: Planned, records: int, found: Iterable[Found], room: Room) -> NoisyLabels:
    """Read the stored outcomes of this many records, each of which was found in the vault, in the order of their rows.

    Memory is that of a piece, and the room for the outcomes.
    """
    mechanism, draws = planned.mechanism, planned.draws
    outcomes = room((draws, records, *mechanism.outcome_shape), mechanism.outcome_dtype)
    missing, first_missing = 0, (records, -1)
    for rows, positions in found:
        for at in _read_outcomes(store, planned, rows, positions, outcomes):
            missing += len(at)
            first = at[rows[at].argmin()]
            first_missing = min(first_missing, (int(rows[first]), int(positions[first])))
    if missing:
        noise = "secure noise" if planned.seed is None else f"noise seeded with {planned.seed}"
        raise VaultError(
            f"{missing:,} of the {records:,} records are not released under {mechanism}, {draws} "
            f"draw{'s' if draws > 1 else ''}, {noise} (the first is {id_at(store, first_missing[1])!r}); "
            "release them first"
        )
    outcomes.flags.writeable = False
    return NoisyLabels(mechanism, tuple(outcomes), planned.private, VAULT_ONLY)


def _read_outcomes(
    store: Store, planned: Planned, rows: Rows, positions: Positions, outcomes: npt.NDArray[Any]
) -> Iterator[Rows]:
    """Fill in the outcomes `[draws, rows, …]` of the records at these positions; yield which of them have none."""
    chunks = np.flatnonzero(np.bincount(positions // CHUNK)).tolist()
    entries = entries_of_series(store, planned.series, chunks)
    column_of = np.empty(CHUNK, np.int64)
    for chunk, at in by_chunk(positions):
        places, stored = outcomes_of_chunk(store, planned, entries, chunk)
        column_of.fill(-1)
        column_of[places] = np.arange(len(places))
        columns = column_of[positions[at] % CHUNK]
        released = columns >= 0
        outcomes[:, rows[at[released]]] = stored[:, columns[released]]
        if not released.all():
            yield at[~released]


def entries_of_series(store: Store, series: Series, chunks: Iterable[int]) -> set[int]:
    """The releases of this series that touch one of these chunks, by sequence number."""
    return {sequence for sequence, entry in releases_of_chunks(store, chunks).items() if entry.series == series}


def outcomes_of_series(store: Store, planned: Planned) -> tuple[npt.NDArray[np.bool_], npt.NDArray[Any]]:
    """Which positions a series covers, and outcomes `[draws, records, …]`, which mean nothing at the others."""
    mechanism, records = planned.mechanism, count_records(store)
    chunks = range(chunk_count(records))
    entries = entries_of_series(store, planned.series, chunks)
    covered = np.zeros(records, np.bool_)
    found = np.zeros((planned.draws, records, *mechanism.outcome_shape), mechanism.outcome_dtype)
    for chunk in chunks:
        places, outcomes = outcomes_of_chunk(store, planned, entries, chunk)
        covered[chunk * CHUNK + places] = True
        found[:, chunk * CHUNK + places] = outcomes
    return covered, found


def outcomes_of_chunk(
    store: Store, planned: Planned, entries: Collection[int], chunk: int
) -> tuple[npt.NDArray[np.intp], npt.NDArray[Any]]:
    """The places of a chunk that these releases of a series cover, ascending, and outcomes `[draws, places, …]`."""
    mechanism, draws = planned.mechanism, planned.draws
    covered = [np.zeros(0, np.intp)]
    outcomes = [np.empty((draws, 0, *mechanism.outcome_shape), mechanism.outcome_dtype)]
    stored = store.execute(
        "SELECT entry, covered, outcomes FROM outcomes WHERE label = ? AND chunk = ?", (store.label, chunk)
    )
    for entry, bitmap, blob in stored:
        if entry in entries:
            covered.append(np.flatnonzero(coverage.unpack(bitmap)))
            outcomes.append(coverage.decode_outcomes(blob, mechanism, draws, len(covered[-1])))
    places = np.concatenate(covered)
    order = np.argsort(places)
    return places[order], np.concatenate(outcomes, axis=1)[:, order]


def _draw(store: Store, planned: Planned, missing: PositionSet, records: int, progress: Progress) -> None:
    """Draw and store the outcomes of the missing positions, and enter the release into the ledger."""
    mechanism, draws = planned.mechanism, planned.draws
    entry = ledger.read_last(store)[0] + 1
    secure = secure_words()
    ids_digest, outcomes_digest, done = TextDigest(), sha256(), 0
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
        blob = coverage.encode_outcomes(outcomes)
        store.execute(
            "INSERT INTO outcomes VALUES (?, ?, ?, ?, ?)", (store.label, chunk, entry, coverage.pack(mask), blob)
        )
        ids_digest.update(block.ids.take(covered))
        outcomes_digest.update(blob)
        done += count
        progress(done, records, "releasing labels")
    details = planned.details(records, ids_digest.hexdigest(), outcomes_digest.hexdigest())
    ledger.append(store, "released", details)


def releases_of_chunks(store: Store, chunks: Iterable[int]) -> dict[int, ledger.Entry]:
    """The releases that touch one of these chunks, by sequence number.

    Not all there are: a vault that is filled while training goes on has one for every few records.
    """
    rows = store.execute(
        "SELECT sequence, hash, body FROM ledger WHERE sequence IN"
        " (SELECT entry FROM json_each(?) AS wanted JOIN outcomes ON label = ? AND chunk = wanted.value)"
        " ORDER BY sequence",
        (json.dumps(list(chunks)), store.label),
    )
    entries = (ledger.parse(*row) for row in rows)
    return {entry.sequence: entry for entry in entries if entry.is_release}
