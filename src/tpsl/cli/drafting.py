"""A first description of the parties' tables, as a job has it: what a person says of them, and guesses for the rest."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tpsl.cli.guessing import (
    ColumnGuess,
    KindOfUse,
    LabelGuess,
    Sample,
    common_dates,
    guess_columns,
    guess_ids,
    guess_label,
    guess_unit,
)
from tpsl.tables import DataError
from tpsl.tables.locations import Location

LABEL = "label"
_ROLES: dict[KindOfUse, str] = {"category": "categorical", "number": "numeric", "date": "dates"}


@dataclass(frozen=True)
class Wishes:
    """What a person says of columns, by their names; of `ids` each table takes the first that it has."""

    ids: tuple[str, ...] = ()
    label: str | None = None
    positive: str | None = None
    numeric: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    dates: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    time: str | None = None
    date_order: str | None = None

    @property
    def kinds(self) -> dict[str, KindOfUse | None]:
        """Columns whose kind is said; None: not to be used."""
        named: dict[KindOfUse | None, tuple[str, ...]] = {
            "number": self.numeric,
            "category": self.categorical,
            "date": self.dates,
            None: self.drop,
        }
        found: dict[str, KindOfUse | None] = {}
        for kind, columns in named.items():
            for column in columns:
                if column in found:
                    raise DataError(f"column {column!r} is given more than one kind")
                found[column] = kind
        return found

    @property
    def columns(self) -> list[str]:
        """All columns that are named."""
        single = [name for name in (self.label, self.time) if name is not None]
        return [*self.ids, *single, *self.kinds]


@dataclass(frozen=True)
class FileDraft:
    """A party's table: its id, what the other columns seem to be, and the label's if it has one."""

    party: str
    sample: Sample
    id: str
    columns: tuple[ColumnGuess, ...]
    date_order: str = "year"
    time: str | None = None
    label: LabelGuess | None = None
    unit: str | None = None

    @property
    def missing(self) -> tuple[str, ...]:
        """Texts that stand for a missing value in a column that is used."""
        used = (text for column in self.columns if column.kind is not None for text in column.absent)
        return tuple(dict.fromkeys(("", *used)))

    def as_dict(self, folder: Path | None) -> dict[str, Any]:
        """Return the file as a job in this folder has it, for other people's eyes without one."""
        roles = {key: [each.name for each in self.columns if each.kind == kind] for kind, key in _ROLES.items()}
        found: dict[str, Any] = {"party": self.party, "path": path_from(folder, self.sample.path), "id": self.id}
        if self.label is not None:
            found |= {"label": self.label.column, **({"unit": self.unit} if self.unit else {})}
        found |= {key: names for key, names in roles.items() if names}
        has_dates = bool(roles["dates"] or self.time)
        found |= {"date_order": self.date_order} if has_dates and self.date_order != "year" else {}
        found |= {"time": self.time} if self.time else {}
        return found | ({"missing": list(self.missing)} if self.missing != ("",) else {})


@dataclass(frozen=True)
class TablesDraft:
    """The tables of all parties that are here."""

    features: tuple[FileDraft, ...]
    label: FileDraft | None
    dates_in_all: tuple[str, ...]
    """Columns with dates that every table has: each could be the time of a record."""

    @property
    def guessed_label(self) -> LabelGuess | None:
        """The label and its classes, where the label party's table is here."""
        return None if self.label is None else self.label.label

    @property
    def files(self) -> tuple[FileDraft, ...]:
        """The tables, the label party's last."""
        return (*self.features, *([] if self.label is None else [self.label]))

    def as_dict(self, folder: Path | None) -> dict[str, Any]:
        """Return the part `data` of a job in this folder, for other people's eyes without one; what is not here is
        left out."""
        found: dict[str, Any] = {"source": "table"}
        if self.features:
            found["features"] = [file.as_dict(folder) for file in self.features]
        label = self.guessed_label
        if self.label is not None and label is not None:
            found[LABEL] = self.label.as_dict(folder)
            found |= {"classes": len(label.counts)} if len(label.counts) > 2 else {}
            found |= {"class_values": list(label.values)} if label.values is not None else {}
        if any(file.time for file in self.files):
            found["split"] = "chronological"
        return found


def path_from(folder: Path | None, path: Location) -> str:
    """Return where a table lies, as a file in this folder says it; without a folder, its name alone."""
    if folder is None:
        return path.name
    return os.path.relpath(path, folder) if isinstance(path, Path) else path.text


def draft_tables(features: Sequence[Sample], label: Sample | None, wishes: Wishes) -> TablesDraft:
    """Describe the tables of the parties that are here; a column that is named and not there is an error."""
    samples = [*features, *([] if label is None else [label])]
    _require_columns(samples, wishes)
    guesses = [guess_columns(sample) for sample in samples]
    ids = _ids(samples, guesses, wishes)
    names = _party_names(features)
    at_label = None if label is None else _labels(label, guesses[-1], ids[-1], wishes)
    if at_label is not None and at_label.label is not None:
        guesses = [_without_label(columns, at_label.label.column) for columns in guesses]
    files = [
        _features(name, sample, known, id_column, wishes)
        for name, sample, known, id_column in zip(names, features, guesses, ids, strict=False)
    ]
    return TablesDraft(tuple(files), at_label, tuple(common_dates(guesses)))


def _without_label(columns: dict[str, ColumnGuess], label: str) -> dict[str, ColumnGuess]:
    """Return guesses in which a column that is called as the label is left out: one table may hold all."""
    return {
        name: replace(guess, kind=None, reason="called as the label") if name == label else guess
        for name, guess in columns.items()
    }


def _require_columns(samples: Sequence[Sample], wishes: Wishes) -> None:
    present = list(dict.fromkeys(name for sample in samples for name in sample.columns))
    for name in wishes.columns:
        if name not in present:
            raise DataError(f"there is no column {name!r}; the columns are {', '.join(map(repr, present))}")
    for sample in samples:
        if wishes.time is not None and wishes.time not in sample.columns:
            raise DataError(f"{sample.path}: there is no column {wishes.time!r}, and the time is one at each party")


def _ids(samples: Sequence[Sample], guesses: Sequence[Mapping[str, ColumnGuess]], wishes: Wishes) -> list[str]:
    """Return the id column of each table."""
    if not wishes.ids:
        return guess_ids(samples, guesses)
    found = []
    for sample in samples:
        known = [name for name in wishes.ids if name in sample.columns]
        if not known:
            raise DataError(f"{sample.path}: has no column {' or '.join(map(repr, wishes.ids))}; name its id too")
        found.append(known[0])
    return found


def _party_names(features: Sequence[Sample]) -> list[str]:
    """Return the names of the feature parties: of several, those of their files."""
    if len(features) == 1:
        return ["feature"]
    names = [re.sub(r"\W+", "-", sample.path.name.partition(".")[0]).strip("-").lower() for sample in features]
    return [
        name if name and name != LABEL and names.count(name) == 1 else f"feature-{number}"
        for number, name in enumerate(names, 1)
    ]


def _features(party: str, sample: Sample, guesses: dict[str, ColumnGuess], id_column: str, wishes: Wishes) -> FileDraft:
    kinds = wishes.kinds
    columns = [
        replace(guess, kind=kinds[name], reason="" if kinds[name] else "as you say") if name in kinds else guess
        for name, guess in guesses.items()
        if name != id_column
    ]
    if not any(column.kind for column in columns):
        raise DataError(f"{sample.path}: no column can be learned from; name those that can")
    return FileDraft(party, sample, id_column, tuple(columns), _date_order(columns, wishes), wishes.time)


def _labels(sample: Sample, guesses: dict[str, ColumnGuess], id_column: str, wishes: Wishes) -> FileDraft:
    """Describe the label party's table: what it has beside labels is used only where that is said.

    Such columns are often known only after the label, or made from it.
    """
    label = guess_label(sample, id_column, wishes.label, wishes.positive)
    unlabelled = sample.rows - sum(label.counts)
    if unlabelled:
        raise DataError(
            f"{sample.path}: {unlabelled:,} of {sample.rows:,} records have no label in column {label.column!r}, and "
            "training needs one: remove these rows, and the job will train on the records that both tables have; or, "
            "if the labels are to come while it trains, write a job with `labels: arriving`"
        )
    unit, kinds = guess_unit(sample, id_column, label.column), wishes.kinds
    columns = [
        replace(guess, kind=kinds.get(name), reason="" if kinds.get(name) else "not used")
        for name, guess in guesses.items()
        if name not in (id_column, label.column, unit)
    ]
    order = _date_order([guess for guess in guesses.values() if guess.kind == "date"], wishes)
    return FileDraft(LABEL, sample, id_column, tuple(columns), order, wishes.time, label, unit)


def _date_order(columns: Sequence[ColumnGuess], wishes: Wishes) -> str:
    """Return the order of a file's dates: of those in which all columns but ISO 8601 ones can be read, the first."""
    if wishes.date_order is not None:
        return wishes.date_order
    orders = [column.date_orders for column in columns if column.kind == "date" and column.date_orders]
    others = [each for each in orders if each != ("year",)]
    return next((order for order in ("day", "month") if others and all(order in each for each in others)), "year")
