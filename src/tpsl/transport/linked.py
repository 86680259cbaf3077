"""All parties in one process, as over a network: messages go through `frames` and `link`, and their bytes are told.

Two links are coupled without gRPC and without threads: what one has to write the other reads at once. So the bytes of
each frame, acknowledgements included, are a function of what the roles send, and two runs can be compared frame by
frame.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from tpsl.transport.channel import MESSAGE_OVERHEAD, WINDOW, Channel, Traffic
from tpsl.transport.frames import Limits
from tpsl.transport.in_process import Pause
from tpsl.transport.link import Link, Patience
from tpsl.transport.messages import Message, TensorMessage, WireDtype

_ROOMY = 1 << 62


class SentFrame(NamedTuple):
    """A frame that crossed the border: who sent it to whom, what it was, and the digest of its bytes."""

    sender: str
    receiver: str
    kind: str
    step: int
    part: int
    size: int
    digest: str

    def __str__(self) -> str:
        """The message in words, as in `label → feature: gradients of step 3, part 0`."""
        where = f" of step {self.step}" if self.step >= 0 else ""
        part = f", part {self.part}" if self.part >= 0 else ""
        return f"{self.sender} → {self.receiver}: {self.kind}{where}{part}"


FrameWatch = Callable[[SentFrame], None]
"""Told of every frame, in the order in which they cross."""


class _LinkedChannel:
    """One end of two coupled links. A role that cannot go on pauses, and others take their turn."""

    def __init__(self, name: str, peer: str, link: Link, watch: FrameWatch) -> None:
        self._name, self._peer, self._link, self._watch = name, peer, link, watch
        self._connection = link.attach(0)
        self._frames = self._connection.outgoing()
        self._other: _LinkedChannel

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def traffic(self) -> Traffic:
        return self._link.traffic

    async def send(self, message: Message) -> None:
        while not self._has_room():
            await Pause(f"{self._name} waits for {self._peer} to take a message", self._has_room)
        await self._link.send(message)
        frame = next(self._frames)
        self._watch(self._described(message, frame))
        self._other._connection.incoming(frame)

    async def receive(self) -> Message:
        while not self._waiting() and self._link.failure is None:
            await Pause(f"{self._name} waits for a message from {self._peer}", lambda: self._waiting() > 0)
        return await self._link.receive()

    def _waiting(self) -> int:
        """Messages that the peer has sent and this side has not taken."""
        return self._other.traffic.messages_sent - self.traffic.messages_received

    def _has_room(self) -> bool:
        waiting = self._other._waiting()
        under_way = self.traffic.bytes_sent - self._other.traffic.bytes_received
        return waiting < 2 or under_way + waiting * MESSAGE_OVERHEAD <= WINDOW

    def _described(self, message: Message, frame: bytes) -> SentFrame:
        kind, step, part = type(message).__name__, getattr(message, "step", -1), -1
        if isinstance(message, TensorMessage):
            kind, part = message.topic, message.part
        return SentFrame(self._name, self._peer, kind, step, part, len(frame), hashlib.sha256(frame).hexdigest())


def linked_pair(names: tuple[str, str], dtype: WireDtype, limits: Limits, watch: FrameWatch) -> tuple[Channel, Channel]:
    """Return the two ends of a channel whose messages are encoded, numbered and checked as on a network.

    The first end is for the first name. Every frame is told to `watch`, in order, before the other side sees it.
    """
    ends, roomy = [], replace(limits, window=_ROOMY)
    for name, peer in (names, names[::-1]):
        link = Link(b"", peer, roomy, dtype, Patience(), lambda peer, sentence: None)
        ends.append(_LinkedChannel(name, peer, link, watch))
    ends[0]._other, ends[1]._other = ends[1], ends[0]
    return ends[0], ends[1]
