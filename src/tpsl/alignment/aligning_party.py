"""What both sides of an alignment do: blind lists, and send and receive them in batches."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch

from tpsl.alignment.group import POINT_BYTES, Bytes32, hashed, multiplied, require_points
from tpsl.alignment.key_table import KeyTable
from tpsl.alignment.matching import require_distinct
from tpsl.alignment.row_file import RowBytes, RowFile
from tpsl.alignment.terms import POINTS, AlignmentTerms
from tpsl.alignment.working_folder import WorkingFolder
from tpsl.data.order import Rows
from tpsl.training.observer import Watching
from tpsl.transport.channel import Channel, Traffic
from tpsl.transport.checks import BadMessage
from tpsl.transport.messages import TensorMessage
from tpsl.transport.peers import described

_PLAIN_DOMAIN = b"tpsl alignment: plain\0"


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a party has learned: the digest that all share, and its rows of the common records in their order."""

    digest: str
    rows: Rows
    matched: int | None
    """How many the label party knows, where this party may know that."""
    matched_keys: Bytes32 | None = None
    """Mode `both`: the digest of the key by which each record was found."""


class AligningParty(ABC):
    """One party of an alignment, over any transport."""

    def __init__(
        self,
        name: str,
        terms: AlignmentTerms,
        table: KeyTable,
        working: WorkingFolder,
        watching: Watching,
    ) -> None:
        self.name, self.terms, self.table, self.working, self.watching = name, terms, table, working, watching
        self.traffics: list[Traffic] = []

    @property
    @abstractmethod
    def session(self) -> bytes:
        """The random name of the alignment, chosen by the label party: the context of every hash."""

    @cached_property
    def order(self) -> Rows:
        """The order in which this party's own records are sent: a secret one, unless the terms want that of time."""
        if self.terms.config.order == "time" and self.name == self.terms.parties[0]:
            return np.arange(len(self.table))
        return self.working.order_of(self.name)

    def blinded(self, round_: int) -> RowFile:
        """Blind the list that is this party's in a round, as far as that is not done; no key may be in it twice."""
        owner = self.terms.owner(self.name, round_)
        made = self.working.list_of(owner, round_ + 1)
        source = self.working.list_of(owner, round_).read() if round_ else self.table.digests
        order = self.order if round_ == 0 else None
        if round_ and self.terms.config.mode == "size":
            order = self.working.order_of(owner)  # whoever gets the list back does not find its own records in it
        starts = range(made.done, made.rows, self.terms.batch)
        parts = [slice(start, min(start + self.terms.batch, made.rows)) for start in starts]
        batches = (np.array(source[part] if order is None else source[order[part]]) for part in parts)
        for rows in map(self._blinding(round_), batches):
            made.append(rows)
            self.watching.progress(made.done, made.rows, f"round {round_ + 1} of {self.terms.rounds}: computing")
        if round_:
            require_distinct(self.points(made), described(owner))
        return made

    def points(self, rows: RowFile) -> Bytes32:
        """Return the rows of a list as [rows, keys, 32]."""
        return self._as_points(rows.read())

    async def send_list(self, channel: Channel, rows: RowFile, round_: int, start: int) -> None:
        """Send a list from a row on, in batches."""
        content = rows.read()
        for begin in range(start, rows.rows, self.terms.batch):
            batch = np.array(content[begin : begin + self.terms.batch])
            await channel.send(TensorMessage(POINTS, round_, begin // self.terms.batch, torch.from_numpy(batch)))

    def take(self, message: TensorMessage, round_: int, into: RowFile, sender: str) -> None:
        """Check a batch of a list and keep it. One that is there already must be the same."""
        begin = message.part * self.terms.batch
        expected = (min(self.terms.batch, into.rows - begin), self.terms.row_bytes)
        if message.step != round_ or begin > into.done or begin >= into.rows:
            raise BadMessage(
                f"{described(sender)} sent batch {message.part} of round {message.step}; expected was batch "
                f"{into.done // self.terms.batch} of round {round_}"
            )
        if tuple(message.tensor.shape) != expected:
            raise BadMessage(f"{described(sender)} sent a batch of shape {tuple(message.tensor.shape)}, not {expected}")
        rows = message.tensor.numpy()
        if begin < into.done:
            if not np.array_equal(into.read()[begin : begin + len(rows)], rows):
                raise BadMessage(f"{described(sender)} sent other points than before its restart")
            return
        if self.terms.config.engine == "ecdh":
            require_points(self._as_points(rows), described(sender))
        into.append(rows)
        note = f"round {round_ + 1} of {self.terms.rounds}: receiving from {sender}"
        self.watching.progress(into.done, into.rows, note)

    def _as_points(self, rows: RowBytes) -> Bytes32:
        return rows.reshape(len(rows), len(self.terms.keys), POINT_BYTES)

    def _blinding(self, round_: int) -> Callable[[Bytes32], RowBytes]:
        """Return what makes a batch of the list of a round: of digests of keys at first, then of points."""
        if round_:
            return partial(_blinded_again, scalar=self.working.scalar)
        if self.terms.config.engine == "ecdh":
            return partial(_own_points, context=self.session, scalar=self.working.scalar)
        return partial(_salted, salt=self.session)


def _own_points(digests: Bytes32, context: bytes, scalar: bytes) -> RowBytes:
    return multiplied(hashed(digests, context), scalar).reshape(len(digests), -1)


def _blinded_again(rows: RowBytes, scalar: bytes) -> RowBytes:
    return multiplied(rows.reshape(len(rows), -1, POINT_BYTES), scalar).reshape(rows.shape)


def _salted(digests: Bytes32, salt: bytes) -> RowBytes:
    start, data = hashlib.sha256(_PLAIN_DOMAIN + salt), digests.tobytes()
    made = bytearray()
    for at in range(0, len(data), POINT_BYTES):
        salted = start.copy()
        salted.update(data[at : at + POINT_BYTES])
        made += salted.digest()
    return np.frombuffer(made, np.uint8).reshape(len(digests), -1)
