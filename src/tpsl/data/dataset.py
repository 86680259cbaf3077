"""Loading: each party's side by itself, or all of it for one process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl.data import flights, own, preparation, synthetic
from tpsl.data.config import DataConfig, FlightsData, OwnData, PackageData, SyntheticData, in_time
from tpsl.data.encoder import EncoderState
from tpsl.data.features import Features, Inputs
from tpsl.data.order import Rows
from tpsl.data.out_of_core import empty
from tpsl.data.rawtable import NO_LABEL, same_ids_or_error
from tpsl.data.sides import FeatureSide, LabelRecords, LabelSide, Relabelling
from tpsl.data.true_labels import TrueLabels
from tpsl.progress import Progress, no_progress
from tpsl.spill import ArrowArray
from tpsl.tables import DataError


@dataclass(frozen=True)
class Dataset:
    """The sides of all parties, side by side, row for row in the canonical order.

    `train` and `test` are ascending row positions, disjoint, together all rows.
    """

    feature_sides: dict[str, FeatureSide]
    label_side: LabelSide

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def ids(self) -> ArrowArray:
        """The ids of the records, a `pa.Array` of strings."""
        return self.label_side.records.ids

    @property
    def train(self) -> Rows:
        """The rows to train on."""
        return self.label_side.records.train

    @property
    def test(self) -> Rows:
        """The rows to test on."""
        return self.label_side.records.test

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.label_side.records.classes

    @property
    def labels(self) -> TrueLabels:
        """The handle to the true labels of all rows."""
        return self.label_side.labels

    @property
    def feature_parties(self) -> dict[str, Features | Inputs]:
        """The features of each feature party, by its name."""
        return {party: side.features for party, side in self.feature_sides.items()}

    @property
    def label_features(self) -> Features | Inputs | None:
        """The label party's own features, if it has any."""
        return self.label_side.records.features

    @classmethod
    def of_one(cls, side: FeatureSide, class_names: tuple[str, ...]) -> Dataset:
        """Return what a feature party knows that is alone: its own side, and no label of any record."""
        records = LabelRecords(side.ids, None, class_names, side.train, side.test)
        unknown = empty(len(side.ids), np.int64)
        unknown[:] = NO_LABEL
        return cls({side.party: side}, LabelSide(records, TrueLabels(unknown, class_names)))

    def with_labels(self, labels: npt.NDArray[np.int64]) -> Dataset:
        """Return the same records with other labels of the same classes."""
        records = self.label_side.records
        return replace(self, label_side=LabelSide(records, TrueLabels(labels, records.class_names)))


def load_feature_party(
    config: DataConfig,
    party: str = "feature",
    progress: Progress = no_progress,
    *,
    source: own.Source = None,
    relabelling: Relabelling | None = None,
    encoder: EncoderState | None = None,
) -> FeatureSide:
    """Load one feature party's side from its own table; no other party's file is opened.

    Records are in the canonical order and split as at every other party that has the same ids and configuration.
    `source` is where the party's own records come from (`tpsl.data.own`), or a callable that makes it. `encoder` is
    that of an earlier run, for records that are to be encoded as they were there.
    """
    if party not in config.feature_parties:
        names = ", ".join(config.feature_parties)
        raise DataError(f"there is no feature party {party!r} in the data configuration, only {names}")
    if isinstance(config, OwnData):
        return own.feature_side(config, party, source)
    _no_source(config, party, source)
    if isinstance(config, FlightsData):
        return flights.feature_side(config, relabelling, encoder)
    if isinstance(config, SyntheticData):
        return synthetic.feature_side(config, progress, relabelling)
    if isinstance(config, PackageData):
        return config.load_feature_side(party, progress, relabelling, encoder)
    return preparation.feature_side(config, party, progress, relabelling, encoder)


def load_label_party(
    config: DataConfig,
    progress: Progress = no_progress,
    *,
    source: own.Source = None,
    relabelling: Relabelling | None = None,
    encoder: EncoderState | None = None,
) -> LabelSide:
    """Load the label party's side from its own table; no other party's file is opened.

    `encoder` is that of an earlier run.
    """
    if isinstance(config, OwnData):
        return own.label_side(config, source, relabelling=relabelling)
    _no_source(config, "label", source)
    if isinstance(config, FlightsData):
        return flights.label_side(config, relabelling, encoder)
    if isinstance(config, SyntheticData):
        return synthetic.label_side(config, progress, relabelling)
    if isinstance(config, PackageData):
        return config.load_label_side(progress, relabelling)
    return preparation.label_side(config, progress, relabelling=relabelling, encoder=encoder)


def load(
    config: DataConfig,
    progress: Progress = no_progress,
    *,
    sources: Mapping[str, own.Source] = MappingProxyType({}),
    relabelling: Relabelling | None = None,
    encoders: Mapping[str, EncoderState] = MappingProxyType({}),
) -> Dataset:
    """Load every side and join them; parties that do not have the same records are an error.

    `sources` are the parties' own, by their names, the label party's as `label`; `encoders` are those of an earlier
    run, by the same names. With a `relabelling` the source has other labels from the beginning, before anything is
    derived from them.
    """

    def given(party: str) -> dict[str, Any]:
        return {"source": sources.get(party), "encoder": encoders.get(party), "relabelling": relabelling}

    label = load_label_party(config, progress, **given("label"))
    sides = [load_feature_party(config, party, progress, **given(party)) for party in config.feature_parties]
    ids = label.records.ids
    for side in sides:
        same_ids_or_error(f"party {side.party!r}", side.ids, "the label party", ids, in_time(config))
    return Dataset({side.party: side for side in sides}, label)


def _no_source(config: DataConfig, party: str, source: own.Source) -> None:
    if source is not None:
        raise DataError(f"{party!r} brings inputs of its own, but the job's data are {config.source!r}, not own")
