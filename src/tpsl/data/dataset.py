"""Loading: each party's side by itself, or all of it for one process."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl.data import flights, synthetic, table
from tpsl.data.clicklog import sides as clicklog
from tpsl.data.config import AvazuData, CriteoData, DataConfig, FlightsData, SyntheticData
from tpsl.data.errors import DataError
from tpsl.data.features import Features
from tpsl.data.rawtable import same_ids_or_error
from tpsl.data.relabelling import Relabelling
from tpsl.data.sides import Facts, FeatureSide, LabelSide
from tpsl.data.split import Rows
from tpsl.progress import Progress


@dataclass(frozen=True)
class Dataset:
    """All parties' sides of one data set, row for row in the canonical order.

    `labels` are the label party's true labels: they go into the vault, into the evaluation of the test rows and into
    the local head, if there is one, nowhere else. `facts` (rows, share of positives, the Bayes-optimal AUC where it is
    known) may be computed from them. `train` and `test` are ascending row positions, disjoint, together all rows.
    """

    name: str
    ids: Any  # pa.Array of strings
    feature_parties: dict[str, Features]
    label_features: Features | None
    labels: npt.NDArray[np.int64]
    classes: int
    class_names: tuple[str, ...]
    train: Rows
    test: Rows
    facts: Facts
    units: Any | None = None  # pa.Array of strings: whom a record is about

    def __len__(self) -> int:
        return len(self.labels)

    def feature_side(self, party: str) -> FeatureSide:
        """Return what one feature party has."""
        return FeatureSide(party, self.ids, self.feature_parties[party], self.train, self.test)

    @property
    def label_side(self) -> LabelSide:
        """What the label party has."""
        return LabelSide(
            self.ids, self.label_features, self.labels, self.class_names, self.train, self.test, self.facts, self.units
        )


def feature_party_names(config: DataConfig) -> tuple[str, ...]:
    """Return the names of the feature parties, in the order of the configuration."""
    if isinstance(config, FlightsData):
        return (flights.FEATURE_PARTY,)
    if isinstance(config, SyntheticData):
        return (synthetic.FEATURE_PARTY,)
    if isinstance(config, CriteoData | AvazuData):
        return (clicklog.FEATURE_PARTY,)
    return tuple(file.party for file in config.features)


def taken_on_trust(config: DataConfig) -> str | None:
    """Return what a split assumes of the data that nobody can check, in a sentence; None if it assumes nothing."""
    if isinstance(config, CriteoData) and config.split == "chronological":
        return (
            f"{config.path}: has no times, so its order is taken for that of time; "
            "if the records were shuffled, the chronological split is a random one"
        )
    return None


def load_feature_party(
    config: DataConfig,
    party: str = "feature",
    progress: Progress | None = None,
    *,
    relabelling: Relabelling | None = None,
) -> FeatureSide:
    """Load one feature party's side from its own table; no other party's file is opened.

    Records are in the canonical order and split as at every other party that has the same ids and configuration.
    """
    names = feature_party_names(config)
    if party not in names:
        raise DataError(f"there is no feature party {party!r} in the data configuration, only {', '.join(names)}")
    if isinstance(config, FlightsData):
        return flights.feature_side(config, relabelling)
    if isinstance(config, SyntheticData):
        return synthetic.feature_side(config, progress, relabelling)
    if isinstance(config, CriteoData | AvazuData):
        return clicklog.feature_side(config, progress)
    return table.feature_side(config, party, relabelling)


def load_label_party(
    config: DataConfig,
    progress: Progress | None = None,
    *,
    late_labels: bool = False,
    relabelling: Relabelling | None = None,
) -> LabelSide:
    """Load the label party's side from its own table; no other party's file is opened.

    With `late_labels` a table may have empty labels: `NO_LABEL`.
    """
    if isinstance(config, FlightsData):
        return flights.label_side(config, relabelling)
    if isinstance(config, SyntheticData):
        return synthetic.label_side(config, progress, relabelling)
    if isinstance(config, CriteoData | AvazuData):
        return clicklog.label_side(config, progress)
    return table.label_side(config, late_labels=late_labels, relabelling=relabelling)


def load(
    config: DataConfig,
    progress: Progress | None = None,
    *,
    late_labels: bool = False,
    relabelling: Relabelling | None = None,
) -> Dataset:
    """Load every side and join them; parties that do not have the same records are an error.

    With `late_labels` a label party's table may have empty labels: `NO_LABEL`. With a `relabelling` the source has
    other labels from the beginning, before anything is derived from them.
    """
    sides, label = _all_sides(config, progress, late_labels, relabelling)
    for side in sides:
        same_ids_or_error(
            f"party {side.party!r}", side.ids, "the label party", label.ids, config.split == "chronological"
        )
    return Dataset(
        name=config.source,
        ids=label.ids,
        feature_parties={side.party: side.features for side in sides},
        label_features=label.features,
        labels=label.labels,
        classes=label.classes,
        class_names=label.class_names,
        train=label.train,
        test=label.test,
        facts={"rows": len(label.ids), "train_rows": len(label.train), "test_rows": len(label.test), **label.facts},
        units=label.units,
    )


def _all_sides(
    config: DataConfig, progress: Progress | None, late_labels: bool, relabelling: Relabelling | None
) -> tuple[list[FeatureSide], LabelSide]:
    if isinstance(config, CriteoData | AvazuData):
        feature, label = clicklog.both_sides(config, progress, relabelling)
        return [feature], label
    label = load_label_party(config, progress, late_labels=late_labels, relabelling=relabelling)
    names = feature_party_names(config)
    return [load_feature_party(config, party, progress, relabelling=relabelling) for party in names], label
