"""What the connections of one party have in common: what is accepted, how numbers cross, how patient the party is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from tpsl.net.codec import CPU
from tpsl.net.messages import Limits, WireType

Watch = Callable[[str, str], None]
"""Told about a peer, from any thread: a sentence that begins with connected, lost, left, waiting or refused.

Locks are held while it runs: it returns at once and calls nothing of this room.
"""

_SHORTEST_SILENCE = 0.5


@dataclass(frozen=True)
class Patience:
    """How long to bear with a peer, in seconds. A message must get through the network within `silence`."""

    silence: float = 15.0  # a peer not heard for so long is lost
    wait: float = 3600.0  # how long to wait for a peer to come, or to come back

    def __post_init__(self) -> None:
        if not self.silence >= _SHORTEST_SILENCE:
            raise ValueError(f"silence: {self.silence} s is too short, the least is {_SHORTEST_SILENCE} s")
        if not self.wait >= 0:
            raise ValueError(f"wait: {self.wait} is not a number of seconds")


@dataclass(frozen=True)
class Terms:
    """What both ends of one party's connections have in common."""

    limits: Limits
    """The messages that are accepted."""
    dtype: WireType
    """How numbers cross."""
    patience: Patience = Patience()
    watch: Watch = lambda peer, sentence: None
    device: torch.device = CPU
    """Where received tensors are put."""
