"""A channel that outlives its connections: every message arrives once and in order, however often the network breaks.

Messages are numbered in each direction. A sender keeps the encoded bytes of a message until the peer has acknowledged
it; when a new connection is attached both sides say what they have received, and the sender goes on with the very next
message, the same bytes as before. A link knows nothing of gRPC: connections are attached to it and lost again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import torch

from tpsl.transport import wire_pb2
from tpsl.transport.channel import MESSAGE_OVERHEAD, JobStopped, PeerMissing, Traffic
from tpsl.transport.checks import BadMessage
from tpsl.transport.device_copies import CPU
from tpsl.transport.frames import (
    PIECE_BYTES,
    Decoded,
    Frame,
    FrameReader,
    Limits,
    encode_control,
    frame_of,
    largest_frame,
    tensor_bytes,
)
from tpsl.transport.messages import Bye, Message, Stop, TensorMessage, WireType
from tpsl.transport.peers import ONLY_WORKER, WorkerPlace, described

Watch = Callable[[str, str], None]
"""Told about a peer, from any thread: a sentence that begins with connected, lost, left, waiting or refused.

Locks are held while it runs, so that the last sentence is true: it returns at once and calls nothing of the transport.
"""

_SHORTEST_SILENCE = 0.5
_HEARTBEATS_PER_SILENCE = 5
# Often enough for a peer that is less patient than this side.
_LONGEST_BETWEEN_HEARTBEATS = 1.0
# A stream in one direction is acknowledged this often, well before its sender has to wait.
_ACKNOWLEDGE_SECONDS = 0.1
_ACKNOWLEDGE_PARTS = 8
# Heartbeats that bring nothing new: far more than an honest peer sends, also when they arrive all at once.
_IDLE_HEARTBEATS = 1000
_IDLE_HEARTBEATS_PER_SECOND = 20


@dataclass(frozen=True)
class Patience:
    """How long to bear with a peer, in seconds. A piece must get through the network within `silence`."""

    silence: float = 15.0  # a peer not heard for so long is gone
    wait: float = 3600.0  # how long to wait for a peer to come, or to come back

    def __post_init__(self) -> None:
        if not self.silence >= _SHORTEST_SILENCE:
            raise ValueError(f"silence: {self.silence} s is too short, the least is {_SHORTEST_SILENCE} s")
        if not self.wait >= 0:
            raise ValueError(f"wait: {self.wait} is not a number of seconds")


@dataclass(frozen=True)
class Terms:
    """What every channel of one party has in common."""

    limits: Limits
    """The tensors that are accepted."""
    dtype: WireType
    """How numbers cross."""
    patience: Patience
    watch: Watch
    device: torch.device = CPU
    """Where received tensors are put."""
    worker: WorkerPlace = field(default_factory=WorkerPlace)
    """Which worker of its party this process is."""
    most_workers: int = 1
    """The most workers that the other side may have."""


class _Sent(NamedTuple):
    sequence: int
    acknowledged: int
    cost: int
    frame: Frame


class Link:
    """The channel to one peer. Sending and receiving block; they are for one thread, the role's.

    What has arrived at the links to all workers of a peer and waits is not more than one window, but that each link may
    hold one message in any case: the role may be waiting for just that one.
    """

    def __init__(
        self,
        identity: bytes,
        peer: str,
        terms: Terms,
        worker: WorkerPlace = ONLY_WORKER,
        beside: Mapping[int, Link] = MappingProxyType({}),
    ) -> None:
        """Make a link; `beside` are those to the workers of the same peer, now and later."""
        self.identity, self.peer, self.terms = identity, peer, terms
        self.worker = worker
        """Which worker of its party the peer is."""
        self.described = described(peer, worker)
        """How sentences name it."""
        self._beside = beside
        # Two of the largest messages fit in any case: one is under way while the next is made.
        largest = largest_frame(terms.limits, terms.dtype)
        self._window = max(terms.limits.window, 2 * (largest + MESSAGE_OVERHEAD))
        self.traffic = Traffic()
        """What went through so far, each message once: tensor bytes as they cross the wire."""
        self.failure: Exception | None = None
        """What ended this link for good, if anything did."""
        self.received = 0
        """Number of the last message that has arrived."""

        self._lock = threading.Lock()
        self._inbox_changed = threading.Condition(self._lock)  # the role waits to receive, the reader for room
        self._outbox_grew = threading.Condition(self._lock)  # the writer waits
        self._outbox_shrank = threading.Condition(self._lock)  # the role waits
        self._inbox: deque[tuple[Message, int]] = deque()  # with what each costs
        self._inbox_cost = 0
        self._outbox: deque[_Sent] = deque()  # what the peer has not acknowledged, sent or not
        self._outbox_cost = 0
        self._sent = 0
        self._connection: Connection | None = None
        self._was_connected = False
        self._said_goodbye = False
        self._finishing = False
        self._lost_at = time.monotonic()
        self._lost_because = "not connected yet"

    async def send(self, message: Message) -> None:
        """Hand over a message; waits while the window is full. What is sent is what the message holds now."""
        while not self._enqueued(message):
            pass
        self.traffic.messages_sent += 1
        self.traffic.bytes_sent += tensor_bytes(message, self.terms.dtype)

    def _enqueued(self, message: Message) -> bool:
        # Encoding copies a tensor, so it happens without the lock. False: another thread has sent something.
        entry = self._encoded(message)
        with self._lock:
            while self._outbox and self._outbox_cost + entry.cost > self._window:
                self._wait(self._outbox_shrank)
            if self.failure is not None:
                raise self.failure
            if entry.sequence != self._sent + 1:
                return False
            self._append(entry)
        return True

    async def receive(self) -> Message:
        """Return the next message; what arrived before the link failed is still delivered."""
        with self._lock:
            while not self._inbox:
                self._wait(self._inbox_changed)
            message, cost = self._inbox.popleft()
            self._inbox_cost -= cost
            self._inbox_changed.notify_all()
        self.traffic.messages_received += 1
        self.traffic.bytes_received += tensor_bytes(message, self.terms.dtype)
        return message

    def has_news(self) -> bool:
        """Whether `receive` would return, or raise, at once."""
        with self._lock:
            is_late = self._connection is None and time.monotonic() >= self._lost_at + self.terms.patience.wait
            return bool(self._inbox) or self.failure is not None or is_late

    def attach(self, peer_received: int, piece_bytes: int = PIECE_BYTES) -> Connection:
        """Ride on a new connection from now on; one that is still attached is lost.

        `peer_received` is the number of the last message that the peer has received. Afterwards `received` stands
        still until the new connection's reader begins. Frames cross in pieces of so many bytes.
        """
        self.detach("a new connection has replaced it")
        with self._lock:
            if self.failure is not None:
                raise self.failure
            acknowledged = self._first_unacknowledged() - 1
            if not acknowledged <= peer_received <= self._sent:
                raise BadMessage(
                    f"{self.described} wants to go on after message {peer_received}; "
                    f"{self._sent} were sent and {acknowledged} acknowledged"
                )
            self._acknowledge(peer_received)
            self._connection = Connection(self, piece_bytes)
            self.terms.watch(self.peer, "connected again" if self._was_connected else "connected")
            self._was_connected = True
            return self._connection

    def detach(self, why: str) -> None:
        """Lose the connection, if there is one; the peer may come back on another."""
        with self._lock:
            connection = self._connection
        if connection is not None:
            connection.lose(why)

    def fail(self, error: Exception) -> None:
        """End this link for good: sending and receiving raise the error.

        The connection stays, deaf, until `stop` has told the peer the reason.
        """
        with self._lock:
            self.failure = self.failure or error
            self._inbox_changed.notify_all()
            self._outbox_shrank.notify_all()

    def fail_beside(self, error: Exception) -> None:
        """End the links to the other workers of the peer: the role may be waiting at one of them. No lock is held."""
        for other in tuple(self._beside.values()):
            if other is not self:
                other.fail(error)

    def stop(self, reason: str | None, grace: float) -> None:
        """Tell the peer why the job stops, if a reason is given, and wait until everything sent has arrived.

        Waits `grace` seconds at the most, then drops the connection. The link is not used afterwards.
        """
        until = time.monotonic() + grace
        with self._lock:
            if reason is not None:
                self._append(self._encoded(Stop(reason)))
            while self._outbox and self.failure is None and (left := until - time.monotonic()) > 0:
                self._outbox_shrank.wait(left)
            # The writer sends the last acknowledgement, which the peer may be waiting for, and ends the connection.
            self._finishing = True
            self._outbox_grew.notify_all()
            while self._connection is not None and (left := until - time.monotonic()) > 0:
                self._outbox_shrank.wait(left)
        self.detach("this side has ended the job")

    def _wait(self, condition: threading.Condition) -> None:
        """Wait for a change; without a connection only as long as patience lasts."""
        if self.failure is not None:
            raise self.failure
        if self._connection is not None:
            condition.wait()
            return
        left = self._lost_at + self.terms.patience.wait - time.monotonic()
        if left <= 0:
            self.failure = PeerMissing(
                f"{self.described} was lost ({self._lost_because}) "
                f"and did not come back within {self.terms.patience.wait:g} s"
            )
            raise self.failure
        condition.wait(left)

    def _encoded(self, message: Message) -> _Sent:
        sequence, acknowledged = self._sent + 1, self.received
        cost = tensor_bytes(message, self.terms.dtype) + MESSAGE_OVERHEAD
        frame = frame_of(message, sequence, acknowledged, self.terms.dtype)
        return _Sent(sequence, acknowledged, cost, frame)

    def _append(self, entry: _Sent) -> None:
        self._sent = entry.sequence
        self._outbox.append(entry)
        self._outbox_cost += entry.cost
        self._outbox_grew.notify_all()

    def _waiting_cost(self) -> int:
        """Return what all messages of the peer cost that have arrived and wait."""
        others = [link for link in tuple(self._beside.values()) if link is not self]
        return self._inbox_cost + sum(link._inbox_cost for link in others)

    def _first_unacknowledged(self) -> int:
        return self._outbox[0].sequence if self._outbox else self._sent + 1

    def _acknowledge(self, sequence: int) -> bool:
        """Forget what has arrived; False if that is no news."""
        if sequence < self._first_unacknowledged():
            return False
        while self._outbox and self._outbox[0].sequence <= sequence:
            self._outbox_cost -= self._outbox.popleft().cost
        self._outbox_shrank.notify_all()
        return True


class Connection:
    """One connection that a link rides on, made by `Link.attach`: a writer and a reader drive it, a thread each."""

    def __init__(self, link: Link, piece_bytes: int) -> None:
        self._link, self._piece_bytes = link, piece_bytes
        self._rest: Iterator[Callable[[], bytes]] = iter(())  # of the frame whose first pieces are written
        terms = link.terms
        self._reader = FrameReader(terms.limits, terms.dtype, link.described, terms.device, piece_bytes)
        self._next_to_write = link._first_unacknowledged()
        self._acknowledged = link.received  # the handshake tells the peer
        self._unacknowledged_bytes = 0
        self._acknowledge_at: float | None = None
        self._heard_at = self._wrote_at = self._attached_at = time.monotonic()
        self._held = False
        self._idle_heartbeats = 0
        self.lost_at: float | None = None
        self.lost_because = ""

    def outgoing(self) -> Iterator[bytes]:
        """Yield what to write as it comes, heartbeats between it, until the connection is lost."""
        while (piece := self._next_piece()) is not None:
            yield piece()

    def incoming(self, data: bytes) -> bool:
        """Take a piece that was read; waits while the inbox is full.

        False: the connection is lost. A piece that no honest peer sends fails the links to all workers of the peer;
        what comes after it is not looked at.
        """
        link = self._link
        if self.lost_at is not None or link.failure is not None:
            return self.lost_at is None
        try:
            frame = self._reader.take(data)
            with link._lock:
                if not self._attached():
                    return False
                self._heard_at = time.monotonic()
                if frame is not None and not self._taken(frame):
                    return False
        except BadMessage as error:
            link.fail(error)
            link.fail_beside(error)
            return True
        if frame is not None and isinstance(frame.message, Stop):
            link.fail_beside(JobStopped(f"{link.described} stopped the job: {frame.message.reason}"))
        return True

    def lose(self, why: str) -> None:
        """Detach from the link: nothing more is written or taken. Ending the stream itself is up to its owner."""
        link = self._link
        with link._lock:
            if not self._attached():
                return
            link._connection = None
            self.lost_because = link._lost_because = why
            self.lost_at = link._lost_at = time.monotonic()
            for condition in (link._inbox_changed, link._outbox_grew, link._outbox_shrank):
                condition.notify_all()
            if link.failure is None and not link._finishing:
                lost = f"lost: {why}; waiting up to {link.terms.patience.wait:g} s for its return"
                link.terms.watch(link.peer, "left: it has said goodbye" if link._said_goodbye else lost)

    def end(self) -> None:
        """The stream has ended by itself."""
        self.lose("the connection ended")

    def silent_since(self) -> float | None:
        """Return when the peer was last heard; None while nobody listens, because the inbox is full."""
        return None if self._held else self._heard_at

    # What follows is called with the link's lock held.

    def _attached(self) -> bool:
        return self._link._connection is self

    def _next_piece(self) -> Callable[[], bytes] | None:
        link = self._link
        with link._lock:
            while self._attached():
                if (piece := next(self._rest, None)) is not None:
                    return self._written(piece)
                position = self._next_to_write - link._first_unacknowledged()
                if position < len(link._outbox):
                    entry = link._outbox[position]
                    self._next_to_write += 1
                    return self._begun(entry.frame, entry.acknowledged)
                left = self._heartbeat_due() - time.monotonic()
                if left <= 0 or (link._finishing and self._acknowledged < link.received):
                    return self._begun(_heartbeat(link.received), link.received)
                if link._finishing:
                    break
                link._outbox_grew.wait(left)
        self.lose("this side has ended the job")
        return None

    def _begun(self, frame: Frame, acknowledged: int) -> Callable[[], bytes]:
        """Return the first piece of a frame; its other pieces come before anything else."""
        self._acknowledged = max(self._acknowledged, acknowledged)
        if self._acknowledged == self._link.received:
            self._unacknowledged_bytes, self._acknowledge_at = 0, None
        size = self._piece_bytes
        self._rest = (partial(frame.cut, start, start + size) for start in range(size, frame.size, size))
        return self._written(partial(frame.cut, 0, size))

    def _written(self, piece: Callable[[], bytes]) -> Callable[[], bytes]:
        self._wrote_at = time.monotonic()
        return piece

    def _heartbeat_due(self) -> float:
        silence = self._link.terms.patience.silence
        due = self._wrote_at + min(silence / _HEARTBEATS_PER_SILENCE, _LONGEST_BETWEEN_HEARTBEATS)
        return due if self._acknowledge_at is None else min(due, self._acknowledge_at)

    def _check_heartbeat(self, kind: str | None, news: bool) -> None:
        sender = self._link.described
        if kind != "heartbeat":
            raise BadMessage(f"{sender} sent a {kind} after the handshake")
        self._idle_heartbeats += not news
        seconds = self._heard_at - self._attached_at
        if self._idle_heartbeats > _IDLE_HEARTBEATS + _IDLE_HEARTBEATS_PER_SECOND * seconds:
            raise BadMessage(f"{sender} sends heartbeats without end")

    def _taken(self, frame: Decoded) -> bool:
        """Take what a whole frame says; False: the connection was lost meanwhile."""
        link = self._link
        if frame.acknowledged >= self._next_to_write:
            raise BadMessage(f"{link.described} acknowledges message {frame.acknowledged}, which it was not sent")
        news = link._acknowledge(frame.acknowledged)
        if frame.message is None:
            self._check_heartbeat(frame.header.WhichOneof("body"), news)
            return True
        return self._put_into_inbox(frame.message, frame.sequence)

    def _put_into_inbox(self, message: Message, sequence: int) -> bool:
        """Put a message into the inbox once there is room; one that is not taken counts as never received."""
        link = self._link
        if sequence != link.received + 1:
            raise BadMessage(f"{link.described} sent message {sequence} where {link.received + 1} was due")
        # In the inbox numbers are float32, whatever they were on the wire.
        cost = (message.tensor.nbytes if isinstance(message, TensorMessage) else 0) + MESSAGE_OVERHEAD
        self._held = True
        while self._attached() and link._inbox and link._waiting_cost() + cost > link._window:
            link._inbox_changed.wait()
        self._heard_at = time.monotonic()
        self._held = False
        if not self._attached():
            return False
        link.received = sequence
        link._said_goodbye = isinstance(message, Bye)
        link._inbox.append((message, cost))
        link._inbox_cost += cost
        link._inbox_changed.notify_all()
        self._owe_acknowledgement(tensor_bytes(message, link.terms.dtype) + MESSAGE_OVERHEAD)
        return True

    def _owe_acknowledgement(self, size: int) -> None:
        self._unacknowledged_bytes += size
        if self._unacknowledged_bytes * _ACKNOWLEDGE_PARTS > self._link._window:
            self._acknowledge_at = self._heard_at
        elif self._acknowledge_at is None:
            self._acknowledge_at = self._heard_at + _ACKNOWLEDGE_SECONDS
        else:
            return
        self._link._outbox_grew.notify_all()


def _heartbeat(acknowledged: int) -> Frame:
    return Frame(encode_control(wire_pb2.Header(acknowledged=acknowledged, heartbeat=wire_pb2.Heartbeat())))
