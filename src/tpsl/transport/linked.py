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

from tpsl.transport.channel import Channel
from tpsl.transport.frames import Limits
from tpsl.transport.in_process import PairedChannel, coupled
from tpsl.transport.link import Link, Patience, Terms
from tpsl.transport.messages import Message, TensorMessage, WireType

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


class _LinkedChannel(PairedChannel):
    """One end of two coupled links."""

    def __init__(self, name: str, peer: str, link: Link, watch: FrameWatch) -> None:
        super().__init__(name, peer, link.terms.dtype)
        self._link, self._watch, self.traffic = link, watch, link.traffic
        self._connection = link.attach(0, piece_bytes=_ROOMY)
        self._frames = self._connection.outgoing()

    async def _hand_over(self, message: Message) -> None:
        await self._link.send(message)
        frame = next(self._frames)
        self._watch(self._described(message, frame))
        self.other._connection.incoming(frame)

    async def _take(self) -> Message:
        return await self._link.receive()

    def _described(self, message: Message, frame: bytes) -> SentFrame:
        kind, step, part = type(message).__name__, getattr(message, "step", -1), -1
        if isinstance(message, TensorMessage):
            kind, part = message.topic, message.part
        return SentFrame(self.name, self.peer, kind, step, part, len(frame), hashlib.sha256(frame).hexdigest())


def linked_pair(names: tuple[str, str], dtype: WireType, limits: Limits, watch: FrameWatch) -> tuple[Channel, Channel]:
    """Return the two ends of a channel whose messages are encoded, numbered and checked as on a network.

    The first end is for the first name. Every frame is told to `watch`, in order, before the other side sees it.
    """
    terms = Terms(replace(limits, window=_ROOMY), dtype, Patience(), lambda peer, sentence: None)
    ends = [_LinkedChannel(name, peer, Link(b"", peer, terms), watch) for name, peer in (names, names[::-1])]
    return coupled(*ends)
