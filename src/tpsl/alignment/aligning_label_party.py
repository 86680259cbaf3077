"""The label party's side of an alignment: lists go through it from party to party, and it compares them in the end.

In round r every party blinds the list of the party r places before it in the circle, so that after the last round every
list was blinded by everyone, and equal keys are equal points. Whatever stops a party, the label party goes on with what
it has on disk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from tpsl.alignment.aligning_party import AligningParty, Outcome
from tpsl.alignment.group import Bytes32
from tpsl.alignment.matching import Common, common_records, require_distinct
from tpsl.alignment.terms import MOST_RECORDS, POINTS, POSITION_BYTES, POSITIONS
from tpsl.data.aligned import UNKNOWN
from tpsl.training.receiving import receive
from tpsl.transport.channel import Channel, Meeting, PeerRestarted
from tpsl.transport.checks import BadMessage
from tpsl.transport.messages import Announcement, Bye, Start, TensorMessage
from tpsl.transport.peers import LABEL_PARTY, described

_DIGEST_DOMAIN = b"tpsl alignment: common records\0"
_WithParty = Callable[[str], Coroutine[Any, Any, None]]


class AligningLabelParty(AligningParty):
    """The label party. In mode `label-only` what it sends does not depend on its own list but for its length."""

    @property
    def session(self) -> bytes:
        """The random name of the alignment: what this party has begun."""
        return self.working.identity

    async def attend(self, meeting: Meeting) -> None:
        """Take part until every feature party has kept the outcome, through their restarts."""
        self._heard: dict[str, Channel] = {}  # channels on which a party has announced its list
        self._channels: dict[str, Channel] = {}  # those on which it was answered
        for round_ in range(self.terms.rounds):
            ask, collect = partial(self._ask, round_), partial(self._collect, round_)
            await self._with_all(meeting, ask, collect, meanwhile=partial(self.blinded, round_))
        await self._with_all(meeting, self._tell, self._confirmed)
        self.working.settle()
        for channel in self._channels.values():
            with suppress(PeerRestarted):  # it has kept the outcome
                await channel.send(Bye())

    def outcome(self) -> Outcome:
        """Return which records this party knows. To be asked when nobody can measure how long it takes."""
        common, mode = self._common, self.terms.config.mode
        if mode == "size":
            return Outcome(self._digest, np.empty(0, np.int64), len(common.keys))
        if mode == "label-only":
            reference = self._final(self.terms.parties[0])[common.positions[:, 0]]
            known = common_records([reference, self._final(LABEL_PARTY)])
            rows = np.full(len(reference), UNKNOWN, np.int64)
            rows[known.positions[:, 0]] = self.table.rows[self.order[known.positions[:, 1]]]
            return Outcome(self._digest, rows, len(known.keys))
        places = self.order[common.positions[:, -1]]
        return Outcome(self._digest, self.table.rows[places], len(places), self.table.digests[places, common.keys])

    async def _ask(self, round_: int, party: str) -> None:
        """Send a feature party the list that is its to blind in a round, and ask for what is missing of the result."""
        owner, channel = self.terms.owner(party, round_), self._channels[party]
        wanted = self.working.list_of(owner, round_ + 1)
        if wanted.is_complete:
            return
        if round_:
            await self.send_list(channel, self.working.list_of(owner, round_), round_, 0)
        await channel.send(Start(round_, wanted.done))

    async def _collect(self, round_: int, party: str) -> None:
        """Receive what was asked for; no key may be in it twice."""
        wanted = self.working.list_of(self.terms.owner(party, round_), round_ + 1)
        while not wanted.is_complete:
            message = await receive(self._channels[party], self.watching.observer, TensorMessage, topics=(POINTS,))
            if message.part * self.terms.batch != wanted.done:
                raise BadMessage(f"{described(party)} sent batch {message.part} out of turn")
            self.take(message, round_, wanted, party)
        require_distinct(self.points(wanted), described(party))

    async def _with_all(
        self, meeting: Meeting, begin: _WithParty, finish: _WithParty, meanwhile: Callable[[], object] = lambda: None
    ) -> None:
        """Begin something with every feature party, do one's own work, and finish it with each.

        A party that was restarted, and has a new channel, begins again; the others do not notice.
        """
        begun, finished = dict[str, Channel](), dict[str, Channel]()
        while True:
            try:
                await self._gather(meeting)
                for party, channel in self._channels.items():
                    if begun.get(party) is not channel:
                        await begin(party)
                        begun[party] = channel
                meanwhile()
                for party, channel in self._channels.items():
                    if finished.get(party) is not channel:
                        await finish(party)
                        finished[party] = channel
                return
            except PeerRestarted as restarted:
                self.watching.observer.event("restarted", peer=restarted.peer)

    async def _gather(self, meeting: Meeting) -> None:
        """Wait until all feature parties are there; hear how long the list of each new one is, and tell it all."""
        channels = await meeting.gather()
        self.watching.observer.gathered(channels)
        records = {**self.working.records, LABEL_PARTY: len(self.table)}
        for name, channel in channels.items():
            if self._heard.get(name) is not channel:
                said = await receive(channel, self.watching.observer, Announcement)
                if len(said.records) != 1 or not 0 < said.records[0] <= MOST_RECORDS:
                    raise BadMessage(f"{described(name)} announces {said.records} records")
                self.working.note_announced(name, said)
                records[name], self._heard[name] = said.records[0], channel
                self.watching.notice(f"{described(name)} has {said.records[0]:,} records to align")
                self.traffics.append(channel.traffic)
        self.working.note_records(records)
        for name, channel in channels.items():
            if self._channels.get(name) is not channel:
                await channel.send(Announcement(self.session, tuple(records[each] for each in self.terms.circle)))
                self._channels[name] = channel

    async def _tell(self, party: str) -> None:
        """Tell a feature party the common records: their number, and unless that is all, their positions in its list.

        In mode `label-only` they are the records that all feature parties have, whether the label party knows them or
        not.
        """
        channel, common = self._channels[party], self._common
        await channel.send(Announcement(bytes.fromhex(self._digest), (len(common.keys),)))
        if self.terms.config.mode == "size":
            return
        rows = np.empty((len(common.keys), POSITION_BYTES), np.uint8)
        positions = common.positions[:, self.terms.parties.index(party)].astype("<u4")
        rows[:, :4] = positions[:, None].view(np.uint8)
        rows[:, 4] = common.keys if self.terms.config.mode == "both" else 0
        for part, begin in enumerate(range(0, len(rows), self.terms.batch)):
            batch = torch.from_numpy(rows[begin : begin + self.terms.batch])
            await channel.send(TensorMessage(POSITIONS, self.terms.rounds, part, batch))

    async def _confirmed(self, party: str) -> None:
        await receive(self._channels[party], self.watching.observer, Bye)

    @cached_property
    def _common(self) -> Common:
        """The common records of the feature parties and, unless only the label party may know, of the label party."""
        lists = [self._final(party) for party in self.terms.parties]
        if self.terms.config.mode != "label-only":
            lists.append(self._final(LABEL_PARTY))
        return common_records(lists)

    @cached_property
    def _digest(self) -> str:
        """SHA-256 of the common records' points and of a secret of the label party.

        Without the secret a feature party could try whether its records are among the points that it was sent.
        """
        points, positions = self._final(self.terms.parties[0]), self._common.positions[:, 0]
        digest = hashlib.sha256(_DIGEST_DOMAIN + self.working.salt)
        for start in range(0, len(positions), self.terms.batch):
            digest.update(points[positions[start : start + self.terms.batch]].tobytes())
        return digest.hexdigest()

    def _final(self, owner: str) -> Bytes32:
        return self.points(self.working.list_of(owner, self.terms.rounds))
