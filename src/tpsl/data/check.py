"""A look at the data of a job before anything is released: counts, and what is strange about them.

Every party's data that is at hand is loaded as training loads it, and then looked at as the network would see it. Where
the label party's is, the check reads true labels: what it finds then must stay with the label party. A category whose
values hardly repeat, as ids do, teaches nothing, and may tell who a record is about.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tpsl.data.config import DataConfig, OwnData, TableData
from tpsl.data.dataset import Dataset, load_feature_party, load_label_party
from tpsl.data.encoder import Vocabulary
from tpsl.data.features import Features, Inputs
from tpsl.data.order import Rows
from tpsl.data.out_of_core import parts
from tpsl.data.own import Source
from tpsl.data.rawtable import NO_LABEL, same_ids_or_error
from tpsl.data.row_encoder import MISSING, UNSEEN
from tpsl.data.sides import FeatureSide, LabelRecords, LabelSide
from tpsl.data.true_labels import reveal
from tpsl.metrics import auc
from tpsl.progress import Progress, no_progress
from tpsl.spill import ArrowArray
from tpsl.tables import DataError
from tpsl.tables.columns import parsed_or_null
from tpsl.tables.locations import Location, is_there, why_there_is_none

LABEL = "label"
_ID_LIKE = 0.9
"""From this share of records with a value of their own on, a column is like an id."""

_RARE = 0.001
_FEWEST = 20
_AT_ONCE = 1024
_FEW = 20
"""Fewer records say nothing about whether a category is an id."""
_MANY_NUMBERS = 50
_MOSTLY = 0.9
_TELLING = 0.99
_FEWEST_OF_A_CLASS = 10
_SAMPLED = 1 << 15
_ASKED = 4096

_Labels = npt.NDArray[np.int64]


def hardly_repeats(values: float, records: int) -> bool:
    """Return whether a category has nearly as many values as records, as an id has; a few records say nothing."""
    return records >= _FEW and values >= _ID_LIKE * records


@dataclass(frozen=True)
class Finding:
    """An error, with which the job cannot run or make sense, or a warning."""

    level: Literal["error", "warning"]
    party: str
    text: str


@dataclass(frozen=True)
class ColumnCounts:
    """What a column holds; `distinct` categories that the encoder has learned."""

    name: str
    kind: str
    missing: int
    distinct: int | None


@dataclass(frozen=True)
class PartyCounts:
    """What a party has."""

    party: str
    source: str
    records: int
    columns: tuple[ColumnCounts, ...]


@dataclass
class DataReport:
    """What was found; `classes` are the records of each class, by its name, where labels were read."""

    parties: list[PartyCounts] = field(default_factory=list)
    classes: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    not_here: dict[str, str] = field(default_factory=dict)
    """The parties whose data cannot be read here, each with the reason."""
    common_ids: dict[str, int] = field(default_factory=dict)
    """Of feature parties whose ids are not those of the label party: how many ids both have."""

    @property
    def passed(self) -> bool:
        """Whether there is no error."""
        return all(finding.level == "warning" for finding in self.findings)

    def error(self, party: str, text: str) -> None:
        """Note what keeps the job from running."""
        self.findings.append(Finding("error", party, text))

    def warn(self, party: str, text: str) -> None:
        """Note what is strange."""
        self.findings.append(Finding("warning", party, text))

    def as_dict(self) -> dict[str, object]:
        """Return JSON-able data."""
        return {"passed": self.passed, **asdict(self)}


def check_data(
    config: DataConfig,
    *,
    sources: Mapping[str, Source] = MappingProxyType({}),
    progress: Progress = no_progress,
) -> DataReport:
    """Check the data of every party that is at hand; nothing is released. Of each party the first error is told.

    `sources` are the parties' own, as `tpsl.data.dataset.load` takes them.
    """
    report, label = DataReport(), None
    for party in (LABEL, *config.feature_parties):
        source, given = _source(config, party), sources.get(party)
        if isinstance(config, OwnData) and given is None:
            report.not_here[party] = f"{party!r} brings its own source"
            continue
        if isinstance(config, TableData) and not is_there(_file(config, party)):
            report.not_here[party] = why_there_is_none(_file(config, party))
            continue
        try:
            if party == LABEL:
                label = load_label_party(config, progress, source=given)
                _report_on_labels(label, report)
                _report_on(LABEL, source, label.records, label, report)
            else:
                side = load_feature_party(config, party, progress, source=given)
                _report_on(party, source, side, label, report)
                if label is not None:
                    _compare_ids(party, side.ids, label.records.ids, report)
        except DataError as error:
            report.error(party, str(error))
    if report.not_here and not (report.parties or report.findings):
        sentences = "; ".join([f"the data of {', '.join(report.not_here)} is not here", *report.not_here.values()])
        raise DataError(f"there is nothing to check: {sentences}")
    return report


def _file(config: TableData, party: str) -> Location:
    return config.label.path if party == LABEL else next(file.path for file in config.features if file.party == party)


def _source(config: DataConfig, party: str) -> str:
    """Return what errors call a party's data."""
    if isinstance(config, TableData):
        return str(_file(config, party))
    return "its own source" if isinstance(config, OwnData) else config.source


def _report_on(
    party: str, source: str, held: FeatureSide | LabelRecords, label: LabelSide | None, report: DataReport
) -> None:
    """Count and judge what a party holds; leaks are looked for where its records' labels are known."""
    inputs = held.features
    if not isinstance(inputs, Features):
        report.parties.append(PartyCounts(party, source, len(held.ids), ()))
        if inputs is not None:
            _check_inputs(party, inputs, report)
        return
    columns = _columns(held, np.arange(len(inputs)))
    counts = tuple(column.counts for column in columns)
    report.parties.append(PartyCounts(party, source, len(held.ids), counts))
    sentences = [(column.counts.name, text) for column in columns for text in column.complaints()]
    if label is not None:
        sentences += _leaks(inputs, *_sample(held.ids, label))
    for name, text in sentences:
        report.warn(party, f"{source}: column {name!r} {text}")


@dataclass(frozen=True)
class _Column:
    """A column as its encoder has learned it, and what some records have in it."""

    counts: ColumnCounts
    records: int
    texts: ArrowArray = None
    """The categories that were learned; None for a number, and for categories that are hashed."""
    is_constant: bool = False
    hardly_repeats: bool = False

    def complaints(self) -> list[str]:
        """Return what is strange about the column, a sentence each that begins after its name."""
        missing = self.counts.missing
        if missing == self.records:
            return ["has no values, only missing ones"]
        if missing > _MOSTLY * self.records:
            return [f"is missing in {missing:,} of {self.records:,} records"]
        if self.is_constant and not missing:
            return ["has the same value in every record"]
        return [] if self.texts is None else self._about_categories()

    def _about_categories(self) -> list[str]:
        texts = self.texts
        if self.hardly_repeats:
            return [_LIKE_AN_ID]
        if self.counts.kind != "category":
            return []
        if len(texts) > 1 and not parsed_or_null(texts, pa.timestamp("us")).null_count:
            return ["holds dates, which are read as categories: list it in `dates`"]
        are_codes = pc.any(pc.match_substring_regex(texts, "^0[0-9]")).as_py()
        if len(texts) > _MANY_NUMBERS and not (are_codes or parsed_or_null(texts, pa.float64()).null_count):
            return [f"holds {len(texts):,} different numbers, read as categories: is it `numeric`?"]
        return []


_LIKE_AN_ID = "hardly repeats a value, as an id would: it teaches nothing, and may tell who a record is about"


def _columns(held: FeatureSide | LabelRecords, rows: Rows) -> list[_Column]:
    """Return the columns of a party's table as they were encoded, and what these records have in them.

    What is derived from a column, as the hour of a date, is none; of other inputs than a table there are none.
    """
    features, encoder = held.features, held.encoder
    if encoder is None or not isinstance(features, Features):
        return []
    sizes = [part.size for part in encoder.categories.values()]
    firsts = np.cumsum([0, *sizes])[:-1]
    indexed = np.array([isinstance(part, Vocabulary) for part in encoder.categories.values()], np.bool_)
    unseen, absent = np.zeros(len(sizes), np.int64), np.zeros(len(sizes), np.int64)
    not_there = np.zeros(len(encoder.numeric_fields))
    for some in parts(len(rows)):
        codes, numbers = features.batch(rows[some])
        unseen += (indexed & (codes == firsts + UNSEEN)).sum(axis=0)
        absent += (codes == firsts + np.where(indexed, MISSING, 0)).sum(axis=0)
        not_there += numbers.sum(axis=0, dtype=np.float64)
    found = []
    for (name, part), rare, missing in zip(encoder.categories.items(), unseen.tolist(), absent.tolist(), strict=True):
        kind = encoder.columns.get(name, "")
        if not isinstance(part, Vocabulary):
            found.append(_Column(ColumnCounts(name, kind, missing, None), len(rows)))
            continue
        values, share = len(part.values), max(rare / len(rows), len(part.values) / len(held.train))
        counts, is_constant = ColumnCounts(name, kind, missing, values), values == 1 and not rare
        like_an_id = hardly_repeats(share * len(rows), len(rows))
        found.append(_Column(counts, len(rows), part.values, is_constant, like_an_id))
    for name, standard in encoder.numbers.items():
        missing = round(not_there[encoder.numeric_fields.index(f"{name} missing")]) if standard.indicated else 0
        counts = ColumnCounts(name, encoder.columns.get(name, ""), missing, None)
        found.append(_Column(counts, len(rows), is_constant=standard.is_constant))
    return [column for column in found if column.counts.kind]


def _sample(ids: ArrowArray, label: LabelSide) -> tuple[Rows, _Labels]:
    """Return some rows of a party, evenly spaced among those with a known label, and their labels."""
    labels, label_ids = reveal(label.labels), label.records.ids
    rows = np.arange(0, len(ids), max(1, len(ids) // _SAMPLED))
    if ids.equals(label_ids):
        found = labels[rows]
    else:
        at = pc.index_in(ids.take(pa.array(rows)), value_set=label_ids).fill_null(-1).to_numpy(zero_copy_only=False)
        found = np.where(at < 0, NO_LABEL, labels[at])
    return rows[found != NO_LABEL], found[found != NO_LABEL]


def _leaks(features: Features, rows: Rows, labels: _Labels) -> Iterator[tuple[str, str]]:
    """Yield the columns that alone predict the label almost perfectly, with a sentence each."""
    classes = [number for number, count in enumerate(np.bincount(labels)) if count >= _FEWEST_OF_A_CLASS]
    if len(classes) < 2:
        return
    codes, numbers = features.batch(rows)
    everything = np.ones(len(rows), np.bool_)
    told = {
        name: _told_by_category(codes[:, at], labels, classes) for at, name in enumerate(features.categorical_fields)
    }
    for at, name in enumerate(features.numeric_fields):
        is_indicated = f"{name} missing" in features.numeric_fields[at + 1 : at + 2]
        known = numbers[:, at + 1] == 0 if is_indicated else everything
        told[name] = _told_by_number(numbers[known, at], labels[known], labels, classes)
    for name, sure in told.items():
        if sure > _TELLING:
            yield (
                name,
                f"alone tells the label almost perfectly ({sure:.3f} on {len(labels):,} records, 1 is perfect): "
                "if it is made from the label, or known only after it, leave it out",
            )


def _told_by_number(values: npt.NDArray[np.float32], known: _Labels, labels: _Labels, classes: list[int]) -> float:
    """Return the AUC of a number, where it is known, for the class that it tells best from the others."""
    best = 0.0
    for number in classes:
        positive = known == number
        if min(positive.sum(), (~positive).sum()) >= max(_FEWEST_OF_A_CLASS, 0.1 * (labels == number).sum()):
            area = auc(values, positive).value
            best = max(best, area, 1 - area)
    return best


def _told_by_category(values: npt.NDArray[np.int32], labels: _Labels, classes: list[int]) -> float:
    """Return the mean share of each class that is predicted right by the class most records of a value have.

    What a value means is learned from a random half of the records and tried on the other.
    """
    codes, learned = np.unique(values, return_inverse=True)[1], np.random.default_rng(0).random(len(labels)) < 0.5
    counts = np.zeros((codes.max() + 1, labels.max() + 1), dtype=np.int64)
    np.add.at(counts, (codes[learned], labels[learned]), 1)
    predicted = np.where(counts.any(axis=1), counts.argmax(axis=1), -1)[codes[~learned]]
    return float(np.mean([(predicted[labels[~learned] == number] == number).mean() for number in classes]))


def _check_inputs(party: str, inputs: Inputs, report: DataReport) -> None:
    """Ask for every batch of a party's own source once."""
    first, varies = inputs.batch(np.zeros(1, dtype=np.int64)), False
    for start in range(0, len(inputs), _AT_ONCE):
        batch = inputs.batch(np.arange(start, min(start + _AT_ONCE, len(inputs))))
        varies |= any((now != before).any() for now, before in zip(batch, first, strict=True))
    if not varies:
        report.warn(party, f"the inputs of {party!r}: are the same for every record")


def _report_on_labels(side: LabelSide, report: DataReport) -> None:
    labels, names = reveal(side.labels), side.records.class_names
    counts = np.bincount(labels, minlength=len(names)).tolist()
    report.classes = dict(zip(names, counts, strict=True))
    if max(counts) == len(labels):
        report.error(LABEL, f"every record has the label {names[int(np.argmax(counts))]!r}: there is nothing to learn")
        return
    for name, count in report.classes.items():
        if count < max(_FEWEST, _RARE * len(labels)):
            report.warn(LABEL, f"the label {name!r} is rare: {count:,} of {len(labels):,} records have it")


def _compare_ids(party: str, ids: ArrowArray, of_label: ArrowArray, report: DataReport) -> None:
    try:
        same_ids_or_error(f"party {party!r}", ids, "the label party", of_label)
    except DataError as error:
        report.common_ids[party] = pc.sum(pc.is_in(ids, value_set=of_label)).as_py()
        report.error(party, str(error))


def id_warnings(records: Dataset | FeatureSide | LabelSide) -> Iterator[str]:
    """Yield a sentence for each column like an id among the training records, of which some thousands are asked."""
    if isinstance(records, Dataset):
        for side in records.feature_sides.values():
            yield from id_warnings(side)
        yield from id_warnings(records.label_side)
        return
    party, held = ("label", records.records) if isinstance(records, LabelSide) else (records.party, records)
    for column in _columns(held, held.train[:: -(-len(held.train) // _ASKED)]):
        if column.hardly_repeats:
            yield f"the column {column.counts.name!r} of {party} {_LIKE_AN_ID}"
