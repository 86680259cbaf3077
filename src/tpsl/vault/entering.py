"""What is read of files enters a vault once, also where a command was killed after it had entered.

Such a command has told nobody what it did, and has left what it had read (`incoming`). Given again, it learns from the
vault that these files have entered, and what that did.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict

from tpsl.progress import Notice
from tpsl.vault import adding, ledger
from tpsl.vault.adding import Added
from tpsl.vault.blocks import count_records
from tpsl.vault.incoming import Incoming
from tpsl.vault.portions import portions_of
from tpsl.vault.store import Store
from tpsl.vault.tables import Batch


def enter(store: Store, classes: int, batches: Iterable[Batch] | Incoming, notice: Notice) -> Added:
    """Add records inside the running transaction (`adding.add`), unless a command that was killed has done so."""
    if not isinstance(batches, Incoming):
        return adding.add(store, classes, portions_of(batches, classes), notice)
    done = entered(store, batches)
    if done is not None:
        return done
    batches.require_classes(classes)
    added = adding.add(store, classes, batches.portions(), notice)
    _, head = ledger.read_last(store)
    store.execute("DELETE FROM last_files")
    row = batches.digest(), head, json.dumps(asdict(added))
    store.execute("INSERT INTO last_files VALUES (?, ?, ?)", row)
    return added


def entered(store: Store, files: Incoming) -> Added | None:
    """What was added when these files entered in a command that was killed then.

    None if there was no such command, or if anything has happened to the vault since.
    """
    return _entered_last(store, files) if files.goes_on else None


def is_made_of(store: Store, files: Incoming) -> bool:
    """Whether the vault has the records of these files and no others, and nothing has happened to it since."""
    added = _entered_last(store, files)
    return added is not None and added.new == count_records(store)


def _entered_last(store: Store, files: Incoming) -> Added | None:
    """What was added when these files entered, if that is the last that has happened to the vault."""
    _, head = ledger.read_last(store)
    query = "SELECT added FROM last_files WHERE digest = ? AND head = ?"
    found = store.execute(query, (files.digest(), head)).fetchone()
    return None if found is None else Added(**json.loads(found[0]))
