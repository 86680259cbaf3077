"""How sentences name the other party, and which worker of it a process is."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from functools import partial
from math import gcd

LABEL_PARTY = "label"

MOST_WORKERS = 256
"""The most workers that a party may have."""
_CREW_BYTES = 16


@dataclass(frozen=True)
class WorkerPlace:
    """Which worker of its party a process is, as it tells the other side."""

    number: int = 0
    count: int = 1
    crew: bytes = field(default_factory=partial(secrets.token_bytes, _CREW_BYTES))
    """A random name that all workers of a party have in common that were started together: who comes with another one
    was started again."""

    def __str__(self) -> str:
        return f"worker {self.number} of {self.count}"

    def meets(self, number: int, count: int) -> bool:
        """Whether this worker and one of another party have parts of a batch in common.

        Part p is with worker p mod n of a party of n, so they do if both numbers leave the same remainder by the
        greatest common divisor of both counts.
        """
        return (self.number - number) % gcd(self.count, count) == 0


ONLY_WORKER = WorkerPlace()
"""That of a party with one worker, where nobody asks when it was started."""


def described(peer: str, worker: WorkerPlace = ONLY_WORKER) -> str:
    """Return a party's name as sentences use it and, of several workers, which one is meant."""
    party = "the label party" if peer == LABEL_PARTY else f"feature party {peer!r}"
    return f"{worker} of {party}" if worker.count > 1 else party
