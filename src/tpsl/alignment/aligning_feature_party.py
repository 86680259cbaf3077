"""A feature party's side of an alignment: it sends its list, and blinds those that it is asked to."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tpsl.alignment.aligning_party import AligningParty, Outcome
from tpsl.alignment.terms import POINTS, POSITION_BYTES, POSITIONS
from tpsl.alignment.working_folder import IDENTITY_BYTES
from tpsl.data.order import Rows
from tpsl.training.receiving import receive
from tpsl.transport.channel import Channel, Meeting, PeerRestarted
from tpsl.transport.checks import BadMessage
from tpsl.transport.messages import Announcement, Bye, Start, TensorMessage
from tpsl.transport.peers import LABEL_PARTY, described


class AligningFeatureParty(AligningParty):
    """A feature party. What it sends is a function of its own list, of its secrets and of the lists it is sent.

    It blinds one list for each other party, of the announced size, whatever restarts the label party claims: another
    batch in the place of one that it has seen is refused.
    """

    @property
    def session(self) -> bytes:
        """The random name of the alignment, as the label party has announced it."""
        return self.working.announced_identity(LABEL_PARTY)

    async def attend(self, meeting: Meeting, keep: Callable[[Outcome], None]) -> None:
        """Take part until the outcome is kept and the label party knows it, through restarts of the label party."""
        while True:
            (channel,) = (await meeting.gather()).values()
            self.traffics.append(channel.traffic)
            self.watching.observer.gathered({channel.peer: channel})
            try:
                await self._greet(channel)
                keep(await self._answer(channel))
                self.working.settle()
                await channel.send(Bye())
                await receive(channel, self.watching.observer, Bye)
                return
            except PeerRestarted:
                self.watching.observer.event("restarted", peer=channel.peer)

    async def _greet(self, channel: Channel) -> None:
        await channel.send(Announcement(self.working.identity, (len(self.table),)))
        said = await receive(channel, self.watching.observer, Announcement)
        me = self.terms.circle.index(self.name)
        if len(said.records) != len(self.terms.circle) or said.records[me] != len(self.table):
            raise BadMessage(f"the label party announces {said.records} records; this party has {len(self.table)}")
        if len(said.identity) != IDENTITY_BYTES:
            raise BadMessage(f"the label party announces a name of {len(said.identity)} bytes, not {IDENTITY_BYTES}")
        self.working.note_announced(LABEL_PARTY, said)
        self.working.note_records(dict(zip(self.terms.circle, said.records, strict=True)))
        for name, records in self.working.records.items():
            if name != self.name:
                self.watching.notice(f"{described(name)} has {records:,} records to align")

    async def _answer(self, channel: Channel) -> Outcome:
        """Take lists and send them back blinded, as the label party asks, until it tells the outcome."""
        sent: set[int] = set()
        while True:
            message: TensorMessage | Start | Announcement = await receive(
                channel, self.watching.observer, TensorMessage, Start, Announcement, topics=(POINTS,)
            )
            if isinstance(message, Announcement):
                return await self._outcome(channel, message)
            if isinstance(message, TensorMessage):
                self._require_due(message.step, range(1, self.terms.rounds), sent)
                owner = self.terms.owner(self.name, message.step)
                self.take(message, message.step, self.working.list_of(owner, message.step), LABEL_PARTY)
            else:
                self._require_due(message.round, range(self.terms.rounds), sent)
                sent.add(message.round)
                await self._send(channel, message)

    @staticmethod
    def _require_due(round_: int, possible: range, sent: set[int]) -> None:
        if round_ not in possible or round_ in sent:
            raise BadMessage(f"the label party asks for round {round_}, which is not due")

    async def _send(self, channel: Channel, asked: Start) -> None:
        owner = self.terms.owner(self.name, asked.round)
        if asked.round and not self.working.list_of(owner, asked.round).is_complete:
            raise BadMessage(f"the label party asks for the list of {described(owner)}, and has not sent all of it")
        if asked.step > self.working.records[owner] or asked.step % self.terms.batch:
            raise BadMessage(f"the label party asks for a list from row {asked.step} on, where no batch begins")
        await self.send_list(channel, self.blinded(asked.round), asked.round, asked.step)

    async def _outcome(self, channel: Channel, said: Announcement) -> Outcome:
        """Receive which of this party's records are common, in the common order."""
        if len(said.identity) != IDENTITY_BYTES or len(said.records) != 1 or said.records[0] > len(self.table):
            raise BadMessage(f"the label party announces {said.records} common records of {len(self.table)}")
        (count,), mode = said.records, self.terms.config.mode
        digest = said.identity.hex()
        if mode == "size":
            return Outcome(digest, np.empty(0, np.int64), count)
        positions, keys = await self._positions(channel, count)
        places = self.order[positions]
        if mode == "label-only":
            return Outcome(digest, self.table.rows[places], None)
        return Outcome(digest, self.table.rows[places], count, self.table.digests[places, keys])

    async def _positions(self, channel: Channel, count: int) -> tuple[Rows, Rows]:
        """Return where the common records are in this party's list, and by which key each was found."""
        parts = [np.empty((0, POSITION_BYTES), np.uint8)]
        for part, begin in enumerate(range(0, count, self.terms.batch)):
            message = await receive(channel, self.watching.observer, TensorMessage, topics=(POSITIONS,))
            expected = (min(self.terms.batch, count - begin), POSITION_BYTES)
            if message.part != part or tuple(message.tensor.shape) != expected:
                raise BadMessage(f"the label party sent part {message.part} of the positions in another shape or order")
            parts.append(message.tensor.numpy())
        rows = np.concatenate(parts)
        positions = np.ascontiguousarray(rows[:, :4]).view("<u4").ravel().astype(np.int64)
        keys = rows[:, 4].astype(np.int64)
        if len(np.unique(positions)) != count or (positions >= len(self.table)).any():
            raise BadMessage("the label party names a position twice, or one that is not in this party's list")
        if (keys >= len(self.terms.keys)).any():
            raise BadMessage("the label party names a key that the alignment does not have")
        return positions, keys
