"""The vault's file: one SQLite database in a folder that only its owner can enter.

Why SQLite: a release must be on the disk, whole, before anyone can see a single noisy label of it, and a process that
is killed at any moment must leave either all of it or nothing. SQLite's rollback journal gives exactly that. We run it
with `synchronous=EXTRA`, which also makes the end of a transaction durable in the folder itself: with less, a power cut
could undo a release that had already been read, and the next release would draw again. Writers take the lock before
they look (`BEGIN IMMEDIATE`), so two processes never both draw for the same record.

Columns, not rows: the records lie in blocks of 65,536 (`blocks`), and the outcomes of a release in as many pieces. A
vault of 100 million records has a few thousand rows of about a megabyte, which are read and written as fast as files
are, and every guarantee is that of a transaction.

Permissions are set before content exists: the folder is 0700 and the file is created 0600 and empty; SQLite gives its
journal the permissions of the file.
"""

import errno
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from tpsl.files import make_private_folder, naming_what_does_not_fit
from tpsl.vault import blocks, coverage, id_index, ledger, same_labels
from tpsl.vault.errors import VaultError, VaultFull, sqlite_errors
from tpsl.vault.store import Store

DATABASE = "vault.sqlite"
APPLICATION_ID = int.from_bytes(b"tpsl", "big")
FORMAT = 1

_WAIT_SECONDS = 60.0
_CACHE_KIB = 64 << 10
_PAGE_BYTES = 16 << 10

_TABLES = {
    "labels": same_labels.LABELS_SCHEMA,
    "same_labels": same_labels.SCHEMA,
    "file_records": same_labels.FILE_SCHEMA,
    "blocks": blocks.SCHEMA,
    "id_key": id_index.KEY_SCHEMA,
    "id_index": id_index.SCHEMA,
    "outcomes": coverage.SCHEMA,
    "statistics": "CREATE TABLE statistics (entry INTEGER PRIMARY KEY, vectors BLOB NOT NULL)",
    "ledger": "CREATE TABLE ledger (sequence INTEGER PRIMARY KEY, hash TEXT NOT NULL, body TEXT NOT NULL)",
}
_NEVER_CHANGED = ("labels", "same_labels", "outcomes", "statistics", "ledger")


def require_free(folder: Path) -> None:
    """Raise a `VaultError` unless a vault can be made at this path.

    A folder with nothing but an unfinished creation in it (a killed process) is taken over.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise VaultError(f"{folder} exists and is no folder, so no vault can be created there")
    if {entry.name for entry in folder.iterdir()} - {DATABASE, DATABASE + "-journal"}:
        raise VaultError(f"{folder} exists and is not empty, so no vault can be created there")


def make_file(folder: Path) -> None:
    """Make the folder and an empty database file, owner only; what is there of a vault stays."""
    try:
        require_free(folder)
        make_private_folder(folder)
        folder.chmod(0o700)
        os.close(os.open(folder / DATABASE, os.O_CREAT | os.O_RDWR, 0o600))
        (folder / DATABASE).chmod(0o600)
    except OSError as error:
        kind = VaultFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else VaultError
        raise kind(f"no vault can be created at {folder}: {error.strerror}") from error


def connect(folder: Path) -> sqlite3.Connection:
    """Open the database file of the vault in `folder`, which must exist."""
    file = folder / DATABASE
    if not folder.exists():
        raise VaultError(f"there is no vault at {folder}: no such folder")
    if not file.is_file():
        raise VaultError(f"{folder} is no vault: it has no file {DATABASE}")
    with sqlite_errors(folder):
        return _open(file)


def _open(file: Path) -> sqlite3.Connection:
    """Open a database file that exists; an empty one is a new database."""
    connection = sqlite3.connect(
        f"{file.resolve().as_uri()}?mode=rw", uri=True, timeout=_WAIT_SECONDS, isolation_level=None
    )
    try:
        connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")  # of a new database; others keep theirs
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("SELECT COUNT(*) FROM sqlite_master")
    except BaseException:
        connection.close()
        raise
    return connection


def back_up(connection: sqlite3.Connection, folder: Path, copy: Path) -> None:
    """Copy the database of the vault in `folder`, as it is at one moment, to a new or empty folder; all or nothing.

    It is one transaction of the copy. One that was killed has left a vault that holds nothing, and is written anew.
    """
    make_file(copy)
    with sqlite_errors(folder), closing(_open(copy / DATABASE)) as target:
        if not is_blank(target):
            raise VaultError(f"{copy} exists and is not empty, so no vault can be copied there")
        connection.backup(target)


def is_blank(connection: sqlite3.Connection) -> bool:
    """Say whether nothing was ever committed to this database: its creation is under way, or was interrupted."""
    return connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is None


def write_schema(connection: sqlite3.Connection) -> None:
    """Lay out the tables of a new vault, inside the running transaction."""
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    for schema in _TABLES.values():
        connection.execute(schema)
    # What is never changed: the triggers stop a careless statement.
    connection.execute(blocks.ONLY_LABELS_CHANGE)
    for name, action, tables in (("fixed", "UPDATE", _NEVER_CHANGED), ("stay", "DELETE", ("blocks", *_NEVER_CHANGED))):
        for table in tables:
            connection.execute(
                f"CREATE TRIGGER {table}_{name} BEFORE {action} ON {table}"
                f" BEGIN SELECT RAISE(ABORT, '{table}: no {action}'); END"
            )


def add_label(store: Store, name: str, classes: int, details: Mapping[str, bool | str | None]) -> Store:
    """Add a label without records, inside the running transaction, and return what it is reached by."""
    new = replace(store, label=len(same_labels.labels_of(store)) + 1)
    row = (new.label, name, classes, bool(details.get("counts_people")))
    store.execute("INSERT INTO labels VALUES (?, ?, ?, ?)", row)
    created = {} if new.label > 1 else {"format": FORMAT}
    ledger.append(new, "created" if created else "label", {**created, "name": name, "classes": classes, **details})
    return new


def require_format(connection: sqlite3.Connection, folder: Path) -> None:
    """Raise a `VaultError` unless this is a vault that this version reads; nothing is migrated."""
    if is_blank(connection):
        raise VaultError(f"{folder} holds no vault yet: its creation is under way or was interrupted; create it again")
    pages, size = (connection.execute(f"PRAGMA page_{what}").fetchone()[0] for what in ("count", "size"))
    if (folder / DATABASE).stat().st_size < pages * size:
        raise VaultError(f"the file of the vault {folder} is truncated: it has less than {pages * size:,} bytes")
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise VaultError(f"{folder} is no vault: its database was written by another program")
    there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if version != FORMAT or not _TABLES.keys() <= there:
        raise VaultError(
            f"vault {folder} was written by another version of tpsl, in a format that this one does not read: create "
            "the vault again from the files of its labels, and count what it has released as spent"
        )


@contextmanager
def writing(connection: sqlite3.Connection, folder: Path) -> Iterator[None]:
    """All or nothing: what the block writes is durable when it ends, and undone if it raises or the process dies."""
    with sqlite_errors(folder):
        connection.execute("BEGIN IMMEDIATE")
        try:
            with naming_what_does_not_fit(folder):
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
