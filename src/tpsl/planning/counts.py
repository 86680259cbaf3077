"""How many records, steps, evaluations and checkpoints a job of n records has: what `Schedule` says, by arithmetic.

A schedule holds arrays of all records; a plan may be for more than fit into memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tpsl.training.job import Job


@dataclass(frozen=True)
class Counts:
    """What a job does with its records."""

    rows: int
    train: int
    test: int
    held_out: int
    """Training records whose noisy labels judge."""
    statistic: int
    """Training records whose labels leave in the noisy statistic."""
    batches: int
    """Steps of an epoch."""
    epochs: int
    """Epochs of the network; 0 where none is trained. With `patience`: the most."""
    checkpoints: int

    @classmethod
    def of(cls, job: Job, rows: int) -> Counts:
        """Return what a job does with this number of records."""
        settings = job.training
        test = round(rows * job.data.test_fraction)
        train = rows - test
        if not 0 < test < rows:
            raise ValueError(f"data.test_fraction {job.data.test_fraction} of {rows} records leaves none of a kind")
        held_out = min(train - 1, round(train * settings.validation))
        statistic = 0 if job.statistic is None else train - held_out
        epochs = settings.epochs if job.trains else 0
        batches = -(-(train - held_out - statistic) // settings.batch_size)
        return cls(
            rows,
            train,
            test,
            held_out,
            statistic,
            batches,
            epochs,
            _checkpoints(batches, epochs, settings.checkpoint_every),
        )

    @property
    def trained(self) -> int:
        """Records that the network learns from."""
        return self.train - self.held_out - self.statistic

    @property
    def steps(self) -> int:
        """Steps of all epochs."""
        return self.epochs * self.batches

    @property
    def evaluated(self) -> int:
        """Records that are predicted after each epoch."""
        return self.held_out + self.test


def _checkpoints(batches: int, epochs: int, every: int) -> int:
    """Return how many there are: one at the end of each epoch, one after every so many steps, none twice."""
    steps = epochs * batches
    return epochs + steps // every - (steps // math.lcm(batches, every) if batches else 0)
