"""The one error of this room, and the translation of SQLite's errors into it."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DATABASE_ERRORS = (sqlite3.DatabaseError, UnicodeDecodeError)
"""What SQLite raises; where a damaged file garbles its own error message, decoding that message fails instead."""


class VaultError(ValueError):
    """What was asked of a vault cannot be done; the message is one sentence that names the culprit."""


class VaultBusy(VaultError):
    """Another process is writing to the vault; nothing is wrong, and asking again later helps."""


class VaultFull(VaultError):
    """The disk is full; nothing was changed, and the same call works when there is space."""


@contextmanager
def sqlite_errors(path: Path) -> Iterator[None]:
    """Turn whatever SQLite raises inside the block into a `VaultError` that names the vault at `path`."""
    try:
        yield
    except DATABASE_ERRORS as error:
        kind = VaultBusy if _is_busy(error) else VaultFull if _is_full(error) else VaultError
        raise kind(explain(path, error)) from error


def explain(path: Path, error: Exception) -> str:
    """One sentence for an SQLite error of the vault at `path`."""
    text = "malformed: text that is none" if isinstance(error, UnicodeDecodeError) else str(error)
    if _is_busy(error):
        return f"vault {path} is busy: another process is writing to it; try again when that has finished"
    if "not a database" in text:
        return f"{path} is no vault: its file is not a vault database, or was overwritten"
    if "malformed" in text:
        return f"vault {path} is damaged or truncated ({text}); restore it from a backup, do not release again"
    if "readonly" in text or "unable to open" in text:
        return f"vault {path} cannot be written or opened by this user ({text})"
    if _is_full(error):
        return f"vault {path} could not be written because the disk is full; nothing was changed"
    return f"vault {path}: the database reports: {text}"


def _is_full(error: Exception) -> bool:
    return isinstance(error, sqlite3.Error) and "full" in str(error)


def _is_busy(error: Exception) -> bool:
    return isinstance(error, sqlite3.Error) and any(word in str(error) for word in ("locked", "busy"))
