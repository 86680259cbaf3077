"""The records of a vault, column by column: a row of the database holds the ids, labels and units of 65,536 of them.

Records are numbered by position, 0 upwards, in the order in which they came. Ids and units are `Texts`, labels one or
two bytes each. The last block grows until it is full; of a record that is there only the label may change.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString, Self

import numpy as np
import numpy.typing as npt

from tpsl.spill import SortedRows
from tpsl.vault.errors import VaultError
from tpsl.vault.store import Store
from tpsl.vault.texts import Texts

CHUNK = 65_536
"""Positions that share a block, and a row of outcomes."""

Positions = npt.NDArray[np.int64]

SCHEMA = """CREATE TABLE blocks (
    label INTEGER NOT NULL, chunk INTEGER NOT NULL, records INTEGER NOT NULL, labels BLOB NOT NULL, ids BLOB NOT NULL,
    units BLOB, UNIQUE (label, chunk)
)"""
ONLY_LABELS_CHANGE = """CREATE TRIGGER blocks_fixed BEFORE UPDATE ON blocks
    WHEN NEW.label <> OLD.label OR NEW.chunk <> OLD.chunk OR substr(NEW.ids, 1, length(OLD.ids)) <> OLD.ids
        OR substr(NEW.units, 1, length(OLD.units)) IS NOT OLD.units
    BEGIN SELECT RAISE(ABORT, 'only the label of a record may change'); END"""


@dataclass(frozen=True)
class Block:
    """Consecutive records: their columns."""

    ids: Texts
    labels: npt.NDArray[np.int64]
    units: Texts | None
    """None: no record of the vault has a unit; otherwise all have one."""

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, start: int, stop: int) -> "Block":
        """The records from one row to before another."""
        units = None if self.units is None else self.units.part(start, stop)
        return Block(self.ids.part(start, stop), self.labels[start:stop], units)

    def where(self, mask: npt.NDArray[np.bool_]) -> "Block":
        """The records of the rows that a mask chooses."""
        units = None if self.units is None else self.units.take(mask)
        return Block(self.ids.take(mask), self.labels[mask], units)

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Put records one after the other."""
        units = [part.units for part in parts if part.units is not None]
        return cls(
            Texts.joined(part.ids for part in parts),
            np.concatenate([part.labels for part in parts]),
            Texts.joined(units) if units else None,
        )


def count_records(store: Store) -> int:
    """The number of records; positions are 0 .. count - 1."""
    row = store.execute(
        "SELECT chunk, records FROM blocks WHERE label = ? ORDER BY chunk DESC LIMIT 1", (store.label,)
    ).fetchone()
    return 0 if row is None else int(row[0]) * CHUNK + int(row[1])


def chunk_count(records: int) -> int:
    """The number of blocks that hold this number of records."""
    return -(-records // CHUNK)


def by_chunk(positions: Positions) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
    """(chunk, indices into `positions` that lie in it), for each chunk that occurs."""
    if not len(positions):
        return
    chunks = positions // CHUNK
    chunks = chunks.astype(np.min_scalar_type(int(chunks.max())))  # up to sixteen bits are sorted in linear time
    order = np.argsort(chunks, kind="stable")
    chunks = chunks[order]
    starts = np.flatnonzero(chunks[1:] != chunks[:-1]) + 1
    yield from zip([int(chunks[0]), *chunks[starts].tolist()], np.split(order, starts), strict=True)


def read_block(store: Store, chunk: int) -> Block:
    """The records of a chunk; a block that is missing or damaged is a `VaultError`."""
    records, labels, ids, units = _stored(store, "records, labels, ids, units", chunk)
    start = chunk * CHUNK
    try:
        block = Block(
            Texts.from_bytes(ids), _decoded(labels, records), None if units is None else Texts.from_bytes(units)
        )
        whole = 0 < records <= CHUNK and {len(column) for column in (block.ids, block.units or block.ids)} == {records}
    except (TypeError, ValueError):
        whole = False
    if not whole:
        raise VaultError(f"the records between positions {start} and {start + CHUNK} are damaged")
    return block


def read_blocks(store: Store) -> Iterator[Block]:
    """All records, block by block."""
    return (read_block(store, chunk) for chunk in range(chunk_count(count_records(store))))


def has_units(store: Store) -> bool:
    """Say whether records of the vault have a unit; then every new one needs one."""
    return (
        store.execute("SELECT 1 FROM blocks WHERE label = ? AND units IS NOT NULL LIMIT 1", (store.label,)).fetchone()
        is not None
    )


def ids_between(store: Store, start: int, stop: int) -> Texts:
    """The ids at positions from `start` to before `stop`, in order, as far as there are any."""
    stop = min(stop, count_records(store))
    parts = []
    for chunk in range(start // CHUNK, chunk_count(stop)):
        ids = _ids(store, chunk)
        parts.append(ids.part(max(0, start - chunk * CHUNK), min(len(ids), stop - chunk * CHUNK)))
    return Texts.joined(parts)


def id_at(store: Store, position: int) -> str:
    """The id of the record at this position."""
    return _ids(store, position // CHUNK)[position % CHUNK]


def ids_in_order(store: Store) -> SortedRows:
    """All ids in the order of their text, as `Texts.terminated` has them, and their positions; they are read now."""

    def by_chunk() -> Iterator[tuple[Any, Positions]]:
        for chunk in range(chunk_count(count_records(store))):
            ids = _ids(store, chunk)
            yield ids.terminated, chunk * CHUNK + np.arange(len(ids))

    return SortedRows(store.folder, by_chunk)


def labels_at(store: Store, positions: Positions) -> npt.NDArray[np.int64]:
    """The true label at each of these positions, which must exist."""
    labels = np.empty(len(positions), np.int64)
    for chunk, rows in by_chunk(positions):
        labels[rows] = _labels(store, chunk)[positions[rows] % CHUNK]
    return labels


def units_at(store: Store, positions: Positions) -> Texts:
    """The unit at each of these positions, which must exist; an empty text in a vault without units."""
    order, parts = [np.zeros(0, np.intp)], []
    for chunk, rows in by_chunk(positions):
        block = read_block(store, chunk)
        units = Texts.empty(len(block)) if block.units is None else block.units
        order.append(rows)
        parts.append(units.take(positions[rows] % CHUNK))
    return Texts.joined(parts).take(np.argsort(np.concatenate(order)))


def set_labels(store: Store, positions: Positions, labels: npt.NDArray[np.int64]) -> None:
    """Store other labels of the records at these positions, inside the running transaction."""
    for chunk, rows in by_chunk(positions):
        records, stored = _stored(store, "records, labels", chunk)
        changed = _decoded(stored, records)
        changed[positions[rows] % CHUNK] = labels[rows]
        encoded = _encoded(changed, len(stored) // records)
        store.execute("UPDATE blocks SET labels = ? WHERE label = ? AND chunk = ?", (encoded, store.label, chunk))


def append(store: Store, classes: int, records: Block) -> None:
    """Append records, inside the running transaction: to the last block until it is full, then in new ones."""
    first = count_records(store)
    if first % CHUNK:
        last = read_block(store, first // CHUNK)
        first, records = first - len(last), Block.joined([last, records])
    for start in range(0, len(records), CHUNK):
        block = records.part(start, min(start + CHUNK, len(records)))
        labels = _encoded(block.labels, 1 if classes <= 256 else 2)
        units = None if block.units is None else block.units.to_bytes()
        store.execute(
            "INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (label, chunk) DO UPDATE SET"
            " records = excluded.records, labels = excluded.labels, ids = excluded.ids, units = excluded.units",
            (store.label, (first + start) // CHUNK, len(block), labels, block.ids.to_bytes(), units),
        )


def _stored(store: Store, columns: LiteralString, chunk: int) -> tuple[Any, ...]:  # what SQLite has in them
    """Columns of a block as they are stored; a block that is missing is a `VaultError`."""
    query = f"SELECT {columns} FROM blocks WHERE label = ? AND chunk = ?"  # noqa: S608
    row: tuple[Any, ...] | None = store.execute(query, (store.label, chunk)).fetchone()
    if row is None:
        raise VaultError(f"records are missing between positions {chunk * CHUNK} and {(chunk + 1) * CHUNK}")
    return row


def _ids(store: Store, chunk: int) -> Texts:
    return Texts.from_bytes(_stored(store, "ids", chunk)[0])


def _labels(store: Store, chunk: int) -> npt.NDArray[np.int64]:
    records, labels = _stored(store, "records, labels", chunk)
    return _decoded(labels, records)


def _encoded(labels: npt.NDArray[np.int64], width: int) -> bytes:
    return labels.astype(f"<u{width}").tobytes()


def _decoded(labels: bytes, records: int) -> npt.NDArray[np.int64]:
    if len(labels) not in (records, 2 * records) or isinstance(labels, str):
        raise VaultError("a column of labels has the wrong length; run verify on the vault")
    return np.frombuffer(labels, "<u1" if len(labels) == records else "<u2").astype(np.int64)
