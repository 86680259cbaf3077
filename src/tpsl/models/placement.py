"""Where the halves of a party are."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tpsl.workers import ALONE, Workers


@dataclass(frozen=True)
class Placement:
    """On which device this process has its halves, and which workers have the same ones."""

    device: torch.device | None = None
    """The CPU if None."""
    workers: Workers = ALONE
    shards_tables: bool = False
    """Whether the rows of embedding tables are divided over the workers, instead of being the same at all of them."""

    @property
    def table_workers(self) -> Workers:
        """The workers over which the rows of a table are divided."""
        return self.workers if self.shards_tables else ALONE


HERE = Placement()
"""On the CPU, in one process."""
