"""All parties in one process and one thread, taking turns: same messages, same rounding, nothing is serialised."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Coroutine, Generator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

from tpsl.transport.channel import MESSAGE_OVERHEAD, WINDOW, Channel, Traffic
from tpsl.transport.frames import tensor_bytes
from tpsl.transport.messages import Message, TensorMessage, WireType
from tpsl.transport.rounding import rounded


@dataclass(slots=True)
class Pause:
    """What a role hands to `run_together` when it cannot go on: why, and how to tell that it can."""

    reason: str
    is_over: Callable[[], bool]

    def __await__(self) -> Generator[Pause, None, None]:
        yield self


class PairedChannel:
    """One end of a channel within this process. A role that cannot go on pauses, and others take their turn."""

    other: Self
    """The other end, set by `coupled`."""
    failure = None

    def __init__(self, name: str, peer: str, dtype: WireType, counted: int | None = None) -> None:
        self.name, self.peer, self.traffic = name, peer, Traffic()
        self._counted = counted
        """What every message counts as, in bytes, if not as what it takes."""
        self._dtype: WireType = dtype
        self._inbox: deque[Message] = deque()

    async def send(self, message: Message) -> None:
        """Hand over a message; pauses while too much is under way."""
        size = tensor_bytes(message, self._dtype)
        while not self._has_room(size):
            await Pause(f"{self.name} waits for {self.peer} to take a message", lambda: self._has_room(size))
        await self._hand_over(message)

    async def receive(self) -> Message:
        """Return the next message."""
        while not self._waiting():
            await Pause(f"{self.name} waits for a message from {self.peer}", lambda: self._waiting() > 0)
        return await self._take()

    def _waiting(self) -> int:
        """Messages that the peer has sent and this side has not taken."""
        return self.other.traffic.messages_sent - self.traffic.messages_received

    def _has_room(self, size: int) -> bool:
        waiting = self.other._waiting()
        under_way = self.traffic.bytes_sent - self.other.traffic.bytes_received + size
        if self._counted is not None:
            under_way = (waiting + 1) * self._counted
        return waiting < 2 or under_way + (waiting + 1) * MESSAGE_OVERHEAD <= WINDOW

    async def _hand_over(self, message: Message) -> None:
        if isinstance(message, TensorMessage):
            # The sender keeps its tensor and may change it; nobody else may see that.
            message = replace(message, tensor=rounded(message.tensor, self._dtype))
        self.other._inbox.append(message)
        self.traffic.messages_sent += 1
        self.traffic.bytes_sent += tensor_bytes(message, self._dtype)

    async def _take(self) -> Message:
        message = self._inbox.popleft()
        self.traffic.messages_received += 1
        self.traffic.bytes_received += tensor_bytes(message, self._dtype)
        return message


Paired = TypeVar("Paired", bound=PairedChannel)


def coupled(one: Paired, other: Paired) -> tuple[Paired, Paired]:
    """Return both as the two ends of one channel."""
    one.other, other.other = other, one
    return one, other


def pair(names: tuple[str, str], dtype: WireType, counted: int | None = None) -> tuple[Channel, Channel]:
    """Return the two ends of a channel, the first for the first name; tensors are rounded as on a wire of this type.

    With `counted` every message counts as this many bytes, whatever it takes.
    """
    return coupled(PairedChannel(*names, dtype, counted), PairedChannel(*names[::-1], dtype, counted))


class InProcessMeeting:
    """The peers of one party, all there from the beginning; none of them is ever restarted."""

    def __init__(self, channels: Mapping[str, Channel]) -> None:
        self._channels = channels

    async def gather(self, without: Collection[str] = ()) -> dict[str, Channel]:
        """Return the channels of the peers that are not in `without`, in the given order."""
        return {name: channel for name, channel in self._channels.items() if name not in without}


def run_together(*roles: Coroutine[Any, Any, Any]) -> list[Any]:
    """Run roles in turns until all are done and return their results; always in the same order, so repeatable.

    An exception of one ends them all and is raised. If none can go on the error says who waits for whom.
    """
    results: list[Any] = [None] * len(roles)
    pauses: dict[int, Pause | None] = dict.fromkeys(range(len(roles)))
    with ExitStack() as closing:
        for role in roles:
            closing.callback(role.close)
        while pauses:
            able = [index for index, pause in pauses.items() if pause is None or pause.is_over()]
            if not able:
                reasons = "; ".join(pause.reason for pause in pauses.values() if pause is not None)
                raise RuntimeError(f"no party can go on: {reasons}")
            for index in able:
                try:
                    pauses[index] = roles[index].send(None)
                except StopIteration as done:
                    results[index] = done.value
                    del pauses[index]
    return results
