"""`Store`: one label of a vault in the vault's database, which is what reads and writes of its records go through."""

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Store:
    """The connection to a vault's database, the vault's folder, and the number of one of its labels.

    The ledger is the vault's, whichever label it is read through. Records, their index and outcomes are the label's.
    """

    connection: sqlite3.Connection
    folder: Path
    label: int = 0
    """Counted from 1; 0: none of them, for what concerns the vault as a whole."""

    def execute(self, statement: str, parameters: Iterable[Any] = ()) -> sqlite3.Cursor:
        """Execute one statement."""
        return self.connection.execute(statement, tuple(parameters))
