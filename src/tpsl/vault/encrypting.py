"""Another key for a vault that exists, or the first one, or none any more.

The new file is written beside the old one, compared with it row by row, and takes its name in one step: a process that
is killed leaves a whole vault with the old key or with the new one, and a draft that the next opening of the vault
removes. Nobody can write to the vault meanwhile. A process that had it open before is refused its next write, because
SQLite sees that the file is another one now. What a killed command has read of files, under the old key or in the
clear, is removed.
"""

import sqlite3
from contextlib import closing
from itertools import zip_longest
from pathlib import Path

from tpsl.files import open_durably, open_private
from tpsl.vault.database import attach_new, open_database, sqlcipher
from tpsl.vault.errors import VaultBusy, VaultError, sqlite_errors
from tpsl.vault.incoming import Incoming
from tpsl.vault.key import Key, named_key
from tpsl.vault.storage import APPLICATION_ID, DATABASE, FORMAT, replacing
from tpsl.vault.vault import Vault


def change_key(folder: Path, new: Key | None) -> None:
    """Have a vault encrypted with another key, or with none; its content stays as it is.

    For a process that does not have the vault open: of its own locks it would not know (`database`).
    """
    file = folder / DATABASE
    before = file.stat().st_ino if file.exists() else None
    with Vault.open(folder) as vault:  # which an older format is migrated by
        old, classes = named_key() if vault.encrypted else None, vault.classes
    with sqlite_errors(folder), closing(_opened(file, old)) as locked:
        locked.execute("BEGIN IMMEDIATE")
        if file.stat().st_ino != before:
            raise _was_replaced(file)
        try:
            with Incoming(folder, classes, ()), replacing(folder) as draft:
                _copy(file, draft, old, new)
                _require_same(locked, draft, new)
        finally:
            locked.rollback()


def _copy(file: Path, draft: Path, old: Key | None, new: Key | None) -> None:
    open_private(draft, "wb").close()
    with closing(_opened(file, old)) as source:
        attach_new(source, draft, new)
        source.execute("BEGIN")
        source.execute("SELECT sqlcipher_export('new')").fetchall()
        source.execute(f"PRAGMA new.application_id = {APPLICATION_ID}")
        source.execute(f"PRAGMA new.user_version = {FORMAT}")
        source.execute("COMMIT")
    with open_durably(draft, "ab"):
        pass


def _require_same(vault: sqlite3.Connection, draft: Path, key: Key | None) -> None:
    """Raise a `VaultError` unless the new file has the tables and rows of the old one."""
    with closing(_opened(draft, key)) as copy:
        listed = "SELECT type, name, sql FROM sqlite_master ORDER BY name"
        found = vault.execute(listed).fetchall()
        same = copy.execute(listed).fetchall() == found
        for name in [name for kind, name, _ in found if kind == "table"]:
            rows = f"SELECT * FROM {name} ORDER BY rowid"  # noqa: S608
            same = same and all(one == other for one, other in zip_longest(vault.execute(rows), copy.execute(rows)))
        if not same:
            raise VaultError(f"{draft}: the new file is not like the old one; nothing was changed: look at the disk")


def _opened(file: Path, key: Key | None) -> sqlite3.Connection:
    found = open_database(file, key, sqlcipher())
    if found is None:
        raise _was_replaced(file)
    return found


def _was_replaced(file: Path) -> VaultBusy:
    return VaultBusy(f"the vault {file.parent} was given another key at the same time; look at it, and try again")
