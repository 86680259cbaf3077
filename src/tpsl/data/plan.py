"""The batch plan: which training rows make up which step.

The plan is a function of four public numbers. It does not see a label (so batches cannot leak one), both parties
compute it for themselves, and any step can be asked for at any time (so a resumed run continues where it stopped).
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from tpsl.data.blockwise import BLOCK_ROWS, WINDOW_BLOCKS, blockwise_part
from tpsl.data.order import permutation, permutation_words
from tpsl.data.split import BATCH_STREAM

Order = Literal["shuffled", "blockwise", "arrival"]


@lru_cache(maxsize=2)  # both parties in one process, and the turn of an epoch
def _epoch_order(rows: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    order = permutation(rows, BATCH_STREAM, seed, epoch)
    order.flags.writeable = False
    return order


@dataclass(frozen=True)
class BatchPlan:
    """Batches of `batch_size` positions into the training rows; the last one of an epoch may be smaller.

    Each epoch visits each row exactly once: `shuffled` in a new order every epoch, which is
    `permutation(rows, BATCH_STREAM, seed, epoch)` (see `tpsl.data.order`; the same with every version of NumPy);
    `blockwise`, in a new order every epoch that keeps neighbours together (see `tpsl.data.blockwise`); or in order of
    `arrival`, the order of the rows themselves.
    """

    rows: int
    batch_size: int
    seed: int = 0
    order: Order = "shuffled"

    def __post_init__(self) -> None:
        if self.rows < 1 or self.batch_size < 1:
            raise ValueError(f"a batch plan needs rows and batch_size above 0, not {self.rows} and {self.batch_size}")
        if self.seed < 0:
            raise ValueError(f"a batch plan needs a seed that is not negative, not {self.seed}")
        if self.order not in get_args(Order):
            raise ValueError(f"the order of a batch plan is one of {get_args(Order)}, not {self.order!r}")

    @property
    def batches_per_epoch(self) -> int:
        """Number of steps that visit every row once."""
        return -(-self.rows // self.batch_size)

    def steps(self, epochs: int) -> int:
        """Return the number of steps in this number of epochs."""
        return epochs * self.batches_per_epoch

    def batch(self, step: int) -> npt.NDArray[np.int64]:
        """Return the row positions of a step (from 0; the step decides the epoch), as a read-only array."""
        if step < 0:
            raise ValueError(f"steps count from 0, there is no step {step}")
        epoch, batch = divmod(step, self.batches_per_epoch)
        start, stop = batch * self.batch_size, min((batch + 1) * self.batch_size, self.rows)
        return self._part(epoch, start, stop)

    def epoch(self, epoch: int) -> npt.NDArray[np.int64]:
        """Return the row positions of a whole epoch, from 0, in the order of its steps, as a read-only array."""
        return self._part(epoch, 0, self.rows)

    def _part(self, epoch: int, start: int, stop: int) -> npt.NDArray[np.int64]:
        if self.order == "shuffled":
            return _epoch_order(self.rows, self.seed, epoch)[start:stop]
        if self.order == "blockwise":
            positions = blockwise_part(self.rows, self.seed, epoch, start, stop)
        else:
            positions = np.arange(start, stop, dtype=np.int64)
        positions.flags.writeable = False
        return positions

    def epoch_words(self, epoch: int) -> npt.NDArray[np.uint64] | None:
        """Return the words whose order is that of an epoch (see `tpsl.data.order`); None if it is not shuffled."""
        return permutation_words(self.rows, BATCH_STREAM, self.seed, epoch) if self.order == "shuffled" else None

    def digest(self) -> str:
        """Return a SHA-256 in hex that is equal at two parties exactly if their plans are."""
        blocks = {"blocks": [BLOCK_ROWS, WINDOW_BLOCKS]} if self.order == "blockwise" else {}
        described = json.dumps({"plan": 1, **asdict(self), **blocks}, sort_keys=True)
        return hashlib.sha256(described.encode()).hexdigest()
