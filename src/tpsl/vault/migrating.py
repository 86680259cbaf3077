"""Vaults of older formats: records that had a row each become blocks; ledger, releases and statistics stay as they are.

It happens when such a vault is opened, in one transaction, and only if the ids are those of the ledger.
"""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tpsl.vault import id_index, ledger, storage
from tpsl.vault.blocks import CHUNK, Block, append
from tpsl.vault.errors import VaultError
from tpsl.vault.texts import Texts
from tpsl.vault.verifying import Additions


def migrate(connection: sqlite3.Connection, folder: Path) -> None:
    """Bring a vault to the present format; one that is damaged stays as it is and is a `VaultError`."""
    with storage.writing(connection, folder), id_index.NewIds(folder) as new_ids:
        if storage.read_format(connection, folder) == storage.FORMAT:
            return  # another process was faster
        classes = int(ledger.read_first(connection).details["classes"])
        additions = Additions([entry for entry in ledger.read_entries(connection) if entry.kind == "added"])
        for table in ("id_styles", "lookalikes"):  # what they hold is found again
            connection.execute(f"DROP TABLE IF EXISTS {table}")
        storage.write_schema(connection)
        for block in _blocks(connection, classes):
            additions.take(block)
            new_ids.take(block.ids.hashes(), new_ids.count)
            append(connection, classes, block)
        if new_ids.count and id_index.enter(connection, new_ids, folder) is not None:
            raise VaultError(f"vault {folder} is damaged: an id occurs twice")
        problems = additions.problems()
        if problems:
            raise VaultError(
                f"vault {folder} is damaged: {problems[0]}; restore it from a backup, do not release again"
            )
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
