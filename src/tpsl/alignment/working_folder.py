"""What a party keeps while an alignment runs, so that a process that was killed goes on: its secret and the lists.

    working/secret.json     this party's scalar, its random name, what it aligns; what the others have announced
    working/P.order         the secret order in which this party passes on the list of party number P
    working/P.N             the list of party number P, blinded N times

All of it is removed when the alignment is done, so that no secret serves twice.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from tpsl.alignment import AlignmentError
from tpsl.alignment.group import fresh_scalar
from tpsl.alignment.keys import KeyTable
from tpsl.alignment.terms import AlignmentTerms
from tpsl.data.order import Rows
from tpsl.files import (
    make_private_folder,
    naming_what_does_not_fit,
    open_durably,
    open_private,
    remove_drafts,
    sync_folder,
    write_atomically,
)
from tpsl.mechanisms import secure_words
from tpsl.net.failures import BadMessage
from tpsl.net.messages import described

IDENTITY_BYTES = 32

RowBytes = npt.NDArray[np.uint8]
"""Rows of bytes: [n, width]."""


class RowFile:
    """A list on disk: rows of `width` bytes, of which there will be `rows`, appended in batches.

    What was appended survives a power failure; the length says how far a computation or a transfer has come.
    """

    def __init__(self, path: Path, width: int, rows: int, batch: int) -> None:
        self.path, self.width, self.rows, self.batch = path, width, rows, batch

    @property
    def done(self) -> int:
        """How many rows are on the disk; a batch that a killed process has written in part does not count."""
        found = self.path.stat().st_size // self.width if self.path.exists() else 0
        return found if found == self.rows else found - found % self.batch

    @property
    def parts(self) -> int:
        """How many batches the rows make."""
        return -(-self.rows // self.batch)

    @property
    def missing(self) -> range:
        """The numbers of the batches that are not on the disk."""
        return range(-(-self.done // self.batch), self.parts)

    def rows_of(self, part: int) -> slice:
        """Return the rows of a batch: with 7 rows in batches of 3 those of batch 2 are 6 to 7."""
        return slice(part * self.batch, min((part + 1) * self.batch, self.rows))

    def append(self, rows: RowBytes) -> None:
        """Write the next batch, durably."""
        end, is_new = self.done * self.width, not self.path.exists()
        with naming_what_does_not_fit(self.path), open_durably(self.path, "ab") as file:
            file.truncate(end)
            file.write(np.ascontiguousarray(rows).data)
        if is_new:
            sync_folder(self.path.parent)

    def read(self) -> RowBytes:
        """Return the rows that are on the disk; they are read from the file as they are used."""
        if self.done == 0:
            return np.empty((0, self.width), np.uint8)
        return np.memmap(self.path, np.uint8, "r", shape=(self.done, self.width))


class State(BaseModel):
    """What a party keeps beside the lists; bytes are written as hexadecimal digits."""

    model_config = ConfigDict(ser_json_bytes="hex", val_json_bytes="hex")

    aligned: dict[str, str]
    """Digests of what was begun: the terms, this party's keys, their order."""
    identity: bytes = Field(default_factory=partial(os.urandom, IDENTITY_BYTES))
    """A random name of what this party has begun. That of the label party is the alignment's."""
    salt: bytes = Field(default_factory=partial(os.urandom, IDENTITY_BYTES))
    """A secret that makes a digest say nothing to whoever guesses what it is of."""
    scalar: bytes = Field(default_factory=fresh_scalar)
    """The secret that blinds, fresh for each alignment."""
    announced: dict[str, tuple[bytes, tuple[int, ...]]] = {}
    """By peer: its random name, and how many records it says that lists have."""
    records: dict[str, int] = {}
    """How many records the list of each party has."""
    is_settled: bool = False
    """Whether this party needs nothing more from the others."""


class WorkingFolder:
    """The state of one party's alignment, in a folder that no other alignment uses."""

    state: State

    def __init__(self, folder: Path, terms: AlignmentTerms) -> None:
        self.folder, self.path, self._terms = folder, folder / "working", terms

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
        self.state = State(
            aligned={"terms": self._terms.agreement().ids.hex(), "keys": table.source.digest, "order": order}
        )
        if not self._file.exists():
            make_private_folder(self.path)
            self._save()
            return
        there = State.model_validate_json(self._file.read_bytes())
        if there.aligned != self.state.aligned:
            raise AlignmentError(
                f"{self.folder}: holds an unfinished alignment of other keys or on other terms; remove it to begin anew"
            )
        self.state = there

    def end(self) -> None:
        """Forget the secrets and the lists, all at once: the alignment is done."""
        if self.is_begun:
            self.path.rename(self.path.with_name(".working.old"))
        remove_drafts(self.folder)

    def settle(self) -> None:
        """Note that this party needs nothing more from the others."""
        self.state.is_settled = True
        self._save()

    def note_records(self, records: Mapping[str, int]) -> None:
        """Keep how many records the list of each party has."""
        self.state.records = dict(records)
        self._save()

    def note_announced(self, peer: str, identity: bytes, records: Sequence[int]) -> None:
        """Keep what a peer has announced; one that says something else after a restart has lost its secrets, or lies.

        Its list would be half under one secret and half under another, and a label party that may ask again and again
        could ask for every id there is.
        """
        said = identity, tuple(records)
        if self.state.announced.setdefault(peer, said) != said:
            raise BadMessage(
                f"{described(peer)} has begun another alignment, or has other records than before: "
                "remove the folder of the unfinished one at every party to begin anew"
            )
        self._save()

    def list_of(self, owner: str, blinded: int) -> RowFile:
        """Return the list of a party after this many parties have blinded it."""
        path = self.path / f"{self._terms.circle.index(owner)}.{blinded}"
        return RowFile(path, self._terms.row_bytes, self.state.records[owner], self._terms.batch)

    def order_of(self, owner: str) -> Rows:
        """Return the secret order in which this party passes on a list, drawn once."""
        path = self.path / f"{self._terms.circle.index(owner)}.order"
        if not path.exists():
            write_atomically(path, random_order(self.state.records[owner]).tobytes())
        return np.fromfile(path, np.int64)

    @property
    def _file(self) -> Path:
        return self.path / "secret.json"

    def _save(self) -> None:
        write_atomically(self._file, self.state.model_dump_json().encode())


def random_order(count: int) -> Rows:
    """Return the numbers below `count` in an order that nobody can guess: sorted by secret random words."""
    return np.argsort(secure_words().words(count)).astype(np.int64)
