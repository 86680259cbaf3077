"""One noisy statistic out of the vault: summed from true labels here, drawn once, stored, and always the same."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from hashlib import sha256

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms import clip_rows, secure_words, seeded_words
from tpsl.progress import Progress, no_progress
from tpsl.vault import coverage, ledger
from tpsl.vault.blocks import id_at, labels_at, read_block
from tpsl.vault.coverage import PositionSet, series_in
from tpsl.vault.errors import VaultError
from tpsl.vault.ledger import Entry
from tpsl.vault.noisy import VAULT_ONLY, NoisyStatistic
from tpsl.vault.planned import PlannedStatistic
from tpsl.vault.store import Store
from tpsl.vault.texts import TextDigest, Texts

Rows = npt.NDArray[np.integer]
Sums = npt.NDArray[np.int64]

_ROWS_AT_ONCE = 65_536
_NUMBERS_AT_ONCE = 1 << 22


class StatisticRequest:
    """A request for a statistic of the records at these positions, inside the running transaction.

    No record may be in it twice: its label would move the statistic by twice the bound.
    """

    def __init__(self, store: Store, planned: PlannedStatistic, positions: npt.NDArray[np.int64]) -> None:
        self._store, self._planned, self.positions = store, planned, positions
        if not len(positions):
            raise VaultError("a statistic needs at least one record")
        self.wanted, self._ids = PositionSet(), TextDigest()
        self.wanted.add(positions)
        if len(self.wanted) < len(positions):
            ordered = np.sort(positions)
            id = id_at(store, int(ordered[1:][ordered[1:] == ordered[:-1]][0]))
            raise VaultError(f"the record {id!r} occurs twice in a statistic; each may be in it once")
        for ids in self._ids_by_chunk():
            self._ids.update(ids)

    def release(
        self, blocks: Iterable[Rows], permit: Callable[[PlannedStatistic], None], progress: Progress = no_progress
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
        plan, ids_digest = self._planned.plan, self._ids.hexdigest()
        asked = (plan.noise.spec(), plan.noise.digest, plan.bound, plan.seed, plan.releases, ids_digest)
        names = ("mechanism", "noise_digest", "bound", "seed", "releases", "ids_digest")
        there = ledger.read_numbered(
            self._store, (series for _, series in series_in(self._store, self.wanted.chunks()[:1]))
        )
        return [
            entry
            for _, entry in sorted(there.items())
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

    def sum(self, blocks: Iterable[Rows], progress: Progress = no_progress) -> tuple[Sums, str]:
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
        plan = self._planned.plan
        ids_digest = self._ids.hexdigest()
        context = [plan.noise.digest, ids_digest, *([str(earlier)] if earlier else [])]
        words = secure_words() if plan.seed is None else seeded_words(plan.seed, *context)
        values = sums + plan.noise.sample(sums.size, words).reshape(sums.shape)
        blob = values.astype("<i8", copy=False).tobytes()
        details = self._planned.details(len(self.positions), ids_digest, phi_digest, sha256(blob).hexdigest())
        entry = ledger.append(self._store, "statistic", details)
        for chunk, mask in self.wanted.masks():
            coverage.add_release(self._store, chunk, None, entry.sequence, mask)
        self._store.execute("INSERT INTO statistics VALUES (?, ?)", (entry.sequence, blob))
        return self._released(values)

    def _ids_by_chunk(self) -> Iterator[Texts]:
        """The ids of the records in the order of their positions."""
        for chunk, mask in self.wanted.masks():
            ids = read_block(self._store, chunk).ids
            yield ids.take(mask[: len(ids)])

    def _released(self, values: Sums) -> NoisyStatistic:
        return NoisyStatistic(values, self._planned.plan, len(self.positions), self._planned.private, VAULT_ONLY)

    def _check(self, block: Rows, done: int) -> None:
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
