"""True labels as an opaque handle, and the only functions that open it.

Everything may carry a `TrueLabels`; only the modules that may read true labels may import this one, and `make lint`
checks the list (pyproject.toml): those that load labels, store them in a vault, evaluate, train the local head, score
attacks or audit.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import numpy.typing as npt

from tpsl.data.rawtable import NO_LABEL, Facts


class TrueLabels:
    """The true labels of some records: their number and their classes can be asked for, the labels cannot.

    It has no array interface, cannot be iterated, compared, copied or pickled, and its `repr` shows no label.
    """

    __slots__ = ("__facts", "__values", "class_names")

    def __init__(self, values: npt.NDArray[np.int64], class_names: tuple[str, ...], facts: Facts | None = None) -> None:
        self.__values, self.__facts = values, facts or {}
        self.class_names = class_names

    def __len__(self) -> int:
        return len(self.__values)

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    def __repr__(self) -> str:
        return f"<{len(self):,} true labels of {self.classes} classes>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("true labels cannot be copied or pickled")

    @staticmethod
    def _open(labels: TrueLabels) -> tuple[npt.NDArray[np.int64], Facts]:
        return labels.__values, labels.__facts


def reveal(labels: TrueLabels) -> npt.NDArray[np.int64]:
    """Return the labels behind a handle, as class numbers; `NO_LABEL` where one is not known yet."""
    return TrueLabels._open(labels)[0]


def label_facts(labels: TrueLabels) -> Facts:
    """Return the share of positives (two classes) or of each class, and what is known of the best classifier.

    There are no shares where labels are missing. The facts are computed from true labels and stay where these stay.
    """
    values, facts = TrueLabels._open(labels)
    if len(values) and values.min() == NO_LABEL:
        return facts
    shares = np.bincount(values, minlength=labels.classes) / len(values)
    if labels.classes == 2:
        return {"positive_rate": float(shares[1]), **facts}
    return {
        **{f"rate of {name}": float(share) for name, share in zip(labels.class_names, shares, strict=True)},
        **facts,
    }
