"""Noisy labels out of the vault: drawn once, stored, and always the same."""

from collections.abc import Iterable, Iterator
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
from tpsl.vault.coverage import PositionSet, read_row, series_in
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
    own = _numbers_of(store, planned.series, chunks)
    for chunk, at in by_chunk(positions):
        row = read_row(store, chunk, own.get(chunk))
        columns = np.full(len(at), -1) if row is None else row.columns(positions[at] % CHUNK)
        if row is not None:
            released = columns >= 0
            stored = row.decoded(planned.mechanism, planned.draws)
            outcomes[:, rows[at[released]]] = stored[:, columns[released]]
        if (columns < 0).any():
            yield at[columns < 0]


def outcomes_of_series(store: Store, planned: Planned) -> tuple[npt.NDArray[np.bool_], npt.NDArray[Any]]:
    """Which positions a series covers, and outcomes `[draws, records, …]`, which mean nothing at the others."""
    mechanism, records = planned.mechanism, count_records(store)
    chunks = range(chunk_count(records))
    own = _numbers_of(store, planned.series, chunks)
    covered = np.zeros(records, np.bool_)
    found = np.zeros((planned.draws, records, *mechanism.outcome_shape), mechanism.outcome_dtype)
    for chunk in chunks:
        row = read_row(store, chunk, own.get(chunk))
        if row is not None:
            positions = chunk * CHUNK + np.flatnonzero(row.release_of)
            covered[positions] = True
            found[:, positions] = row.decoded(mechanism, planned.draws)
    return covered, found


def _numbers_of(store: Store, series: Series, chunks: Iterable[int]) -> dict[int, int]:
    """The number by which the row of a series is known in each of these chunks that has one."""
    rows = series_in(store, chunks)
    firsts = ledger.read_numbered(store, {number for _, number in rows})
    own = {number for number, entry in firsts.items() if entry.series == series}
    return {chunk: number for chunk, number in rows if number in own}


def _draw(store: Store, planned: Planned, missing: PositionSet, records: int, progress: Progress) -> None:
    """Draw and store the outcomes of the missing positions, and enter the release into the ledger."""
    mechanism, draws = planned.mechanism, planned.draws
    entry = ledger.read_last(store)[0] + 1
    secure, own = secure_words(), _numbers_of(store, planned.series, missing.chunks())
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
        coverage.add_release(store, chunk, read_row(store, chunk, own.get(chunk)), entry, mask, outcomes)
        ids_digest.update(block.ids.take(covered))
        outcomes_digest.update(coverage.encode_outcomes(outcomes))
        done += count
        progress(done, records, "releasing labels")
    details = planned.details(records, ids_digest.hexdigest(), outcomes_digest.hexdigest())
    ledger.append(store, "released", details)
