"""A look at the data of a job before anything is released: counts, and what is strange about them.

Every party's data that is at hand is read once, block by block. Where the label party's is, the check reads true
labels: what it finds then must stay with the label party. A category whose values hardly repeat, as ids do, teaches
nothing, and may tell who a record is about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tpsl.data import preparation
from tpsl.data.aligned import Alignment, alignment_of
from tpsl.data.config import DataConfig, OwnData, PackageData, TableData
from tpsl.data.dataset import Dataset, load_feature_party, load_label_party
from tpsl.data.encoder import Vocabulary
from tpsl.data.features import Features, Inputs
from tpsl.data.out_of_core import TextStack, taken_texts
from tpsl.data.own import Source
from tpsl.data.party_file import PartyFile, numbered_ids
from tpsl.data.rawtable import NO_LABEL, RawTable, same_ids_or_error
from tpsl.data.row_encoder import UNSEEN
from tpsl.data.sides import FeatureSide, LabelRecords, LabelSide
from tpsl.data.true_labels import reveal
from tpsl.metrics import auc
from tpsl.progress import Progress, no_progress
from tpsl.spill import ArrowArray
from tpsl.tables import DataError
from tpsl.tables.columns import parsed_or_null, record_ids
from tpsl.tables.locations import is_there, why_there_is_none
from tpsl.tables.reading import Block

LABEL = "label"
_ID_LIKE = 0.9
"""From this share of records with a value of their own on, a column is like an id."""

_RARE = 0.001
_FEWEST = 20
_AT_ONCE = 1024
_MOST_COUNTED = 1 << 16
"""Distinct values that are counted of each column; of more it is known only that there are more."""
_FEW = 20
"""Fewer records say nothing about whether a category is an id."""
_MANY_NUMBERS = 50
_MOSTLY = 0.9
_TELLING = 0.99
_FEWEST_OF_A_CLASS = 10
_SAMPLED = 1 << 15
_ASKED = 4096

_Labels = npt.NDArray[np.int64]
_Result = TypeVar("_Result")


def hardly_repeats(values: int, records: int) -> bool:
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
    """What a column holds; `distinct` categories, at least."""

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
    not_here: list[str] = field(default_factory=list)
    """Parties whose data is not at hand."""
    looked_for: dict[str, str] = field(default_factory=dict)
    """Of those that have files: where these were looked for, and what is there instead, in a sentence."""
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
    """Check the data of every party that is at hand; nothing is released, and nothing is written.

    `sources` are the parties' own, as `tpsl.data.dataset.load` takes them.
    """
    report, found = DataReport(), dict[str, _Records]()
    alignments = _alignments(config, report, progress)
    if isinstance(config, OwnData):
        for party in (LABEL, *config.parties):
            if party in sources:
                found |= _own_records(config, party, sources[party], report)
            else:
                report.not_here.append(party)
    else:
        for party, file in _files(config).items():
            if is_there(file.path):
                label = found.get(LABEL)
                known = None if label is None else label.sample
                if alignments is not None and label is not None:
                    known = _labels_by_row(config, alignments, party, label)
                view = None if alignments is None else alignments.get(party)
                found |= _FileCheck(party, file, report, known, view).run(progress)
            else:
                report.not_here.append(party)
                report.looked_for[party] = why_there_is_none(file.path)
    for party, records in found.items():
        if party != LABEL and LABEL in found and alignments is None:
            _compare_ids(party, records.ids, found[LABEL].ids, report)
    if report.not_here and not (report.parties or report.findings):
        sentences = "; ".join([f"the data of {', '.join(report.not_here)} is not here", *report.looked_for.values()])
        raise DataError(f"there is nothing to check: {sentences}")
    return report


def _alignments(config: DataConfig, report: DataReport, progress: Progress) -> dict[str, Alignment] | None:
    """Return the alignments of the parties whose files are here; None if the job has none."""
    if not isinstance(config, TableData) or config.alignment is None:
        return None
    found: dict[str, Alignment] = {}
    for party, file in {LABEL: config.label, **{file.party: file for file in config.features}}.items():
        if not is_there(file.path):
            continue
        try:
            found |= {party: alignment} if (alignment := alignment_of(config, file, progress)) else {}
        except DataError as error:
            report.error(party, str(error))
    for party, alignment in found.items():
        if LABEL in found and alignment.digest != found[LABEL].digest:
            report.error(party, f"{party!r} and the label party hold different alignments: align all of them again")
            del found[LABEL]
            break
    return found


def _labels_by_row(
    config: DataConfig, alignments: Mapping[str, Alignment], party: str, label: _Records
) -> _Sample | None:
    """Return labels of a feature party's rows, by the numbers that stand for ids; none for rows not in common."""
    assert isinstance(config, TableData)
    if not {party, LABEL} <= alignments.keys() or (label.labels is None and config.label.label is not None):
        return None
    seen, sample = alignments[party], _Sample()
    labels = np.full(seen.source.rows, NO_LABEL)
    labels[seen.rows] = alignments[LABEL].labels(label.labels)
    sample.add(numbered_ids(1, len(labels) + 1), labels, {})
    return sample


def _files(config: DataConfig) -> dict[str, PartyFile]:
    """Return the files of a job, the label party's first."""
    if isinstance(config, PackageData):
        return config.files()
    if not isinstance(config, TableData):
        return {}
    labels = preparation.label_column(config)
    files = {LABEL: preparation.party_file(config.label, config, labels)}
    for file in config.features:
        files[file.party] = replace(preparation.party_file(file, config, labels), labels=None)
    return files


class _Sample:
    """Some records with their labels, evenly spaced among all that have one: `_SAMPLED` at most."""

    def __init__(self) -> None:
        self._records = pa.table({"": pa.array([], pa.string()), LABEL: pa.array([], pa.int64())})
        self._apart, self._seen = 1, 0

    def add(self, ids: ArrowArray, labels: _Labels, columns: Mapping[str, ArrowArray]) -> None:
        """Take in the next records; those without a label are left out."""
        known = pa.table({"": ids, LABEL: labels} | {f" {name}": values for name, values in columns.items()})
        known = known.filter(pa.array(labels != NO_LABEL))
        # Those whose number is a multiple of `apart` are kept; every other one of them, if they become too many.
        chosen = known.take(np.arange(-self._seen % self._apart, len(known), self._apart))
        self._records = pa.concat_tables([self._records, chosen]) if self._seen else chosen
        self._seen += len(known)
        while len(self._records) > _SAMPLED:
            self._records, self._apart = self._records.take(np.arange(0, len(self._records), 2)), 2 * self._apart

    def labels_of(self, ids: ArrowArray) -> _Labels:
        """Return the labels of records by their ids; `NO_LABEL` for those that are not in the sample."""
        at = pc.index_in(ids, value_set=self._records[""])
        found: _Labels = self._records[LABEL].take(at).fill_null(NO_LABEL).to_numpy()
        return found

    def complaints(self) -> dict[str, str]:
        """Return the columns that alone predict the label almost perfectly, with a sentence each."""
        if not len(self._records):
            return {}
        labels, found = self._records[LABEL].to_numpy(), {}
        classes = [number for number, count in enumerate(np.bincount(labels)) if count >= _FEWEST_OF_A_CLASS]
        for name in self._records.column_names[2:] if len(classes) > 1 else ():
            values = self._records[name]
            measure = _told_by_category if pa.types.is_dictionary(values.type) else _told_by_number
            sure = measure(values, labels, classes)
            if sure > _TELLING:
                found[name[1:]] = (
                    f"alone tells the label almost perfectly ({sure:.3f} on {len(labels):,} records, 1 is perfect): "
                    "if it is made from the label, or known only after it, leave it out"
                )
        return found


def _told_by_number(column: ArrowArray, labels: _Labels, classes: list[int]) -> float:
    """Return the AUC of the number, or of its being missing, for the class it tells best from the others."""
    values = _as_numbers(column)
    best, missing = 0.0, np.isnan(values)
    for number in classes:
        for scores, known in ((values, ~missing), (missing, np.ones(len(values), dtype=bool))):
            positive = labels[known] == number
            if min(positive.sum(), (~positive).sum()) >= max(_FEWEST_OF_A_CLASS, 0.1 * (labels == number).sum()):
                area = auc(scores[known], positive).value
                best = max(best, area, 1 - area)
    return best


def _told_by_category(column: ArrowArray, labels: _Labels, classes: list[int]) -> float:
    """Return the mean share of each class that is predicted right by the class most records of a value have.

    What a value means is learned from a random half of the records and tried on the other.
    """
    values = column.cast(pa.string()).combine_chunks().dictionary_encode("encode")
    codes, learned = values.indices.to_numpy(), np.random.default_rng(0).random(len(labels)) < 0.5
    counts = np.zeros((len(values.dictionary), labels.max() + 1), dtype=np.int64)
    np.add.at(counts, (codes[learned], labels[learned]), 1)
    predicted = np.where(counts.any(axis=1), counts.argmax(axis=1), -1)[codes[~learned]]
    return float(np.mean([(predicted[labels[~learned] == number] == number).mean() for number in classes]))


def _as_numbers(values: ArrowArray) -> npt.NDArray[np.float64]:
    """Return numbers or moments, NaN where one is missing."""
    plain = values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values
    found: npt.NDArray[np.float64] = plain.cast(pa.float64(), safe=False).fill_null(np.nan).to_numpy()
    return found


class _ColumnCheck:
    """Counts what a column holds: `add` takes the next values, as their kind reads them."""

    def __init__(self, name: str, kind: str) -> None:
        self.name, self.kind = name, kind
        self.records = self.missing = 0
        self._distinct: ArrowArray = None
        self._counted = 0
        """Records among which all distinct values were counted."""
        self._lowest, self._highest = np.inf, -np.inf

    def add(self, values: ArrowArray) -> None:
        """Take in the next records."""
        self.records += len(values)
        if pa.types.is_dictionary(values.type):
            self.missing += values.null_count
            here = values.dictionary.cast(pa.string())
            before = here[:0] if self._distinct is None else self._distinct
            if len(before) < _MOST_COUNTED:
                self._distinct, self._counted = pa.concat_arrays([before, here]).unique(), self.records
            return
        found = _as_numbers(values)
        known = found[~np.isnan(found)]
        self.missing += len(found) - len(known)
        if len(known):
            self._lowest, self._highest = min(self._lowest, known.min()), max(self._highest, known.max())

    @property
    def counts(self) -> ColumnCounts:
        """What the column holds; numbers and dates are not counted."""
        return ColumnCounts(self.name, self.kind, self.missing, None if self._distinct is None else len(self._distinct))

    def complaints(self) -> list[str]:
        """Return what is strange about the column, a sentence each that begins after its name."""
        if self.missing == self.records:
            return ["has no values, only missing ones"]
        if self.missing > _MOSTLY * self.records:
            return [f"is missing in {self.missing:,} of {self.records:,} records"]
        is_one = self._lowest == self._highest if self._distinct is None else len(self._distinct) == 1
        if is_one and not self.missing:
            return ["has the same value in every record"]
        return [] if self._distinct is None else self._about_categories(self._distinct.drop_null())

    def _about_categories(self, texts: ArrowArray) -> list[str]:
        if hardly_repeats(len(texts), self._counted):
            return [
                f"has {len(texts):,} different values in {self._counted:,} records, as an id would: "
                "a category that hardly repeats teaches nothing, and may tell who a record is about"
            ]
        if self.kind != "category":
            return []
        if len(texts) > 1 and not parsed_or_null(texts, pa.timestamp("us")).null_count:
            return ["holds dates, which are read as categories: list it in `dates`"]
        are_codes = pc.any(pc.match_substring_regex(texts, "^0[0-9]")).as_py()
        if len(texts) > _MANY_NUMBERS and not (are_codes or parsed_or_null(texts, pa.float64()).null_count):
            return [f"holds {len(texts):,} different numbers, read as categories: is it `numeric`?"]
        return []


@dataclass(frozen=True)
class _Records:
    """The ids of a party's records in the canonical order, and of the label party's file all labels and some."""

    ids: ArrowArray
    labels: _Labels | None = None
    sample: _Sample | None = None


class _FileCheck:
    """One pass over a party's file; an error in one column does not hide those in others.

    Where the job takes records since some time, errors are those of all rows, as a run would find them; what is counted
    and warned about are the records since then.
    """

    def __init__(
        self,
        party: str,
        file: PartyFile,
        report: DataReport,
        known: _Sample | None,
        view: Alignment | None = None,
    ) -> None:
        self._party, self._file, self._report, self._known, self._view = party, file, report, known, view
        self._columns = {name: _ColumnCheck(name, kind) for name, kind in file.columns.items()}
        self._broken: set[str] = set()
        self._ids, self._sample = TextStack(), _Sample()
        self._recent: list[npt.NDArray[np.bool_]] = []
        self._labels: list[_Labels] = []

    def run(self, progress: Progress) -> dict[str, _Records]:
        """Return the records, if their ids can be read."""
        file = self._file
        wanted = [file.id, file.time, file.unit, file.labels.column if file.labels else None, *file.columns]
        try:
            for block in file.blocks([name for name in wanted if name is not None], progress):
                self._add(block)
        except DataError as error:  # of the file as a whole
            self._report.error(self._party, str(error))
            return {}
        recent = np.concatenate(self._recent)
        if not recent.any():
            if file.time not in self._broken:
                since = f"{file.path}: column {file.time!r} has no time at or after {file.since}"
                self._report.error(self._party, since)
            return {}
        self._report_on(int(recent.sum()))
        if file.id in self._broken:
            return {}
        is_known = file.labels is not None and file.labels.column not in self._broken
        labels = np.concatenate(self._labels) if is_known else None
        return {self._party: _Records(self._ordered_ids(recent), labels, self._sample if is_known else None)}

    def _ordered_ids(self, recent: npt.NDArray[np.bool_]) -> ArrowArray:
        """Return the ids of recent records in the canonical order; where some repeat, each once."""
        ids = self._ids.finish()
        table = RawTable(str(self._file.path), ids, recent=recent, dialect=self._file.dialect)
        try:
            order = table.canonical_order()
        except DataError as error:
            self._report.error(self._party, str(error))
            different = ids.filter(pa.array(recent)).unique()
            return different.take(pc.array_sort_indices(different))
        return ids if order is None else taken_texts(ids, order)

    def _add(self, block: Block) -> None:
        file = self._file
        ids, labels = self._read(file.id or "", lambda: file.ids(block)), None
        if file.labels is not None:
            labels = self._read(file.labels.column, lambda: file.class_numbers(block))
        elif self._known is not None and ids is not None:
            labels = self._known.labels_of(ids)
        recent = self._recent_of(block)
        chosen, values = pa.array(recent), dict[str, ArrowArray]()
        for name, column in self._columns.items():
            typed = self._read(name, partial(file.typed, block, name))
            if typed is not None:
                values[name] = typed.filter(chosen)
                column.add(values[name])
        if (unit := file.unit) is not None:
            self._read(unit, lambda: record_ids(block.columns[unit], file.place(block, unit), "unit"))
        self._recent.append(recent)
        if ids is not None:
            self._ids.add(ids)
        if labels is not None:
            self._labels.append(labels[recent])
            if ids is not None and not self._broken:
                self._sample.add(ids.filter(chosen), labels[recent], values)

    def _recent_of(self, block: Block) -> npt.NDArray[np.bool_]:
        """Return which records of a block the job takes: all, or those since its time; none where that is not known."""
        file = self._file
        everything = np.ones(block.rows, dtype=np.bool_)
        if file.time is None:
            return everything
        moments = self._read(file.time, lambda: file.times(block))
        recent = None if moments is None else self._read(file.time, lambda: file.recent(block, moments))
        return ~everything if file.since is not None and recent is None else everything if recent is None else recent

    def _read(self, column: str, read: Callable[[], _Result]) -> _Result | None:
        """Return what `read` returns; the first error of a column is noted, and the column is left out from then on."""
        if column in self._broken:
            return None
        try:
            return read()
        except DataError as error:
            self._report.error(self._party, str(error))
            self._broken.add(column)
            return None

    def _report_on(self, records: int) -> None:
        whole = [column for column in self._columns.values() if column.name not in self._broken]
        counts = tuple(column.counts for column in whole)
        self._report.parties.append(PartyCounts(self._party, str(self._file.path), records, counts))
        labels = self._file.labels
        if labels is not None and labels.column not in self._broken:
            found = np.concatenate(self._labels)
            _count_classes(self._view.labels(found) if self._view else found, labels.classes, self._report)
        leaks = self._sample.complaints()
        for column in whole:
            for text in [*column.complaints(), *([leaks[column.name]] if column.name in leaks else [])]:
                self._report.warn(self._party, f"{self._file.path}: column {column.name!r} {text}")


def _own_records(config: OwnData, party: str, source: Source, report: DataReport) -> dict[str, _Records]:
    """Check a source that a party brings itself: every batch of it is asked for once."""
    try:
        if party == LABEL:
            side = load_label_party(config, source=source)
            ids, inputs = side.records.ids, side.records.features
            _count_classes(reveal(side.labels), side.records.class_names, report)
        else:
            loaded = load_feature_party(config, party, source=source)
            ids, inputs = loaded.ids, loaded.features
        report.parties.append(PartyCounts(party, "its own source", len(ids), ()))
        if inputs is not None and not isinstance(inputs, Features):
            _check_inputs(party, inputs, report)
    except DataError as error:
        report.error(party, str(error))
        return {}
    return {party: _Records(ids)}


def _check_inputs(party: str, inputs: Inputs, report: DataReport) -> None:
    first, varies = inputs.batch(np.zeros(1, dtype=np.int64)), False
    for start in range(0, len(inputs), _AT_ONCE):
        batch = inputs.batch(np.arange(start, min(start + _AT_ONCE, len(inputs))))
        varies |= any((now != before).any() for now, before in zip(batch, first, strict=True))
    if not varies:
        report.warn(party, f"the inputs of {party!r}: are the same for every record")


def _count_classes(labels: npt.NDArray[np.int64], names: tuple[str, ...], report: DataReport) -> None:
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
    for name in _id_columns(held):
        yield (
            f"the column {name!r} of {party} hardly repeats a value, as an id would: it teaches nothing, and may tell "
            "who a record is about"
        )


def _id_columns(side: FeatureSide | LabelRecords) -> Iterator[str]:
    if side.encoder is None or not isinstance(side.features, Features):
        return
    asked, first = side.features.batch(side.train[:: -(-len(side.train) // _ASKED)])[0], 0
    for at, (name, part) in enumerate(side.encoder.categories.items()):
        if isinstance(part, Vocabulary):
            rare = (asked[:, at] == first + UNSEEN).mean()
            if max(rare, len(part.values) / len(side.train)) >= _ID_LIKE:
                yield name
        first += part.size
