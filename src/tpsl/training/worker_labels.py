"""The noisy labels at every worker of the label party. The first has the vault, and gives them to the others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from tpsl.training.job import Job
from tpsl.training.label_source import LabelSource
from tpsl.vault import NoisyLabels, Spent
from tpsl.vault.received import received_labels
from tpsl.workers import Workers


class VaultOfFirst(LabelSource):
    """Where another worker than the first has its noisy labels from: it is given them, and opens no vault."""

    def noisy(self) -> NoisyLabels:
        """Raise: the first worker releases."""
        raise RuntimeError("only the first worker of the label party has its vault")

    def total(self) -> Spent:
        """Raise: the first worker writes the result."""
        raise RuntimeError("only the first worker of the label party has its vault")


def given_by_first(workers: Workers, release: Callable[[], NoisyLabels], job: Job) -> NoisyLabels:
    """Return what the first worker releases, at every worker."""
    if not workers.are_several:
        return release()
    noisy = release() if workers.is_first else None
    private = workers.broadcast(noisy.private if noisy is not None else None)
    draws = []
    for number in range(job.privacy.draws):
        own = None if noisy is None else torch.from_numpy(noisy.draws[number].copy().view(np.uint8))
        given = workers.broadcast_tensor(own).numpy().reshape(-1).view(job.mechanism.outcome_dtype)
        draws.append(given.reshape(-1, *job.mechanism.outcome_shape))
    return received_labels(job.mechanism, draws, private) if noisy is None else noisy
