"""What the line between the parties adds to the time of a job."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

ROUND_TRIPS_OF_A_RUN = 10
"""Of TLS, the handshake, the agreement on a step and the farewell."""
_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True)
class Network:
    """What a connection to the label party carries, all feature parties together."""

    bandwidth: float = math.inf
    """Bytes in a second, in each direction."""
    round_trip: float = 0.0
    """Seconds."""

    def step_seconds(self, computing: float, up: float, down: float, staleness: int, parts: int) -> float:
        """Return the seconds of a step that sends `up` bytes and then receives `down` bytes, in this many parts.

        Without staleness a step waits for its round trip. Parts of a batch overlap: while one is on its way back, the
        next one is on its way there. With staleness s, s + 1 steps are under way at the same time, until either the
        processors or one direction of the line have no pause left.
        """
        longer, shorter = max(up, down) / self.bandwidth, min(up, down) / self.bandwidth
        alone = computing + self.round_trip + longer + shorter / parts
        return max(alone / (staleness + 1), computing, longer)


def bandwidth_of(text: str) -> float:
    """Return bytes a second of a text as 1Gb/s (bits) or 125MB/s (bytes)."""
    number, (prefix, unit) = _quantity(text, r"([kMGT]?)(b|bit|B)/s", "a bandwidth, as 1Gb/s or 125MB/s")
    return number * _PREFIXES[prefix] / (1 if unit == "B" else 8)


def seconds_of(text: str) -> float:
    """Return the seconds of a text as 20ms or 0.02s."""
    number, (unit,) = _quantity(text, r"(us|µs|ms|s)", "a time, as 20ms or 0.02s")
    return number * _SECONDS[unit]


def _quantity(text: str, unit: str, wanted: str) -> tuple[float, tuple[str, ...]]:
    """Return the positive number that a text begins with, and the parts of the unit behind it."""
    found = re.fullmatch(rf"\s*(\d+\.?\d*|\.\d+)\s*{unit}\s*", text)
    if found is None or not float(found[1]) > 0:
        raise ValueError(f"{text!r} is not {wanted}")
    return float(found[1]), found.groups()[1:]
