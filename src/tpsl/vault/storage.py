"""The vault's file: one SQLite database in a folder that only its owner can enter.

Why SQLite: a release must be on the disk, whole, before anyone can see a single noisy label of it, and a process that
is killed at any moment must leave either all of it or nothing. SQLite's rollback journal gives exactly that. We run it
with `synchronous=EXTRA`, which also makes the end of a transaction durable in the folder itself: with less, a power cut
could undo a release that had already been read, and the next release would draw again. Writers take the lock before
they look (`BEGIN IMMEDIATE`), so two processes never both draw for the same record.

Permissions are set before content exists: the folder is 0700 and the file is created 0600 and empty; SQLite gives its
journal the permissions of the file. SQLite's sort files are 0600 and nameless; SQLITE_TMPDIR says where they lie.
"""

import errno
import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tpsl.files import make_private_folder
from tpsl.vault.errors import VaultError, VaultFull, sqlite_errors

DATABASE = "vault.sqlite"
APPLICATION_ID = int.from_bytes(b"tpsl", "big")
FORMAT = 1
FORMAT_WITH_STATISTICS = 2
"""What a vault becomes with its first statistic, so that versions that know of none say so and do not read it."""
CHUNK = 65_536
"""Positions that share one row of outcomes."""

_WAIT_SECONDS = 60.0
_LABELS_AT_ONCE = 1 << 19
_CACHE_KIB = 64 << 10

# Released outcomes and ledger entries are only ever inserted; the triggers stop a careless statement from doing more.
_SCHEMA = """
CREATE TABLE records (position INTEGER PRIMARY KEY, id TEXT NOT NULL, label INTEGER NOT NULL, unit TEXT);
CREATE TABLE outcomes (
    chunk INTEGER NOT NULL, entry INTEGER NOT NULL, covered BLOB NOT NULL, outcomes BLOB NOT NULL,
    UNIQUE (chunk, entry)
);
CREATE TABLE ledger (sequence INTEGER PRIMARY KEY, hash TEXT NOT NULL, body TEXT NOT NULL);
CREATE TRIGGER records_stay BEFORE DELETE ON records BEGIN SELECT RAISE(ABORT, 'records are never deleted'); END;
CREATE TRIGGER records_fixed BEFORE UPDATE OF position, id, unit ON records
    BEGIN SELECT RAISE(ABORT, 'only the label of a record may change'); END;
CREATE TRIGGER outcomes_stay BEFORE DELETE ON outcomes BEGIN SELECT RAISE(ABORT, 'releases are never deleted'); END;
CREATE TRIGGER outcomes_fixed BEFORE UPDATE ON outcomes BEGIN SELECT RAISE(ABORT, 'releases never change'); END;
CREATE TRIGGER ledger_stay BEFORE DELETE ON ledger BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER ledger_fixed BEFORE UPDATE ON ledger BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
"""


_STATISTICS = """
CREATE TABLE IF NOT EXISTS statistics (entry INTEGER PRIMARY KEY, vectors BLOB NOT NULL);
CREATE TRIGGER IF NOT EXISTS statistics_stay BEFORE DELETE ON statistics
    BEGIN SELECT RAISE(ABORT, 'releases are never deleted'); END;
CREATE TRIGGER IF NOT EXISTS statistics_fixed BEFORE UPDATE ON statistics
    BEGIN SELECT RAISE(ABORT, 'releases never change'); END;
"""


def create_file(folder: Path) -> bool:
    """Make the folder and an empty database file, owner only; return whether the folder is new.

    A folder with nothing but an unfinished creation in it (a killed process) is taken over.
    """
    new = not folder.exists()
    try:
        if not new and not folder.is_dir():
            raise VaultError(f"{folder} exists and is no folder, so no vault can be created there")
        if new:
            make_private_folder(folder)
        elif {entry.name for entry in folder.iterdir()} - {DATABASE, DATABASE + "-journal"}:
            raise VaultError(f"{folder} exists and is not empty, so no vault can be created there")
        folder.chmod(0o700)
        file = folder / DATABASE
        if not file.exists():
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        file.chmod(0o600)
    except OSError as error:
        kind = VaultFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else VaultError
        raise kind(f"no vault can be created at {folder}: {error.strerror}") from error
    return new


def connect(folder: Path) -> sqlite3.Connection:
    """Open the database file of the vault in `folder`; it must exist."""
    file = folder / DATABASE
    if not folder.exists():
        raise VaultError(f"there is no vault at {folder}: no such folder")
    if not file.is_file():
        raise VaultError(f"{folder} is no vault: it has no file {DATABASE}")
    with sqlite_errors(folder):
        connection = sqlite3.connect(
            f"{file.resolve().as_uri()}?mode=rw", uri=True, timeout=_WAIT_SECONDS, isolation_level=None
        )
        try:
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            connection.execute("PRAGMA journal_mode = DELETE")
        except BaseException:
            connection.close()
            raise
    return connection


def is_blank(connection: sqlite3.Connection) -> bool:
    """Say whether nothing was ever committed to this database: its creation is under way, or was interrupted."""
    return connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is None


def write_schema(connection: sqlite3.Connection) -> None:
    """Lay out an empty vault, inside the running transaction."""
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    _execute_all(connection, _SCHEMA)


def make_room_for_statistics(connection: sqlite3.Connection) -> None:
    """Have the table of statistics, which a vault gets with its first one, inside the running transaction."""
    connection.execute(f"PRAGMA user_version = {FORMAT_WITH_STATISTICS}")
    _execute_all(connection, _STATISTICS)


def has_statistics(connection: sqlite3.Connection) -> bool:
    """Say whether a statistic was ever released from this vault."""
    return connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'statistics'").fetchone() is not None


def _execute_all(connection: sqlite3.Connection, statements: str) -> None:
    """Execute statements in the running transaction, which executescript would commit."""
    statement = ""
    for line in statements.strip().splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""


def check_schema(connection: sqlite3.Connection, folder: Path) -> None:
    """Raise a `VaultError` unless the database is a vault of a format this version reads."""
    if is_blank(connection):
        raise VaultError(f"{folder} holds no vault yet: its creation is under way or was interrupted; create it again")
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise VaultError(f"{folder} is no vault: its database was written by another program")
    if version not in (FORMAT, FORMAT_WITH_STATISTICS):
        raise VaultError(
            f"vault {folder} has format {version}; this version of tpsl reads formats up to {FORMAT_WITH_STATISTICS}"
        )


@contextmanager
def writing(connection: sqlite3.Connection, folder: Path) -> Iterator[None]:
    """All or nothing: what the block writes is durable when it ends, and undone if it raises or the process dies."""
    with sqlite_errors(folder):
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            connection.rollback()
            raise


@contextmanager
def reading(connection: sqlite3.Connection, folder: Path) -> Iterator[None]:
    """One state of the vault for all reads of the block, whatever other processes write at the same time."""
    with sqlite_errors(folder):
        connection.execute("BEGIN")
        try:
            yield
        finally:
            connection.rollback()


def count_records(connection: sqlite3.Connection) -> int:
    """The number of records; positions are 0 .. count - 1."""
    (last,) = connection.execute("SELECT MAX(position) FROM records").fetchone()
    return 0 if last is None else int(last) + 1


def find_positions(connection: sqlite3.Connection, ids: Sequence[str]) -> npt.NDArray[np.int64]:
    """The position of each id, or -1 where the vault does not know it."""
    first = _start_of_run(connection, ids)
    if first is not None:
        return np.arange(first, first + len(ids), dtype=np.int64)
    texts = pa.array(ids, pa.large_string())
    # Sorted, so that neighbouring look-ups touch neighbouring pages of the index: two to three times as fast.
    order = pc.sort_indices(texts)
    found = connection.execute(
        "SELECT wanted.key, records.position FROM json_each(?) AS wanted JOIN records ON records.id = wanted.value",
        (json.dumps(texts.take(order).to_pylist()),),
    ).fetchall()
    pairs = np.fromiter(chain.from_iterable(found), np.int64, 2 * len(found)).reshape(-1, 2)
    positions = np.full(len(ids), -1, np.int64)
    positions[order.to_numpy().astype(np.int64)[pairs[:, 0]]] = pairs[:, 1]
    return positions


def _start_of_run(connection: sqlite3.Connection, ids: Sequence[str]) -> int | None:
    """Where `ids` begin, if they are consecutive records: asking in the order of the input is answered by one scan."""
    row = connection.execute("SELECT position FROM records WHERE id = ?", (ids[0],)).fetchone() if ids else None
    if row is None:
        return None
    first, end = int(row[0]), int(row[0]) + len(ids)
    if ids_between(connection, end - 1, end) != [ids[-1]]:
        return None
    return first if ids_between(connection, first, end) == list(ids) else None


def labels_at(connection: sqlite3.Connection, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The true label at each of these positions, which must exist."""
    labels = np.empty(len(positions), np.int64)
    for start in range(0, len(positions), _LABELS_AT_ONCE):
        part = slice(start, start + _LABELS_AT_ONCE)
        known, inverse = np.unique(positions[part], return_inverse=True)
        if int(known[-1] - known[0]) == len(known) - 1:  # one scan, without a look-up for each
            query = "SELECT label FROM records WHERE position BETWEEN ? AND ? ORDER BY position"
            rows = connection.execute(query, (int(known[0]), int(known[-1]))).fetchall()
        else:
            query = "SELECT label FROM json_each(?) AS wanted JOIN records ON position = wanted.value ORDER BY position"
            rows = connection.execute(query, (json.dumps(known.tolist()),)).fetchall()
        labels[part] = np.array([label for (label,) in rows], np.int64)[inverse]
    return labels


def ids_between(connection: sqlite3.Connection, start: int, stop: int) -> list[str]:
    """The ids at positions from `start` to before `stop`, in order."""
    rows = connection.execute(
        "SELECT id FROM records WHERE position >= ? AND position < ? ORDER BY position", (start, stop)
    )
    return [id for (id,) in rows]


def ids_after(connection: sqlite3.Connection, last: str) -> tuple[list[str], npt.NDArray[np.int64]]:
    """The next ids after this one in the order of their text, at most `CHUNK`, and their positions."""
    query = "SELECT id, position FROM records WHERE id > ? ORDER BY id LIMIT ?"
    rows = connection.execute(query, (last, CHUNK)).fetchall()
    return [id for id, _ in rows], np.array([position for _, position in rows], np.int64)


def id_at(connection: sqlite3.Connection, position: int) -> str:
    """The id of the record at this position."""
    (id,) = connection.execute("SELECT id FROM records WHERE position = ?", (position,)).fetchone()
    return str(id)
