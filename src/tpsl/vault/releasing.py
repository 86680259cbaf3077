"""Noisy labels out of the vault: drawn once, stored, and always the same."""

import json
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms import secure_words, seeded_words
from tpsl.progress import Progress
from tpsl.vault import coverage, ledger, lookalikes
from tpsl.vault.blocks import CHUNK, by_chunk, chunk_count, count_records, id_at, read_block
from tpsl.vault.errors import VaultError
from tpsl.vault.ledger import Series
from tpsl.vault.noisy import VAULT_ONLY, NoisyLabels
from tpsl.vault.planned import Planned
from tpsl.vault.texts import TextDigest


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
    connection: sqlite3.Connection,
    folder: Path,
    planned: Planned,
    positions: npt.NDArray[np.int64] | None,
    *,
    compose: bool,
    allow_lookalikes: bool,
    progress: Progress,
) -> ReleaseReport:
    """Draw for every wanted record that this series does not cover yet, inside the running transaction."""
    wanted = wanted_positions(count_records(connection), positions)
    missing, composed = _missing(connection, wanted, planned.series, compose)
    requested, released = (
        sum(int(coverage.unpack(packed).sum()) for packed in masks.values()) for masks in (wanted, missing)
    )
    if released:
        if not allow_lookalikes:
            lookalikes.refuse_second_draws(connection, folder, missing)
        _draw(connection, planned, missing, released, progress)
    return ReleaseReport(
        planned.mechanism, planned.draws, planned.seed, requested=requested, released=released, composed=composed
    )


def check_conflicts(
    connection: sqlite3.Connection, positions: npt.NDArray[np.int64], series: Series | None, compose: bool
) -> None:
    """Raise a `VaultError` if a release in this series would be a second one for any record, unless composing.

    None: a series of its own.
    """
    _missing(connection, wanted_positions(0, positions), series, compose)


def noisy_labels(connection: sqlite3.Connection, planned: Planned, positions: npt.NDArray[np.int64]) -> NoisyLabels:
    """Read the stored outcomes of the records at `positions`, in that order."""
    mechanism, draws = planned.mechanism, planned.draws
    chunks = np.flatnonzero(np.bincount(positions // CHUNK)).tolist()
    entries = entries_of_series(connection, planned.series, chunks)
    shape = (draws, len(positions), *mechanism.outcome_shape)
    found, released = np.empty(shape, mechanism.outcome_dtype), np.zeros(len(positions), np.bool_)
    column_of = np.empty(CHUNK, np.int64)
    for chunk, rows in by_chunk(positions):
        places, outcomes = outcomes_of_chunk(connection, planned, entries, chunk)
        column_of.fill(-1)
        column_of[places] = np.arange(len(places))
        columns = column_of[positions[rows] % CHUNK]
        here = columns >= 0
        found[:, rows[here]] = outcomes[:, columns[here]]
        released[rows[here]] = True
    if not released.all():
        missing, first = int((~released).sum()), id_at(connection, int(positions[np.argmin(released)]))
        noise = "secure noise" if planned.seed is None else f"noise seeded with {planned.seed}"
        raise VaultError(
            f"{missing} of the {len(positions)} records are not released under {mechanism}, "
            f"{draws} draw{'s' if draws > 1 else ''}, {noise} (the first is {first!r}); release them first"
        )
    found.flags.writeable = False
    return NoisyLabels(mechanism, tuple(found), planned.private, VAULT_ONLY)


def entries_of_series(connection: sqlite3.Connection, series: Series, chunks: Iterable[int]) -> set[int]:
    """The releases of this series that touch one of these chunks, by sequence number."""
    return {sequence for sequence, entry in releases_of_chunks(connection, chunks).items() if entry.series == series}


def outcomes_of_series(
    connection: sqlite3.Connection, planned: Planned
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[Any]]:
    """Which positions a series covers, and outcomes `[draws, records, …]`, which mean nothing at the others."""
    mechanism, records = planned.mechanism, count_records(connection)
    chunks = range(chunk_count(records))
    entries = entries_of_series(connection, planned.series, chunks)
    covered = np.zeros(records, np.bool_)
    found = np.zeros((planned.draws, records, *mechanism.outcome_shape), mechanism.outcome_dtype)
    for chunk in chunks:
        places, outcomes = outcomes_of_chunk(connection, planned, entries, chunk)
        covered[chunk * CHUNK + places] = True
        found[:, chunk * CHUNK + places] = outcomes
    return covered, found


def outcomes_of_chunk(
    connection: sqlite3.Connection, planned: Planned, entries: Collection[int], chunk: int
) -> tuple[npt.NDArray[np.intp], npt.NDArray[Any]]:
    """The places of a chunk that these releases of a series cover, ascending, and outcomes `[draws, places, …]`."""
    mechanism, draws = planned.mechanism, planned.draws
    covered = [np.zeros(0, np.intp)]
    outcomes = [np.empty((draws, 0, *mechanism.outcome_shape), mechanism.outcome_dtype)]
    stored = connection.execute("SELECT entry, covered, outcomes FROM outcomes WHERE chunk = ?", (chunk,))
    for entry, bitmap, blob in stored:
        if entry in entries:
            covered.append(np.flatnonzero(coverage.unpack(bitmap)))
            outcomes.append(coverage.decode_outcomes(blob, mechanism, draws, len(covered[-1])))
    places = np.concatenate(covered)
    order = np.argsort(places)
    return places[order], np.concatenate(outcomes, axis=1)[:, order]


def wanted_positions(records: int, positions: npt.NDArray[np.int64] | None) -> dict[int, bytes]:
    """The wanted positions as packed masks by chunk: a bit for each record, not a word."""
    wanted = {}
    if positions is None:
        for chunk in range(chunk_count(records)):
            wanted[chunk] = coverage.pack(np.arange(CHUNK) < records - chunk * CHUNK)
    else:
        for chunk, rows in by_chunk(positions):
            mask = np.zeros(CHUNK, np.bool_)
            mask[positions[rows] % CHUNK] = True
            wanted[chunk] = coverage.pack(mask)
    return wanted


def _missing(
    connection: sqlite3.Connection, wanted: dict[int, bytes], series: Series | None, compose: bool
) -> tuple[dict[int, bytes], int]:
    """The wanted positions that the series does not cover, and how many of them have another release.

    Raises a `VaultError` if there are such and composing was not asked for.
    """
    releases = releases_of_chunks(connection, wanted)
    own = {sequence for sequence, entry in releases.items() if entry.series == series}
    missing: dict[int, bytes] = {}
    elsewhere: Counter[tuple[str, ...]] = Counter()
    for chunk, packed in wanted.items():
        covers = coverage.masks(connection, chunk)
        todo = coverage.unpack(packed) & ~coverage.covered_by(covers, own)
        if not todo.any():
            continue
        missing[chunk] = coverage.pack(todo)
        index, histories = coverage.histories(covers)
        for history, count in zip(histories, np.bincount(index[todo], minlength=len(histories)).tolist(), strict=True):
            if history and count:
                elsewhere[tuple(releases[entry].description for entry in history)] += count
    conflicts = sum(elsewhere.values())
    if conflicts and not compose:
        under = "; ".join(f"{count} under {' and '.join(texts)}" for texts, count in elsewhere.most_common(3))
        raise VaultError(
            f"{conflicts} records were released before under something else ({under}): ask for the same mechanism and "
            "ε, which costs nothing more, or permit a second release, whose ε is added, with --compose (in Python "
            "compose=True)"
        )
    return missing, conflicts


def _draw(
    connection: sqlite3.Connection, planned: Planned, missing: dict[int, bytes], records: int, progress: Progress
) -> None:
    """Draw and store the outcomes of the missing positions, and enter the release into the ledger."""
    mechanism, draws = planned.mechanism, planned.draws
    entry = ledger.read_last(connection)[0] + 1
    secure = secure_words()
    ids_digest, outcomes_digest, done = TextDigest(), sha256(), 0
    for chunk, packed in missing.items():
        block, covered = read_block(connection, chunk), coverage.unpack(packed)
        covered, count = covered[: len(block)], int(covered.sum())
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
        connection.execute("INSERT INTO outcomes VALUES (?, ?, ?, ?)", (chunk, entry, packed, blob))
        ids_digest.update(block.ids.take(covered))
        outcomes_digest.update(blob)
        done += count
        progress(done, records, "releasing labels")
    details = planned.details(records, ids_digest.hexdigest(), outcomes_digest.hexdigest())
    ledger.append(connection, "released", details)


def releases_of_chunks(connection: sqlite3.Connection, chunks: Iterable[int]) -> dict[int, ledger.Entry]:
    """The releases that touch one of these chunks, by sequence number.

    Not all there are: a vault that is filled while training goes on has one for every few records.
    """
    rows = connection.execute(
        "SELECT sequence, hash, body FROM ledger WHERE sequence IN"
        " (SELECT entry FROM json_each(?) AS wanted JOIN outcomes ON chunk = wanted.value) ORDER BY sequence",
        (json.dumps(list(chunks)),),
    )
    entries = (ledger.parse(*row) for row in rows)
    return {entry.sequence: entry for entry in entries if entry.is_release}
