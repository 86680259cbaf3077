"""Other labels in a source, before anything is read from it: for an audit that asks what depends on true labels.

Each source changes the labels where they enter, in the raw table or record that features are read from too. So a
feature that is derived from the label while loading changes with it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tpsl.tables.columns import NO_LABEL

_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class Relabelling:
    """Moves the labels of a random half of the records to another class; which ones, and where, follows from `seed`."""

    seed: int

    def __call__(self, labels: npt.NDArray[Any], classes: int, first: int = 0) -> npt.NDArray[np.int64]:
        """Return the new labels of consecutive records, the first of which is number `first` of the source.

        A label that is not known yet stays unknown. Asking again, in other pieces, gives the same labels.
        """
        stop = first + len(labels)
        blocks = range(first // _AT_ONCE, -(-stop // _AT_ONCE))
        drawn = [np.random.default_rng([self.seed, block]).integers(0, 2 * (classes - 1), _AT_ONCE) for block in blocks]
        moves = np.concatenate([*drawn, np.empty(0, np.int64)])[first - blocks.start * _AT_ONCE :][: len(labels)] + 1
        moves[moves >= classes] = 0
        return np.where(labels == NO_LABEL, NO_LABEL, (labels.astype(np.int64) + moves) % classes)


def as_text(labels: npt.NDArray[np.int64], class_values: tuple[str, ...]) -> Any:
    """Return labels as a column of a party's table, in the words of the table; one that is not known yet is null."""
    known = pa.array(labels, pa.int64(), mask=labels == NO_LABEL)
    return pa.array(class_values, pa.string()).take(known)
