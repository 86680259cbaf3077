"""Vaults of older formats: records become blocks, ids get an index; ledger, releases and statistics stay as they are.

It happens when such a vault is opened, in one transaction, and only if the ids are those of the ledger.
"""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tpsl.vault import id_index, ledger, storage
from tpsl.vault.blocks import CHUNK, Block, append, read_blocks
from tpsl.vault.errors import VaultError
from tpsl.vault.pairs import Pairs
from tpsl.vault.texts import Texts
from tpsl.vault.verifying import Additions

_LAST_WITH_ROWS = 2


def migrate(connection: sqlite3.Connection, folder: Path) -> None:
    """Bring a vault to the present format; one that is damaged stays as it is and is a `VaultError`."""
    with storage.writing(connection, folder):
        version = storage.read_format(connection, folder)
        if version == storage.FORMAT:
            return  # another process was faster
        if version <= _LAST_WITH_ROWS:
            for table in ("id_styles", "lookalikes"):  # what they hold is found again
                connection.execute(f"DROP TABLE IF EXISTS {table}")
        storage.write_schema(connection)
        if version <= _LAST_WITH_ROWS:
            _rows_to_blocks(connection)
        _index_again(connection, folder)


def _index_again(connection: sqlite3.Connection, folder: Path) -> None:
    """Make the index of ids anew, and compare them with the ledger."""
    additions = Additions([entry for entry in ledger.read_entries(connection) if entry.kind == "added"])
    key = id_index.key_of(connection)
    connection.execute("DELETE FROM id_index")
    with Pairs(folder) as ids:
        for block in read_blocks(connection):
            additions.take(block)
            ids.take(block.ids.hashes(key), np.arange(ids.count, ids.count + len(block)))
        if ids.count and id_index.enter(connection, ids, folder) is not None:
            raise VaultError(f"vault {folder} is damaged: an id occurs twice")
    problems = additions.problems()
    if problems:
        raise VaultError(f"vault {folder} is damaged: {problems[0]}; restore it from a backup, do not release again")


def _rows_to_blocks(connection: sqlite3.Connection) -> None:
    classes = int(ledger.read_first(connection).details["classes"])
    for block in _blocks(connection, classes):
        append(connection, classes, block)
    connection.execute("DROP TABLE records")


def _blocks(connection: sqlite3.Connection, classes: int) -> Iterator[Block]:
    """The records of a vault that has a row for each."""
    cursor = connection.execute("SELECT position, id, label, unit FROM records ORDER BY position")
    done = 0
    while rows := cursor.fetchmany(CHUNK):
        positions, ids, labels, units = zip(*rows, strict=True)
        sound = all(isinstance(label, int) and 0 <= label < classes for label in labels)
        sound &= all(isinstance(text, str) for text in (*ids, *filter(None, units)))
        if not sound or positions != tuple(range(done, done + len(rows))):
            raise VaultError(f"the records between positions {done} and {done + CHUNK} are damaged")
        done += len(rows)
        given = None if units.count(None) == len(units) else Texts.of([unit or "" for unit in units])
        yield Block(Texts.of(list(ids)), np.array(labels, np.int64), given)
