"""The database file of a vault: plain, or encrypted page by page, with its journal, by SQLCipher.

SQLCipher is SQLite with AES-256 under each page and an HMAC over it; what SQLite promises of transactions holds for it.
A process that has a key opens plain files through SQLCipher too. The two libraries must not have one file open at the
same time: to close it in one drops the locks of the other, which POSIX keeps for a process and not for a file handle.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from types import ModuleType

from tpsl.vault.errors import VaultError, database_errors
from tpsl.vault.key import Key

_WAIT_SECONDS = 60.0
_CACHE_KIB = 64 << 10
_PAGE_BYTES = 16 << 10


def open_database(file: Path, key: Key | None, driver: ModuleType = sqlite3) -> sqlite3.Connection | None:
    """Open a file that exists, encrypted with this key or plain; None if it is not that. An empty one is either."""
    connection: sqlite3.Connection = driver.connect(
        f"{file.resolve().as_uri()}?mode=rw", uri=True, timeout=_WAIT_SECONDS, isolation_level=None
    )
    try:
        if key is not None:
            _unlock(connection, key)
        connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")  # of a new database; others keep theirs
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("SELECT COUNT(*) FROM sqlite_master")
    except database_errors() as error:
        connection.close()
        if "not a database" in str(error):
            return None
        raise
    except BaseException:
        connection.close()
        raise
    return connection


def may_be_encrypted(file: Path) -> bool:
    """Whether a file that is no plain database can be an encrypted one: those are whole pages."""
    size = file.stat().st_size
    return size > 0 and size % _PAGE_BYTES == 0


def sqlcipher() -> ModuleType:
    """SQLCipher's counterpart of the module `sqlite3`; a `VaultError` where it is not installed."""
    try:
        from sqlcipher3 import dbapi2
    except ImportError:
        raise VaultError("an encrypted vault needs SQLCipher: `pip install 'tpsl[encryption]'` gets it") from None
    driver: ModuleType = dbapi2
    return driver


def driver_of(connection: sqlite3.Connection) -> ModuleType:
    """The module that a connection was made by; only connections of one module can be copied into each other."""
    return sqlite3 if isinstance(connection, sqlite3.Connection) else sqlcipher()


def is_encrypted(connection: sqlite3.Connection) -> bool:
    """Say whether what is written through this connection is encrypted."""
    return bool(connection.execute("PRAGMA cipher_status").fetchone() == ("1",))  # SQLite has no such pragma


def attach_new(connection: sqlite3.Connection, file: Path, key: Key | None) -> None:
    """Attach an empty file to a connection of SQLCipher as `new`, to be encrypted with this key, or plain.

    It gets no journal: a file that is not written to its end is given up.
    """
    connection.execute("ATTACH ? AS new KEY ?", (str(file), "" if key is None else key.for_database()))
    connection.execute(f"PRAGMA new.{'cipher_' if key else ''}page_size = {_PAGE_BYTES}")
    connection.execute("PRAGMA new.journal_mode = OFF")


def _unlock(connection: sqlite3.Connection, key: Key) -> None:
    connection.execute("PRAGMA cipher_log_level = NONE")  # a wrong key is for us to report
    connection.execute(f"PRAGMA key = {_quoted(key.for_database())}")
    connection.execute(f"PRAGMA cipher_page_size = {_PAGE_BYTES}")


def _quoted(text: str) -> str:
    """A text as SQL writes it: a pragma takes no parameters."""
    return "'" + text.replace("'", "''") + "'"
