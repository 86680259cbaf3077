"""What one side knows of its running job: steps, speed, peers. The live line, the logs and the metrics read it.

The step loop only assigns; everything else is computed when somebody looks.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tpsl.cli.console import time_left
from tpsl.progress import Pace
from tpsl.training.observer import Connection, Fact, Traffic

_WINDOW = 10.0  # seconds over which speeds are averaged
_NOTABLE_WAIT = 1.0  # seconds: every step waits a little for the other side


@dataclass
class Peer:
    """One peer as the transport last described it."""

    connected: bool = False
    left: bool = False
    """It has said goodbye: nobody waits for it."""
    connections: int = 0
    state: str = "not here yet"


@dataclass
class LiveState:
    """Grows with the job, not with what peers do: only the job's own peers are kept."""

    names: Sequence[str]
    epochs: int
    may_end_early: bool = False
    is_over: bool = False
    """Whether nothing more is to come, so that no time is left."""
    preparing: str | None = "preparing"
    progress: tuple[int, int, int] = (0, 0, 0)
    """Steps done, steps in all, records; one tuple, so that no reader sees half of an update."""
    computing_or_waiting: tuple[str | None, float] = (None, 0.0)
    """The peer the role waits for, and since when."""
    peers: dict[str, Peer] = field(init=False)
    _preparation: tuple[tuple[str, int], Pace] = (("", 0), Pace(0.0))
    """What is prepared and how much there is of it, and how fast that goes."""
    _traffics: list[Traffic] = field(default_factory=list)
    _pace: Pace = field(default_factory=lambda: Pace(_WINDOW))

    def __post_init__(self) -> None:
        self.peers = {name: Peer() for name in self.names}

    def prepare(self, done: int, total: int, note: str) -> None:
        """Note what is done before the first step, and how much of it."""
        if self._preparation[0] != (note, total):
            self._preparation = (note, total), Pace(60.0)
        pace = self._preparation[1]
        pace.add(done)
        count = f"{done:,}/{total:,}" if total else f"{done:,}" if done else ""
        self.preparing = " · ".join(filter(None, (f"{note} {count}".rstrip(), time_left(pace.seconds_left(total)))))

    def wait(self, peer: str | None) -> None:
        """Note that the role waits for a peer (None: computes) from now on."""
        if peer is not None:
            self.preparing = None
        self.computing_or_waiting = (peer, time.monotonic())

    def peer_is(self, name: str, event: str, state: str) -> bool:
        """Note what the transport says of a peer; return whether that is news."""
        peer = self.peers.get(name)
        if peer is None:
            return True
        if event == "connected":
            peer.connected, peer.left, peer.connections, peer.state = True, False, peer.connections + 1, state
            return True
        if event == "refused" and peer.connected:
            return True  # somebody else came in its name
        news = (peer.connected, peer.state) != (False, state)
        peer.connected, peer.left, peer.state = False, event == "left", state
        return news

    def gathered(self, channels: Mapping[str, Connection]) -> None:
        """Count these connections too; those of a peer that was restarted keep what went through them."""
        for channel in channels.values():
            if not any(channel.traffic is known for known in self._traffics):
                self._traffics.append(channel.traffic)
        # The next line to be shown has a speed already, in which no waiting for these peers counts.
        self._pace = Pace(_WINDOW)
        self.speed()

    @property
    def bytes_sent(self) -> int:
        """Bytes sent to all peers."""
        return sum(traffic.bytes_sent for traffic in self._traffics)

    @property
    def bytes_received(self) -> int:
        """Bytes received from all peers."""
        return sum(traffic.bytes_received for traffic in self._traffics)

    @property
    def epoch(self) -> int:
        """The epoch that the next step belongs to, from 1; at the end that of the last step."""
        done, total, _ = self.progress
        step = done - 1 if done and (self.is_over or done == total) else done
        return step * self.epochs // max(total, 1) + 1

    def waiting_for(self) -> dict[str, str]:
        """Return the peers this side waits for, each with the reason."""
        if self.preparing:
            return {}
        missing = {
            name: peer.state.removeprefix("waiting: ")
            for name, peer in self.peers.items()
            if not (peer.connected or peer.left)
        }
        peer, since = self.computing_or_waiting
        seconds = time.monotonic() - since
        if peer is not None and peer not in missing and seconds >= _NOTABLE_WAIT:
            return {**missing, peer: f"{seconds:,.0f} s"}
        return missing

    def speed(self) -> tuple[float, float]:
        """Return samples and megabytes a second, means over the last seconds; for one thread, every now and then."""
        steps, _, records = self.progress
        self._pace.add(steps, records, self.bytes_sent + self.bytes_received)
        _, samples, transferred = self._pace.per_second
        return samples, transferred / 1e6

    def facts(self) -> dict[str, Fact]:
        """Return all of it for machines."""
        done, total, records = self.progress
        samples, megabytes = self.speed()
        return {
            "step": done,
            "steps": total,
            "epoch": self.epoch,
            "records": records,
            "samples_per_second": round(samples, 1),
            "megabytes_per_second": round(megabytes, 3),
            "waiting_for": ", ".join(self.waiting_for()),
        }

    def line(self) -> str:
        """Return all of it in one line."""
        if self.preparing:
            return self.preparing
        done, total, _ = self.progress
        samples, megabytes = self.speed()
        parts = []
        if total:
            parts += [f"step {done:,}/{total:,}", f"epoch {self.epoch:,}"]
            parts += [f"{samples:,.0f} samples/s", f"{megabytes:,.1f} MB/s"]
        left = None if self.is_over else self._pace.seconds_left(total)
        if waiting := ", ".join(f"{peer} ({reason})" for peer, reason in self.waiting_for().items()):
            parts.append(f"waiting for {waiting}")
        elif left is not None:
            parts.append(time_left(left, at_most=self.may_end_early))
        return " · ".join(parts)
