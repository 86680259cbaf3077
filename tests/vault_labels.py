"""The true labels that a vault stores, which no method of it gives out."""

from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl.vault import Vault
from tpsl.vault.blocks import labels_at


def true_labels(vault: Vault, ids: Any) -> npt.NDArray[np.int64]:
    """The stored label of each of these records, all of which the vault has."""
    positions = vault.positions(ids)
    assert (positions >= 0).all()
    return labels_at(vault._store, positions)
