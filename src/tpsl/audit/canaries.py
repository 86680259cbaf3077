"""Canaries: records of the user's own data whose labels are replaced by fair coins, independent of everything."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tpsl.data.dataset import Dataset
from tpsl.mechanisms import RandomWords

Rows = npt.NDArray[np.int64]

OWN_FEATURES = "label-features"
"""The party that holds the label party's own features during an audit."""


@dataclass(frozen=True)
class Planted:
    """Data with canaries in it, where they are, and their coins."""

    data: Dataset
    rows: Rows
    coins: npt.NDArray[np.int64]


def plant_canaries(data: Dataset, canaries: int, words: RandomWords) -> Planted:
    """Give so many training records, chosen at random, label 0 or 1 by a fair coin; features stay as they are.

    With k classes the coin falls between classes 0 and 1: what is true of every pair of labels is true of these.
    Features of the label party's own go to one more feature party: the network is the same, and the attacker, who is
    granted the label party's weights, then has all of the cut.
    """
    chosen = np.sort(data.train[np.argsort(words.words(len(data.train)))[:canaries]])
    coins = (words.words(len(chosen)) & np.uint64(1)).astype(np.int64)
    labels = data.labels.copy()
    labels[chosen] = coins
    parties = dict(data.feature_parties)
    if data.label_features is not None:
        parties[OWN_FEATURES] = data.label_features
    return Planted(replace(data, labels=labels, feature_parties=parties, label_features=None), chosen, coins)
