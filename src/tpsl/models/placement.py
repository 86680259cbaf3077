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


HERE = Placement()
"""On the CPU, in one process."""
