"""Which configuration of a search a run is, where parties go through them one after the other."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from tpsl.training.job import Job

SPACE = "space of the search"
CONFIGURATION = "configuration of the search"
"""In this the parties of a search differ for a while: who is ahead waits for the other."""


@dataclass(frozen=True)
class SearchStep:
    """One configuration of a search. Its run keeps its epochs, and is evaluated with true labels when all are trained.

    Before that a peer waits for the next configuration, and could measure how long the evaluation takes.
    """

    number: int
    """Its position in the space, from 1."""
    jobs: tuple[Job, ...]
    """All configurations in their order."""

    @classmethod
    def all(cls, jobs: Sequence[Job]) -> list[SearchStep]:
        """Return the steps of a search in their order."""
        return [cls(number, tuple(jobs)) for number in range(1, len(jobs) + 1)]

    def agreed(self) -> dict[str, str]:
        """Return what the parties compare: that they search the same space, and are at the same configuration."""
        space = hashlib.sha256("\n".join(job.digest() for job in self.jobs).encode()).hexdigest()
        return {SPACE: space, CONFIGURATION: f"{self.number} of {len(self.jobs)}"}
