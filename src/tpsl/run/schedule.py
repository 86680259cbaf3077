"""The schedule of a job: which records make up each part of each step, and where checkpoints and evaluations fall.

Every party computes it from the job and the number of records, so no message has to carry a row number.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from tpsl.data.order import VALIDATION_STREAM, BatchPlan, Rows, permutation
from tpsl.data.out_of_core import ascending, counting, joined, others, taken
from tpsl.run.job import Job

TEST_ROWS_AT_ONCE = 16_384


@lru_cache(maxsize=2)  # all roles in one process, and all runs of a search
def held_out(records: int, share: float, seed: int) -> Rows:
    """Return the positions of the training records of the hold-out set, ascending: chosen by the seed."""
    count = min(records - 1, round(records * share))
    positions = ascending(permutation(records if count else 0, VALIDATION_STREAM, seed)[:count])
    positions.flags.writeable = False
    return positions


class Schedule:
    """Steps count from 0; `done` steps stand for the state after them.

    A training record is `held_out`, or its label leaves in the `statistic`, or it is `trained` on. Those of the first
    and the last kind are `labelled`: they have a noisy label each.
    """

    def __init__(self, job: Job, train: Rows, test: Rows) -> None:
        settings = job.training
        self.held_out = held_out(len(train), settings.validation, settings.seed)
        everything = counting(len(train))
        self.trained = others(len(train), self.held_out) if len(self.held_out) else everything
        self.statistic = everything[:0]
        if job.statistic is not None:
            self.statistic, self.trained = self.trained, self.statistic
        self.labelled = everything if job.statistic is None else self.held_out
        # Without a network there is no step, and no party asks the plan for one.
        self.plan = BatchPlan(len(self.trained) or len(train), settings.batch_size, settings.seed, settings.order)
        self.epoch_steps = self.plan.batches_per_epoch
        self.total_steps = self.plan.steps(settings.epochs) if job.trains else 0
        self.patience = settings.patience
        self.checkpoint_every = settings.checkpoint_every
        self.part_rows = -(-min(self.plan.batch_size, self.plan.rows) // settings.micro_batches)
        """The rows of one part of a batch; the last may have fewer."""
        self._order = -1, everything[:0]
        """An epoch, and the positions of its records in the order of its steps."""
        self._latest = -1, everything[:0]
        """The step whose batch was asked for last, and the batch."""
        self.train, self.test = train, test

    def batch(self, step: int) -> Rows:
        """Return the positions among the training records of a step's batch."""
        if step == self._latest[0]:
            return self._latest[1]
        epoch, number = divmod(step, self.epoch_steps)
        if self.plan.order == "blockwise":  # whose epoch may be longer than memory
            positions = self.plan.batch(step)
        else:
            if epoch != self._order[0]:
                self._order = epoch, self.plan.epoch(epoch)
            positions = self._order[1][number * self.plan.batch_size : (number + 1) * self.plan.batch_size]
        self._latest = step, positions if len(self.trained) == len(self.train) else self.trained[positions]
        return self._latest[1]

    def parts(self, step: int) -> list[Rows]:
        """Return the positions among the training records of each part of a step's batch."""
        batch = self.batch(step)
        return [batch[start : start + self.part_rows] for start in range(0, len(batch), self.part_rows)]

    def among_labelled(self, positions: Rows) -> Rows:
        """Return where the noisy labels of these training records are among those of all that have one."""
        return np.searchsorted(self.labelled, positions) if len(self.statistic) else positions

    def test_parts(self) -> list[Rows]:
        """Return the rows of the held-out training records and then of the test records, in parts of bounded size."""
        return in_parts(joined(taken(self.train, self.held_out), self.test))

    def head_parts(self) -> list[Rows]:
        """Return the rows of the training and then of the test records, in parts of bounded size."""
        return in_parts(joined(self.train, self.test))

    def train_parts(self) -> list[Rows]:
        """Return the positions of all training records, in parts of bounded size."""
        return in_parts(counting(len(self.train)))

    def trained_parts(self) -> list[Rows]:
        """Return the positions among the training records of those that are trained on, in parts of bounded size."""
        return in_parts(self.trained)

    @property
    def largest_part(self) -> int:
        """The most rows that any message of the job carries: a part of a batch, or a part of all records."""
        return max(self.part_rows, min(TEST_ROWS_AT_ONCE, len(self.train) + len(self.test)))

    def epoch_ends(self, done: int) -> bool:
        """Whether an epoch is complete, so that the label party evaluates."""
        return done % self.epoch_steps == 0

    def has_verdict(self, done: int) -> bool:
        """Whether the label party says after `done` steps if the weights are the best so far, and if training ends."""
        return self.patience > 0 and done > 0 and self.epoch_ends(done)

    def stretches(self, start: int) -> Iterator[range]:
        """Yield the remaining steps from checkpoint to checkpoint: each epoch ends with one.

        With `staleness` no forward pass runs ahead over the end of a stretch, so that a checkpoint is the whole
        state of a party and a resumed run computes what an unbroken one does.
        """
        while start < self.total_steps:
            epoch_end = (start // self.epoch_steps + 1) * self.epoch_steps
            end = min(epoch_end, (start // self.checkpoint_every + 1) * self.checkpoint_every)
            yield range(start, end)
            start = end

    def epoch_of(self, step: int) -> int:
        """Return the epoch of a step, from 1."""
        return step // self.epoch_steps + 1

    def records(self, done: int) -> int:
        """Return how many records the first `done` steps used, each as often as it was used."""
        epochs, batches = divmod(done, self.epoch_steps)
        return epochs * self.plan.rows + batches * self.plan.batch_size


def rows_at_once(networks: int = 1) -> int:
    """Return how many rows are evaluated or predicted at once by n networks, whose shares stand side by side."""
    return max(1, TEST_ROWS_AT_ONCE // networks)


def in_parts(rows: Rows, networks: int = 1) -> list[Rows]:
    """Return rows in parts of the size that is evaluated and predicted at once."""
    at_once = rows_at_once(networks)
    return [rows[start : start + at_once] for start in range(0, len(rows), at_once)]
