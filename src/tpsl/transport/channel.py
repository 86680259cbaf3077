"""What the parties talk through: an ordered, reliable channel to one peer, in process or over a network.

Sending and receiving are `async` so that all parties can take turns in one thread (`tpsl.transport.in_process`); over a
network a channel simply blocks, and `run_alone` drives the one role of the process.
"""

from __future__ import annotations

from collections.abc import Collection, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from tpsl.net.failures import JobStopped, PeerMissing, PeerRestarted, Refused  # noqa: F401
from tpsl.transport.messages import Message

T = TypeVar("T")

WINDOW = 64 << 20
"""Bytes that may be under way in one direction, two messages in any case, before a sender has to wait."""

MESSAGE_OVERHEAD = 1024
"""What a message counts beside its tensor: many tiny ones must not fill the memory either."""


@dataclass
class Traffic:
    """What went through a channel so far."""

    messages_sent: int = 0
    messages_received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0


class Channel(Protocol):
    """Messages to and from one peer: each arrives once, whole and in order, or the channel raises."""

    @property
    def peer(self) -> str:
        """Name of the party at the other end."""

    @property
    def traffic(self) -> Traffic:
        """What went through so far."""

    @property
    def failure(self) -> Exception | None:
        """What has ended this channel for good, if anything has."""

    async def send(self, message: Message) -> None:
        """Hand over a message; waits while too much is under way."""

    async def receive(self) -> Message:
        """Return the next message."""


class Meeting(Protocol):
    """Where a party finds its peers, the first time and again after one of them was restarted."""

    async def gather(self, without: Collection[str] = ()) -> dict[str, Channel]:
        """Wait until every peer but those in `without` is there; return their channels by name, in the job's order."""


def run_alone(role: Coroutine[Any, Any, T]) -> T:
    """Run a role whose channels block; it never pauses."""
    try:
        role.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    role.close()
    raise RuntimeError("a role that runs alone paused: its channels are not those of a network")
