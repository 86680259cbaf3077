"""A look at the data of a job before anything is released: counts, and what is strange about them.

Every party's data that is at hand is read once, block by block. Where the label party's is, the check reads true
labels: what it finds then must stay with the label party.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tpsl.data import preparation
from tpsl.data.aligned import Alignment, alignment_of
from tpsl.data.column_check import ColumnCheck, Hashes, LabelLeak, hashes_of
from tpsl.data.config import DataConfig, OwnData, PackageData, TableData
from tpsl.data.dataset import load_feature_party, load_label_party
from tpsl.data.features import Features, Inputs
from tpsl.data.party_file import PartyFile, numbered_ids
from tpsl.data.rawtable import FIND_COMMON_RECORDS, NO_LABEL
from tpsl.data.true_labels import reveal
from tpsl.progress import Progress, no_progress
from tpsl.tables import DataError
from tpsl.tables.columns import record_ids
from tpsl.tables.locations import is_there, why_there_is_none
from tpsl.tables.reading import Block

LABEL = "label"
_RARE = 0.001
_FEWEST = 20
_AT_ONCE = 1024


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

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-able data."""
        return {"passed": self.passed, **asdict(self)}


@dataclass(frozen=True)
class _Records:
    """The ids of a party's records as hashes, in the party's own order, and their labels where they are known."""

    ids: Hashes
    labels: npt.NDArray[np.int64] | None = None
    rows: npt.NDArray[np.int64] | None = None
    """Where each stands in the party's file; None: the first record in the first row, and so on."""

    def row(self, position: int) -> int:
        """Return the number of a record in the party's file, counted from 1."""
        return 1 + (position if self.rows is None else int(self.rows[position]))


def check_data(
    config: DataConfig,
    *,
    late_labels: bool = False,
    sources: Mapping[str, Any] = MappingProxyType({}),
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
                found |= _own_records(config, party, sources[party], late_labels, report)
            else:
                report.not_here.append(party)
    else:
        for party, file in _files(config, late_labels).items():
            if is_there(file.path):
                label = found.get(LABEL)
                if alignments is not None and label is not None:
                    label = _labels_by_row(config, alignments, party, label)
                view = None if alignments is None else alignments.get(party)
                found |= _FileCheck(party, file, report, label, view).run(progress)
            else:
                report.not_here.append(party)
                report.looked_for[party] = why_there_is_none(file.path)
    for party, records in found.items():
        if party != LABEL and LABEL in found and alignments is None:
            _compare_ids(party, records, found[LABEL], report)
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


def _labels_by_row(config: DataConfig, alignments: Mapping[str, Alignment], party: str, label: _Records) -> _Records:
    """Return the labels of a feature party's rows, by the numbers that stand for ids; none for rows not in common."""
    assert isinstance(config, TableData)
    if not {party, LABEL} <= alignments.keys() or (label.labels is None and config.label.label is not None):
        return _Records(label.ids)
    seen = alignments[party]
    labels = np.full(seen.source.rows, NO_LABEL)
    labels[seen.rows] = alignments[LABEL].labels(label.labels)
    return _Records(hashes_of(numbered_ids(1, len(labels) + 1)), labels)


def _files(config: DataConfig, late_labels: bool) -> dict[str, PartyFile]:
    """Return the files of a job, the label party's first."""
    if isinstance(config, PackageData):
        return config.files()
    if not isinstance(config, TableData):
        return {}
    labels = preparation.label_column(config, late_labels)
    files = {LABEL: preparation.party_file(config.label, config, labels)}
    for file in config.features:
        files[file.party] = replace(preparation.party_file(file, config, labels), labels=None)
    return files


class _Lookup:
    """The label of a record by its id; `NO_LABEL` for an id that is not known."""

    def __init__(self, ids: Hashes, labels: npt.NDArray[np.int64]) -> None:
        order = np.argsort(ids)
        self._ids, self._labels = ids[order], labels[order]

    def __call__(self, ids: Hashes) -> npt.NDArray[np.int64]:
        at = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        return np.where(self._ids[at] == ids, self._labels[at], NO_LABEL)


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
        label: _Records | None,
        view: Alignment | None = None,
    ) -> None:
        self._party, self._file, self._report, self._view = party, file, report, view
        self._columns = {name: ColumnCheck(name, kind) for name, kind in file.columns.items()}
        self._broken: set[str] = set()
        self._ids: list[Hashes] = []
        self._recent: list[npt.NDArray[np.bool_]] = []
        self._labels: list[npt.NDArray[np.int64]] = []
        self._leak = LabelLeak()
        self._label_of = None if label is None or label.labels is None else _Lookup(label.ids, label.labels)

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
        rows = np.flatnonzero(np.concatenate(self._recent))
        if not len(rows) and file.time not in self._broken:
            self._report.error(self._party, f"{file.path}: column {file.time!r} has no time at or after {file.since}")
        if not len(rows):
            return {}
        self._report_on(len(rows))
        if file.id in self._broken:
            return {}
        ids = np.concatenate(self._ids)
        _repeated_ids(self._party, ids, self._report)
        known = self._file.labels is not None and self._file.labels.column not in self._broken
        return {self._party: _Records(ids[rows], np.concatenate(self._labels) if known else None, rows)}

    def _add(self, block: Block) -> None:
        file = self._file
        ids = self._read(file.id or "", lambda: hashes_of(file.ids(block)))
        labels = None
        if file.labels is not None:
            labels = self._read(file.labels.column, lambda: file.class_numbers(block))
        elif self._label_of is not None and ids is not None:
            labels = self._label_of(ids)
        recent = self._recent_of(block)
        values = {}
        for name, column in self._columns.items():
            typed = self._read(name, lambda name=name: file.typed(block, name))
            if typed is not None:
                values[name] = column.add(typed.filter(pa.array(recent)))
        if file.unit is not None:
            self._read(file.unit, lambda: record_ids(block.columns[file.unit], file.place(block, file.unit), "unit"))
        self._recent.append(recent)
        if ids is not None:
            self._ids.append(ids)
        if labels is not None:
            self._labels.append(labels[recent])
            if ids is not None and not self._broken:
                self._leak.add(ids[recent], labels[recent], values)

    def _recent_of(self, block: Block) -> npt.NDArray[np.bool_]:
        """Return which records of a block the job takes: all, or those since its time; none where that is not known."""
        file = self._file
        everything = np.ones(block.rows, dtype=np.bool_)
        if file.time is None:
            return everything
        moments = self._read(file.time, lambda: file.times(block))
        recent = None if moments is None else self._read(file.time, lambda: file.recent(block, moments))
        return ~everything if file.since is not None and recent is None else everything if recent is None else recent

    def _read(self, column: str, read: Any) -> Any:
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
        counts = (ColumnCounts(column.name, column.kind, column.missing, column.distinct) for column in whole)
        self._report.parties.append(PartyCounts(self._party, str(self._file.path), records, tuple(counts)))
        labels = self._file.labels
        if labels is not None and labels.column not in self._broken:
            found = np.concatenate(self._labels)
            _count_classes(self._view.labels(found) if self._view else found, labels.classes, self._report)
        leaks = self._leak.complaints()
        for column in whole:
            for text in [*column.complaints(), *([leaks[column.name]] if column.name in leaks else [])]:
                self._report.warn(self._party, f"{self._file.path}: column {column.name!r} {text}")


def _own_records(
    config: OwnData, party: str, source: Any, late_labels: bool, report: DataReport
) -> dict[str, _Records]:
    """Check a source that a party brings itself: every batch of it is asked for once."""
    labels = None
    try:
        if party == LABEL:
            side = load_label_party(config, late_labels=late_labels, source=source)
            ids, inputs, labels = side.records.ids, side.records.features, reveal(side.labels)
            _count_classes(labels, side.records.class_names, report)
        else:
            loaded = load_feature_party(config, party, source=source)
            ids, inputs = loaded.ids, loaded.features
        report.parties.append(PartyCounts(party, "its own source", len(ids), ()))
        if inputs is not None and not isinstance(inputs, Features):
            _check_inputs(party, inputs, report)
    except DataError as error:
        report.error(party, str(error))
        return {}
    return {party: _Records(hashes_of(ids), labels)}


def _check_inputs(party: str, inputs: Inputs, report: DataReport) -> None:
    first, varies = inputs.batch(np.zeros(1, dtype=np.int64)), False
    for start in range(0, len(inputs), _AT_ONCE):
        batch = inputs.batch(np.arange(start, min(start + _AT_ONCE, len(inputs))))
        varies |= any((now != before).any() for now, before in zip(batch, first, strict=True))
    if not varies:
        report.warn(party, f"the inputs of {party!r}: are the same for every record")


def _count_classes(labels: npt.NDArray[np.int64], names: tuple[str, ...], report: DataReport) -> None:
    known = labels[labels != NO_LABEL]
    counts = np.bincount(known, minlength=len(names)).tolist()
    report.classes = dict(zip(names, counts, strict=True))
    if len(known) < len(labels):
        report.warn(LABEL, f"{len(labels) - len(known):,} of {len(labels):,} labels are not known yet")
    if not len(known):
        return
    if max(counts) == len(known):
        report.error(LABEL, f"every record has the label {names[int(np.argmax(counts))]!r}: there is nothing to learn")
        return
    for name, count in report.classes.items():
        if count < max(_FEWEST, _RARE * len(known)):
            report.warn(LABEL, f"the label {name!r} is rare: {count:,} of {len(known):,} records have it")


def _repeated_ids(party: str, ids: Hashes, report: DataReport) -> None:
    order = np.argsort(ids, kind="stable")
    repeats = np.flatnonzero(ids[order][1:] == ids[order][:-1])
    if len(repeats):
        first, second = order[repeats[0]] + 1, order[repeats[0] + 1] + 1
        report.error(
            party,
            f"{len(repeats):,} records repeat an id, and an id must be unique: for example that of record {first:,} "
            f"is that of record {second:,} too",
        )


def _compare_ids(party: str, records: _Records, label: _Records, report: DataReport) -> None:
    ids, of_label = records.ids, label.ids
    only_here, only_there = ~np.isin(ids, of_label), ~np.isin(of_label, ids)
    if not only_here.any() and not only_there.any():
        return
    report.common_ids[party] = len(ids) - int(only_here.sum())
    if only_here.any():
        row, owner = records.row(int(only_here.argmax())), party
    else:
        row, owner = label.row(int(only_there.argmax())), LABEL
    report.error(
        party,
        f"{party!r} and the label party must have the same ids, but {int(only_here.sum()):,} of {len(ids):,} are only "
        f"at {party!r} and {int(only_there.sum()):,} of {len(of_label):,} only at the label party, "
        f"for example that of record {row:,} of {owner!r}; {FIND_COMMON_RECORDS}",
    )
