"""Noisy labels that another party's vault has released, at the party that received them.

Who holds them is not the label party, so no true label can be among them. Only the modules that receive noisy labels
may make them so, as `make lint` checks: everywhere else they come out of a vault.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl.mechanisms import Mechanism
from tpsl.vault.errors import VaultError
from tpsl.vault.noisy import VAULT_ONLY, NoisyLabels


def received_labels(mechanism: Mechanism, draws: Sequence[npt.NDArray[Any]], private: bool) -> NoisyLabels:
    """Return outcomes that were received as noisy labels; those that the mechanism does not have are a `VaultError`.

    `private` is what the sender says of its noise. A sender that lies about it, or sends other outcomes than it has
    drawn, harms the model and learns nothing.
    """
    outcomes = []
    for draw in draws:
        if draw.dtype.kind != "u" or draw.shape != (len(draws[0]), *mechanism.outcome_shape):
            raise VaultError(f"outcomes of {mechanism} are not {draw.dtype} of shape {draw.shape}")
        if draw.size and int(draw.max()) >= mechanism.outcomes:
            raise VaultError(f"{mechanism} has {mechanism.outcomes:,} outcomes, and none with the number {draw.max()}")
        outcomes.append(np.array(draw, mechanism.outcome_dtype))
    return NoisyLabels(mechanism, tuple(outcomes), private, VAULT_ONLY)
