"""True labels as an opaque handle, and the only function that opens it.

Everything may carry a `TrueLabels`; only the modules that may read true labels may import this one, and `make lint`
checks the list (pyproject.toml): those that load labels, store them in a vault, evaluate, train the local head, score
attacks or audit.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import numpy.typing as npt


class TrueLabels:
    """The true labels of some records: their number and their classes can be asked for, the labels cannot.

    It has no array interface, cannot be iterated, compared, copied or pickled, and its `repr` shows no label.
    """

    __slots__ = ("__values", "class_names")

    def __init__(self, values: npt.NDArray[np.int64], class_names: tuple[str, ...]) -> None:
        self.__values, self.class_names = values, class_names

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
    def _open(labels: TrueLabels) -> npt.NDArray[np.int64]:
        return labels.__values


def reveal(labels: TrueLabels) -> npt.NDArray[np.int64]:
    """Return the labels behind a handle, as class numbers; `NO_LABEL` where one is not known yet."""
    return TrueLabels._open(labels)
