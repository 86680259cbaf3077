"""A party's keys as one table: a row for each record, a digest for each of its keys."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import reduce
from typing import Self

import numpy as np

from tpsl.alignment.group import POINT_BYTES, Bytes32
from tpsl.alignment.keys import PartyKeys
from tpsl.data.aligned import KeySource
from tpsl.data.order import Rows
from tpsl.mechanisms import secure_words


@dataclass(frozen=True, eq=False)
class KeyTable:
    """Records that have a key, as rows of the party's file, and digests of their keys: [n, keys, 32].

    Random bytes stand in the place of a key that a record does not have: they match nothing, and nobody can tell them
    from a key.
    """

    rows: Rows
    digests: Bytes32
    source: KeySource

    @classmethod
    def of(cls, keys: PartyKeys, order: Rows | None = None) -> Self:
        """Return the table of a party's keys; `order`: all rows of its file, in the order that records shall have."""
        rows = reduce(np.union1d, (each.rows for each in keys.lists))
        if order is not None:
            rows = order[np.isin(order, rows)]
        places = np.full(keys.source.rows, -1, np.int64)
        places[rows] = np.arange(len(rows))
        digests = np.empty((len(rows), len(keys.lists), POINT_BYTES), np.uint8)
        is_missing = np.ones(digests.shape[:2], bool)
        for number, each in enumerate(keys.lists):
            digests[places[each.rows], number] = each.digests
            is_missing[places[each.rows], number] = False
        noise = os.urandom(POINT_BYTES * int(np.count_nonzero(is_missing)))
        digests[is_missing] = np.frombuffer(noise, np.uint8).reshape(-1, POINT_BYTES)
        return cls(rows, digests, keys.source)

    def __len__(self) -> int:
        return len(self.rows)


def random_order(count: int) -> Rows:
    """Return the numbers below `count` in an order that nobody can guess: sorted by secret random words."""
    return np.argsort(secure_words().words(count)).astype(np.int64)
