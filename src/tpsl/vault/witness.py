"""A second place that knows how far the ledger of a vault has come, so that one restored from an old copy is noticed.

A vault that goes back to yesterday's backup does not know what was released today; it would draw again for the same
records, and their ε would add up. A witness is a file somewhere else, on another disk or machine, that gets a line for
each state of the ledger: the number and the hash of its newest entry. A vault that has a witness is not opened if its
ledger does not have what the witness has seen.

The line is written after the transaction and before anybody is told of it. A crash between the two leaves a vault that
is ahead of its witness, which is no harm: the next one to open it writes the line.
"""

import os
import re
import sqlite3
from pathlib import Path
from typing import NamedTuple

from tpsl.files import make_private_folder, open_durably, write_atomically
from tpsl.vault import ledger
from tpsl.vault.errors import VaultError

SCHEMA = "CREATE TABLE witness (path TEXT NOT NULL);"

_LINE = re.compile(r"([1-9][0-9]{0,15}) ([0-9a-f]{64})")
_BYTES_READ = 1 << 13
"""The end of the file that is read: lines of processes that write at the same time may be out of order there."""


def appoint(connection: sqlite3.Connection, path: Path) -> None:
    """Have this file as the witness from now on, inside the running transaction; its first line is there before.

    It may be one that has witnessed this ledger. What the present witness has seen counts for as long as it is there.
    """
    path = path.absolute()
    for file in {path, _path(connection) or path}:
        if file.exists():
            _require_seen(connection, file)
    try:
        make_private_folder(path.parent)
        LedgerState(path, *ledger.read_last(connection)).write()
    except OSError as error:
        raise VaultError(f"{path}: no witness can be written there ({error.strerror})") from error
    connection.execute("DELETE FROM witness")
    connection.execute("INSERT INTO witness VALUES (?)", (str(path),))


def require_newest(connection: sqlite3.Connection) -> None:
    """Raise a `VaultError` if the vault has a witness, and that cannot be read or has seen more than the ledger has."""
    path = _path(connection)
    if path is not None:
        _require_seen(connection, path)


class LedgerState(NamedTuple):
    """How far the ledger of a vault has come, and the witness that is to know it."""

    witness: Path
    sequence: int
    head: str

    def attest(self) -> None:
        """Have it in the witness, durably, once it is in the vault."""
        try:
            self.write()
        except OSError as error:
            raise VaultError(
                f"the witness {self.witness} of the vault cannot be written ({error.strerror}); what was done is in "
                "the vault, and the same command goes on when the witness can be written again"
            ) from error

    def write(self) -> None:
        """Write a line for it, if that is not the newest one; a line that a full disk or a crash has cut off stays."""
        path, line = self.witness, f"{self.sequence} {self.head}\n".encode()
        if not path.exists():
            write_atomically(path, line)
        elif _newest(path) != (self.sequence, self.head):
            with open_durably(path, "a+b") as file:
                file.seek(-1, os.SEEK_END)
                file.write(line if file.read() == b"\n" else b"\n" + line)


def state_of(connection: sqlite3.Connection) -> LedgerState | None:
    """What the witness has to know of the ledger as it is now; None: the vault has no witness."""
    path = _path(connection)
    return None if path is None else LedgerState(path, *ledger.read_last(connection))


def _require_seen(connection: sqlite3.Connection, path: Path) -> None:
    """Raise a `VaultError` unless the ledger has the newest entry that a witness has seen."""
    try:
        sequence, seen = _newest(path)
    except OSError as error:
        raise VaultError(
            f"the witness {path} of the vault cannot be read ({error.strerror}); if it is lost, and this is the newest "
            "copy of the vault, `tpsl vault witness` names another one"
        ) from error
    row = connection.execute("SELECT hash FROM ledger WHERE sequence = ?", (sequence,)).fetchone()
    if row != (seen,):
        raise VaultError(
            f"the vault is older than its witness {path}, or another one: that has seen ledger entry {sequence}, "
            f"{seen[:12]}…; what was released since is not in this copy, and would be drawn again: find the newest one"
        )


def _path(connection: sqlite3.Connection) -> Path | None:
    row = connection.execute("SELECT path FROM witness").fetchone()
    return None if row is None else Path(row[0])


def _newest(path: Path) -> tuple[int, str]:
    """The number and the hash of the newest entry that a witness has seen."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _BYTES_READ))
        end = file.read().decode("ascii", "replace")
    lines = [found for line in end.split("\n")[:-1] if (found := _LINE.fullmatch(line))]
    if not lines:
        raise VaultError(f"{path} is no witness of a vault: no line of it has the number and the hash of an entry")
    return max((int(line[1]), line[2]) for line in lines)
