"""What one party has after loading its own table: nothing of the other party's."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl.data.features import Features
from tpsl.data.rawtable import NO_LABEL
from tpsl.data.split import Rows

Facts = dict[str, float | int | str]


@dataclass(frozen=True)
class FeatureSide:
    """A feature party's records in the canonical order, its features and the common split."""

    party: str
    ids: Any  # pa.Array of strings
    features: Features
    train: Rows
    test: Rows


@dataclass(frozen=True)
class LabelRecords:
    """What the label party may look at while peers are connected: everything but its labels."""

    features: Features | None
    classes: int
    train: Rows
    test: Rows


@dataclass(frozen=True)
class LabelSide:
    """The label party's records in the canonical order, true labels, own features if any, and the common split.

    `labels` are true labels. They go into the vault, into the evaluation of the test rows and into the local head, if
    the job has one, and nowhere else; the last two happen when no peer can see how long they take. Where labels come
    late, one that is not known yet is `NO_LABEL`. `facts` may be computed from them, and stay with the label party too.
    `units` say whom a record is about; they go into the vault, so that its ledger can add up by unit.
    """

    ids: Any  # pa.Array of strings
    features: Features | None
    labels: npt.NDArray[np.int64]
    class_names: tuple[str, ...]
    train: Rows
    test: Rows
    facts: Facts
    units: Any | None = None  # pa.Array of strings

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def records(self) -> LabelRecords:
        """All of it that is not computed from labels."""
        return LabelRecords(self.features, self.classes, self.train, self.test)


def label_facts(labels: npt.NDArray[np.int64], class_names: tuple[str, ...]) -> Facts:
    """Return the share of positives (two classes) or of each class; nothing if labels are missing."""
    if len(labels) and labels.min() == NO_LABEL:
        return {}
    shares = np.bincount(labels, minlength=len(class_names)) / len(labels)
    if len(class_names) == 2:
        return {"positive_rate": float(shares[1])}
    return {f"rate of {name}": float(share) for name, share in zip(class_names, shares, strict=True)}
