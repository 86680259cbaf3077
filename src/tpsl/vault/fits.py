"""What fits without a vault have released, so that the next one can tell what the same labels have cost by then.

`fits-without-vault.sqlite` in the place of vaults holds keyed digests of the records of each fit: at most 4,096, the
smallest, so that fits on common records have digests in common. Beside each stands how many fits had the record, and
the sum of their ε. The key lies in the same file, so it is the label party's, as the labels are. It protects nothing: a
vault does.
"""

from __future__ import annotations

import hashlib
import secrets
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tpsl.files import make_private_folder, open_private
from tpsl.vault.errors import VaultError

FILE = "fits-without-vault.sqlite"
_MOST_MARKS = 4096
_WAIT_SECONDS = 60.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS keys (key BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS marks (mark BLOB PRIMARY KEY, fits INTEGER NOT NULL, epsilon REAL NOT NULL) WITHOUT ROWID;
"""
_ADD = """
INSERT INTO marks VALUES (?, ?, ?)
ON CONFLICT (mark) DO UPDATE SET fits = fits + excluded.fits, epsilon = epsilon + excluded.epsilon
"""


@dataclass(frozen=True)
class EarlierFits:
    """What the record with the largest ε had been released with before."""

    fits: int
    epsilon: float


def add_fit(place: Path, records: Iterable[bytes], epsilon: float) -> EarlierFits:
    """Note that these records, known by their content, are released with ε, and return what was noted before.

    Guarantee: of fits that run at the same time each sees those that were noted before it, in whatever process.
    """
    with _opened(place) as connection:
        marks = _marks(connection, records)
        known = [
            connection.execute("SELECT fits, epsilon FROM marks WHERE mark = ?", (mark,)).fetchone() for mark in marks
        ]
        connection.executemany(_ADD, [(mark, 1, epsilon) for mark in marks])
    return max((EarlierFits(*row) for row in known if row), key=lambda fit: fit.epsilon, default=EarlierFits(0, 0.0))


def take_back(place: Path, records: Iterable[bytes], epsilon: float) -> None:
    """Forget a fit that was noted and released nothing."""
    with _opened(place) as connection:
        connection.executemany(_ADD, [(mark, -1, -epsilon) for mark in _marks(connection, records)])
        connection.execute("DELETE FROM marks WHERE fits = 0")


@contextmanager
def _opened(place: Path) -> Iterator[sqlite3.Connection]:
    """Yield the record in a transaction of its own; other processes wait for its end."""
    path = place / FILE
    try:
        make_private_folder(place)
        open_private(path, "ab").close()
        with closing(sqlite3.connect(path, timeout=_WAIT_SECONDS, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA.split(";"):
                connection.execute(statement)
            yield connection
            connection.execute("COMMIT")
    except (OSError, sqlite3.Error) as error:
        raise VaultError(f"{path}: cannot be written ({error})") from error


def _marks(connection: sqlite3.Connection, records: Iterable[bytes]) -> list[bytes]:
    row = connection.execute("SELECT key FROM keys").fetchone()
    key = row[0] if row else secrets.token_bytes(32)
    if row is None:
        connection.execute("INSERT INTO keys VALUES (?)", (key,))
    return sorted({hashlib.blake2b(record, key=key, digest_size=16).digest() for record in records})[:_MOST_MARKS]
