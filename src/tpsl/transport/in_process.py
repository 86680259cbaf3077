"""All parties in one process and one thread, taking turns: same messages, same rounding, nothing is serialised."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Coroutine, Generator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tpsl.transport.channel import MESSAGE_OVERHEAD, WINDOW, Channel, Traffic
from tpsl.transport.frames import as_received, as_sent
from tpsl.transport.messages import Message, TensorMessage, WireDtype


@dataclass(slots=True)
class Pause:
    """What a role hands to `run_together` when it cannot go on: why, and how to tell that it can."""

    reason: str
    is_over: Callable[[], bool]

    def __await__(self) -> Generator[Pause, None, None]:
        yield self


class _Waiting(NamedTuple):
    """A message on its way, with the size its tensor has on the wire."""

    message: Message
    size: int

    @property
    def cost(self) -> int:
        return self.size + MESSAGE_OVERHEAD


class _Queue:
    """Messages on their way in one direction."""

    def __init__(self) -> None:
        self._messages: deque[_Waiting] = deque()
        self._cost = 0

    def __len__(self) -> int:
        return len(self._messages)

    def has_room_for(self, message: _Waiting) -> bool:
        return len(self._messages) < 2 or self._cost + message.cost <= WINDOW

    def put(self, message: _Waiting) -> None:
        self._messages.append(message)
        self._cost += message.cost

    def take(self) -> _Waiting:
        message = self._messages.popleft()
        self._cost -= message.cost
        return message


class _InProcessChannel:
    def __init__(self, name: str, peer: str, dtype: WireDtype, inbox: _Queue, outbox: _Queue) -> None:
        self._name = name
        self._peer = peer
        self._dtype: WireDtype = dtype
        self._inbox = inbox
        self._outbox = outbox
        self._traffic = Traffic()

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def traffic(self) -> Traffic:
        return self._traffic

    async def send(self, message: Message) -> None:
        waiting = self._as_delivered(message)
        while not self._outbox.has_room_for(waiting):
            await Pause(
                f"{self._name} waits for {self._peer} to take a message", lambda: self._outbox.has_room_for(waiting)
            )
        self._outbox.put(waiting)
        self._traffic.messages_sent += 1
        self._traffic.bytes_sent += waiting.size

    async def receive(self) -> Message:
        while not len(self._inbox):
            await Pause(f"{self._name} waits for a message from {self._peer}", lambda: len(self._inbox) > 0)
        waiting = self._inbox.take()
        self._traffic.messages_received += 1
        self._traffic.bytes_received += waiting.size
        return waiting.message

    def _as_delivered(self, message: Message) -> _Waiting:
        if not isinstance(message, TensorMessage):
            return _Waiting(message, 0)
        sent = as_sent(message.tensor, self._dtype)
        received = as_received(sent)
        if received is sent:
            # The sender keeps its tensor and may change it; nobody else may see that.
            received = sent.clone()
        return _Waiting(replace(message, tensor=received), sent.nbytes)


def pair(names: tuple[str, str], dtype: WireDtype) -> tuple[Channel, Channel]:
    """Return the two ends of a channel, the first for the first name; tensors are rounded as on a wire of this type."""
    first, second = names
    forth, back = _Queue(), _Queue()
    return (
        _InProcessChannel(first, second, dtype, inbox=back, outbox=forth),
        _InProcessChannel(second, first, dtype, inbox=forth, outbox=back),
    )


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
