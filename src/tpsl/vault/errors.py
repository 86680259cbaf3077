"""The one error of this room, and the translation of SQLite's errors into it."""

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tpsl.files import DiskFull


class VaultError(ValueError):
    """What was asked of a vault cannot be done; the message is one sentence that names the culprit."""


class VaultBusy(VaultError):
    """Another process is writing to the vault; nothing is wrong, and asking again later helps."""


class VaultChanged(VaultError):
    """Another process has changed the vault since it was looked at; nothing was done, and looking again helps."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"the vault {folder} was changed by another process meanwhile; give the same command again")


class VaultFull(VaultError):
    """The disk is full; nothing was changed, and the same call works when there is space."""

    errno = errno.ENOSPC


_BUSY = "vault {path} is busy: another process is writing to it; try again when that has finished"
_LOCKED = "vault {path} cannot be written or opened by this user, or was replaced while it was open ({text})"
_FULL = (
    "vault {path} could not be written because the disk is full; nothing was changed; "
    "free space and give the same command again"
)
_EXPLAINED: dict[str, tuple[type[VaultError], str]] = {
    "locked": (VaultBusy, _BUSY),
    "busy": (VaultBusy, _BUSY),
    "not a database": (VaultError, "{path} is no vault: its file is not a vault database, or was overwritten"),
    "malformed": (
        VaultError,
        "vault {path} is damaged or truncated ({text}); restore it from a backup, do not release again",
    ),
    "readonly": (VaultError, _LOCKED),
    "unable to open": (VaultError, _LOCKED),
    "full": (VaultFull, _FULL),
    "": (VaultError, "vault {path}: the database reports: {text}"),
}
"""What an error of SQLite with these words in it means; the first that fits."""


DATABASE_ERRORS = sqlite3.DatabaseError, UnicodeDecodeError
"""What SQLite raises. Where a damaged file garbles its own error message, decoding that message fails instead."""


@contextmanager
def sqlite_errors(path: Path) -> Iterator[None]:
    """Turn whatever SQLite raises inside the block, and a full disk, into a `VaultError` about the vault at `path`."""
    try:
        yield
    except (*DATABASE_ERRORS, DiskFull) as error:
        raise explained(path, error) from error


def explained(path: Path, error: Exception) -> VaultError:
    """The `VaultError` that an error of the vault at `path` means."""
    text = {UnicodeDecodeError: "malformed: text that is none", DiskFull: "full"}.get(type(error), str(error))
    kind, sentence = next(meaning for words, meaning in _EXPLAINED.items() if words in text)
    return kind(sentence.format(path=path, text=text))
