"""What a party keeps while an alignment runs, so that a process that was killed goes on: its secret and the lists.

    working/secret.json     this party's scalar, its random name, what it aligns; what the others have announced
    working/P.order         the secret order in which this party passes on the list of party number P
    working/P.N             the list of party number P, blinded N times

All of it is removed when the alignment is done, so that no secret serves twice.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tpsl.alignment.alignment_errors import AlignmentError
from tpsl.alignment.group import fresh_scalar
from tpsl.alignment.key_table import KeyTable, random_order
from tpsl.alignment.row_file import RowFile
from tpsl.alignment.terms import AlignmentTerms
from tpsl.data.order import Rows
from tpsl.files import make_private_folder, open_private, remove_drafts, write_atomically
from tpsl.transport.checks import BadMessage
from tpsl.transport.messages import Announcement
from tpsl.transport.peers import described

IDENTITY_BYTES = 32


class WorkingFolder:
    """The state of one party's alignment in a folder of its own."""

    def __init__(self, folder: Path, terms: AlignmentTerms) -> None:
        self.folder, self.path, self._terms = folder, folder / "working", terms
        self._secret: dict[str, Any] = {}

    @property
    def is_begun(self) -> bool:
        """Whether an alignment was begun here and is not done with."""
        return self.path.exists()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder for this process."""
        make_private_folder(self.folder)
        with open_private(self.folder / ".lock", "wb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise AlignmentError(f"{self.folder}: another process is aligning in this folder") from None
            remove_drafts(self.folder)
            yield

    def begin(self, table: KeyTable) -> None:
        """Draw this party's secrets, or take up those of the process before; its keys and their order are the same."""
        order = hashlib.sha256(table.rows.tobytes()).hexdigest()
        aligned = {"terms": self._terms.agreement().ids.hex(), "keys": table.source.digest, "order": order}
        secret = self.path / "secret.json"
        if not secret.exists():
            make_private_folder(self.path)
            drawn = {name: os.urandom(IDENTITY_BYTES).hex() for name in ("identity", "salt")}
            drawn["scalar"] = fresh_scalar().hex()
            self._secret = {**drawn, "aligned": aligned, "announced": {}, "records": {}, "is_settled": False}
            self._save()
        self._secret = json.loads(secret.read_text())
        if self._secret["aligned"] != aligned:
            raise AlignmentError(
                f"{self.folder}: holds an unfinished alignment of other keys or on other terms; remove it to begin anew"
            )

    def end(self) -> None:
        """Forget the secrets and the lists, all at once: the alignment is done."""
        if self.is_begun:
            self.path.rename(self.path.with_name(".working.old"))
        remove_drafts(self.folder)

    @property
    def scalar(self) -> bytes:
        """The secret that blinds, fresh for each alignment."""
        return bytes.fromhex(self._secret["scalar"])

    @property
    def identity(self) -> bytes:
        """A random name of what this party has begun. That of the label party is the alignment's."""
        return bytes.fromhex(self._secret["identity"])

    @property
    def salt(self) -> bytes:
        """A secret that makes a digest say nothing to whoever guesses what it is of."""
        return bytes.fromhex(self._secret["salt"])

    @property
    def is_settled(self) -> bool:
        """Whether this party needs nothing more from the others."""
        return bool(self._secret["is_settled"])

    def settle(self) -> None:
        """Note that this party needs nothing more from the others."""
        self._secret["is_settled"] = True
        self._save()

    @property
    def records(self) -> dict[str, int]:
        """How many records the list of each party has, as it has announced."""
        return dict(self._secret["records"])

    def note_records(self, records: Mapping[str, int]) -> None:
        """Keep how many records the list of each party has."""
        self._secret["records"] = dict(records)
        self._save()

    def note_announced(self, peer: str, said: Announcement) -> None:
        """Keep what a peer has announced; one that says something else after a restart has lost its secrets, or lies.

        Its list would be half under one secret and half under another, and a label party that may ask again and again
        could ask for every id there is.
        """
        what = [said.identity.hex(), *said.records]
        if self._secret["announced"].setdefault(peer, what) != what:
            raise BadMessage(
                f"{described(peer)} has begun another alignment, or has other records than before: "
                "remove the folder of the unfinished one at every party to begin anew"
            )
        self._save()

    def announced_identity(self, peer: str) -> bytes:
        """Return the random name that a peer has announced."""
        return bytes.fromhex(self._secret["announced"][peer][0])

    def list_of(self, owner: str, blinded: int) -> RowFile:
        """Return the list of a party after this many parties have blinded it."""
        path = self.path / f"{self._terms.circle.index(owner)}.{blinded}"
        return RowFile(path, self._terms.row_bytes, self._secret["records"][owner], self._terms.batch)

    def order_of(self, owner: str) -> Rows:
        """Return the secret order in which this party passes on a list, drawn once."""
        path = self.path / f"{self._terms.circle.index(owner)}.order"
        if not path.exists():
            write_atomically(path, random_order(self._secret["records"][owner]).tobytes())
        return np.fromfile(path, np.int64)

    def _save(self) -> None:
        write_atomically(self.path / "secret.json", json.dumps(self._secret).encode())
