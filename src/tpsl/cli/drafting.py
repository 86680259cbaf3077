"""From the parties' tables to a job: what a person says of them, guesses for the rest, and the texts of the files."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict

from tpsl.cli import guessing
from tpsl.cli.guessing import ColumnGuess, KindOfUse, LabelGuess, Sample
from tpsl.files import read_yaml
from tpsl.net.peers import LABEL_PARTY
from tpsl.tables import DataError
from tpsl.tables.locations import Location
from tpsl.training.job import Job, make_job

_ROLES: dict[KindOfUse, str] = {"category": "categorical", "number": "numeric", "date": "dates"}
_USUAL_FROM, _SMALLEST_BATCH, _STEPS_AN_EPOCH = 40_000, 32, 40
"""Of fewer records batches are such that an epoch has about this many steps."""


class Wishes(BaseModel):
    """What a person says of columns, by their names; of `id` each table takes the first that it has."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: tuple[str, ...] = ()
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
        kinds: dict[KindOfUse | None, tuple[str, ...]] = {kind: getattr(self, role) for kind, role in _ROLES.items()}
        pairs = [(name, kind) for kind, names in {**kinds, None: self.drop}.items() for name in names]
        for name, times in Counter(name for name, _ in pairs).items():
            if times > 1:
                raise DataError(f"column {name!r} is given more than one kind")
        return dict(pairs)

    def require_columns(self, samples: Sequence[Sample]) -> None:
        """Raise if a column that is named is in none of the tables, or the time not in all of them."""
        present = list(dict.fromkeys(name for sample in samples for name in sample.columns))
        for name in (*self.id, *filter(None, (self.label, self.time)), *self.kinds):
            if name not in present:
                raise DataError(f"there is no column {name!r}; the columns are {', '.join(map(repr, present))}")
        for sample in samples:
            if self.time is not None and self.time not in sample.columns:
                raise DataError(f"{sample.path}: there is no column {self.time!r}, and the time is one at each party")

    def id_of(self, sample: Sample) -> str | None:
        """Return the id column of a table, if ids are named."""
        found = next((name for name in self.id if name in sample.columns), None)
        if self.id and found is None:
            raise DataError(f"{sample.path}: has no column {' or '.join(map(repr, self.id))}; name its id too")
        return found

    def applied(self, guesses: Mapping[str, ColumnGuess], others: Collection[str | None]) -> tuple[ColumnGuess, ...]:
        """Return the columns but these others, each with the kind that is said of it, else the one that is guessed."""
        said = {
            name: replace(guesses[name], kind=kind, reason="" if kind else "as you say")
            for name, kind in self.kinds.items()
            if name in guesses
        }
        return tuple(said.get(name, guess) for name, guess in guesses.items() if name not in others)

    def order_of(self, columns: Sequence[ColumnGuess]) -> str:
        """Return the order of dates: of those in which all columns but ISO 8601 ones can be read, the first."""
        if self.date_order is not None:
            return self.date_order
        orders = [column.date_orders for column in columns if column.kind == "date" and column.date_orders]
        others = [each for each in orders if each != ("year",)]
        return next((order for order in ("day", "month") if others and all(order in each for each in others)), "year")


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
        has_dates = bool(roles["dates"] or self.time)
        found = {
            "party": self.party,
            "path": path_from(folder, self.sample.path),
            "id": self.id,
            "label": self.label and self.label.column,
            "unit": self.unit,
            **roles,
            "date_order": self.date_order if has_dates and self.date_order != "year" else None,
            "time": self.time,
            "missing": list(self.missing) if self.missing != ("",) else None,
        }
        return {key: value for key, value in found.items() if value}


@dataclass(frozen=True)
class JobDraft:
    """A job, or the part of one that one side can write, before it is agreed on; `epsilon` as the label party says.

    `other` is the part `data` that the other side has sent.
    """

    features: tuple[FileDraft, ...]
    label: FileDraft | None
    dates_in_all: tuple[str, ...] = ()
    """Columns with dates that every table has: each could be the time of a record."""
    epsilon: float = 1.0
    other: Mapping[str, Any] = field(default_factory=dict)
    aligned: bool = False

    @property
    def classes(self) -> LabelGuess | None:
        """The label and its classes, where the label party's table is here."""
        return None if self.label is None else self.label.label

    @property
    def files(self) -> tuple[FileDraft, ...]:
        """The tables that are here, the label party's last."""
        return (*self.features, *([] if self.label is None else [self.label]))

    @property
    def is_complete(self) -> bool:
        """Whether the tables of all parties are described."""
        return all(key in self.data(None) for key in ("features", LABEL_PARTY))

    def data(self, folder: Path | None) -> dict[str, Any]:
        """Return the part `data` of a job in this folder, for other people's eyes without one; what is not here is
        left out."""
        found: dict[str, Any] = {"source": "table", **self.other}
        if self.features:
            found["features"] = [file.as_dict(folder) for file in self.features]
        if self.label is not None and self.classes is not None:
            found[LABEL_PARTY] = self.label.as_dict(folder)
            found |= {"classes": len(self.classes.counts)} if len(self.classes.counts) > 2 else {}
            found |= {"class_values": list(self.classes.values)} if self.classes.values is not None else {}
        found |= {"split": "chronological"} if any(file.time for file in self.files) else {}
        found |= {"alignment": {"mode": "both"}} if self.aligned else {}
        first = [key for key in ("source", "features", LABEL_PARTY) if key in found]
        return {key: found[key] for key in dict.fromkeys([*first, *found])}

    def content(self, folder: Path | None) -> dict[str, Any]:
        """Return what stands in the job, in this folder; without one, as the other side may see it."""
        rows = min(file.sample.rows for file in self.files)
        batch = max(_SMALLEST_BATCH, 2 ** round(math.log2(rows / _STEPS_AN_EPOCH)))
        parts = {
            "data": self.data(folder),
            "privacy": {"epsilon": self.epsilon} if self.is_complete or self.label else {},
            "method": "auto" if self.is_complete else None,
            "training": {"batch_size": batch} if rows < _USUAL_FROM else {},
        }
        return {name: part for name, part in parts.items() if part}

    def job(self) -> Job:
        """Return the job, to be looked at from here; one that cannot be is an error."""
        return make_job(self.content(Path.cwd()), {}, "the job")

    def texts(self, folder: Path) -> dict[Path, str]:
        """Return the text of each file to be written in a folder: the job, or what the other side needs to make it,
        and the local files of the parties that are here."""
        name = "job" if self.is_complete else "features.part" if self.label is None else "labels.part"
        found = {folder / f"{name}.yaml": _text(_JOB, self.content(folder if self.is_complete else None))}
        for file in self.files:
            local = {"party": file.party, "data": path_from(folder, file.sample.path)}
            local |= {"listen" if file.party == LABEL_PARTY else "connect": "127.0.0.1:7443"}
            local |= {"certificates": f"certs/{file.party}"}
            limit = {"max_epsilon": self.epsilon} if file.party == LABEL_PARTY else {}
            found[folder / f"{file.party}.yaml"] = _text(_LOCAL, {**local, **limit})
        return found


def path_from(folder: Path | None, path: Location) -> str:
    """Return where a table lies, as a file in this folder says it; without a folder, its name alone."""
    if folder is None:
        return path.name
    return os.path.relpath(path, folder) if isinstance(path, Path) else path.text


def read_part(path: Path) -> tuple[dict[str, Any], float | None]:
    """Return what the other side has sent: how it describes its table, and the ε, if it is the label party.

    Whatever else it says of privacy has no effect. Of its paths only the names are taken: they are not to be looked for
    here.
    """
    content = read_yaml(path, ValueError)
    data, privacy = (content.get(part, {}) if isinstance(content, dict) else None for part in ("data", "privacy"))
    epsilon = privacy.get("epsilon") if isinstance(privacy, dict) else None
    if not isinstance(data, dict) or not isinstance(epsilon, float | int | None):
        raise ValueError(f"{path}: is no part of a job; `tpsl init` of the other side writes one")
    features = data.get("features", [])
    for file in [*(features if isinstance(features, list) else []), data.get(LABEL_PARTY)]:
        if isinstance(file, dict) and isinstance(file.get("path"), str):
            file["path"] = PurePath(file["path"]).name
    return data, epsilon


def draft_tables(features: Sequence[Sample], label: Sample | None, wishes: Wishes) -> JobDraft:
    """Describe the tables of the parties that are here; a column that is named and not there is an error."""
    samples = [*features, *([] if label is None else [label])]
    wishes.require_columns(samples)
    guesses = [guessing.guess_columns(sample) for sample in samples]
    ids = [named for sample in samples if (named := wishes.id_of(sample))] or guessing.guess_ids(samples, guesses)
    at_label = None if label is None else _labels(label, guesses[-1], ids[-1], wishes)
    for columns in guesses:  # one table may hold all
        if at_label is not None and at_label.label is not None and (name := at_label.label.column) in columns:
            columns[name] = replace(columns[name], kind=None, reason="called as the label")
    names = ["feature"]
    if len(features) != 1:  # those of their files, where these differ
        stems = [re.sub(r"\W+", "-", sample.path.name.partition(".")[0]).strip("-").lower() for sample in features]
        usable = [stem and stem != LABEL_PARTY and stems.count(stem) == 1 for stem in stems]
        names = [stem if usable[at] else f"feature-{at + 1}" for at, stem in enumerate(stems)]
    drafts = []
    for name, sample, known, id_column in zip(names, features, guesses, ids, strict=False):
        used = wishes.applied(known, [id_column])
        if not any(column.kind for column in used):
            raise DataError(f"{sample.path}: no column can be learned from; name those that can")
        drafts.append(FileDraft(name, sample, id_column, used, wishes.order_of(used), wishes.time))
    dates = [{name for name, column in columns.items() if column.kind == "date"} for columns in guesses]
    return JobDraft(tuple(drafts), at_label, tuple(name for name in guesses[0] if all(name in each for each in dates)))


def _labels(sample: Sample, guesses: dict[str, ColumnGuess], id_column: str, wishes: Wishes) -> FileDraft:
    """Describe the label party's table: what it has beside labels is used only where that is said.

    Such columns are often known only after the label, or made from it.
    """
    label = guessing.guess_label(sample, id_column, wishes.label, wishes.positive)
    unlabelled = sample.rows - sum(label.counts)
    if unlabelled:
        raise DataError(
            f"{sample.path}: {unlabelled:,} of {sample.rows:,} records have no label in column {label.column!r}, and "
            "training needs one: remove these rows, and the job will train on the records that both tables have; or, "
            "if the labels are to come while it trains, write a job with `labels: arriving`"
        )
    unit = guessing.guess_unit(sample, id_column, label.column)
    unused = {name: replace(guess, kind=None, reason="not used") for name, guess in guesses.items()}
    columns = wishes.applied(unused, [id_column, label.column, unit])
    order = wishes.order_of(list(guesses.values()))
    return FileDraft(LABEL_PARTY, sample, id_column, columns, order, wishes.time, label, unit)


_COMMENTS = {
    "missing": "texts that stand for a missing value",
    "date_order": "dates as text: the day first (31.12.2025) or the month first (12/31/2025)",
    "unit": "whom a record is about: the ledger states the largest ε of any of them",
    "class_values": "the labels in class order; of two, the probability of the second is predicted",
    "split": "the latest records are the test set",
    "alignment": "the ids differ: `tpsl align` finds the common records, and tells all parties which they are",
    "epsilon": "what a noisy label may tell about the true one: less is more private, more is more accurate",
    "method": "the most accurate network for noisy labels; the feature party gets them, which the same ε allows for",
    "batch_size": "records in a step: small, where records are few",
    "listen": "0.0.0.0:7443 on every network of this machine",
    "connect": "the label party's host and port",
    "certificates": "made by `tpsl certs`",
    "max_epsilon": "no label may spend more in all, whatever a job asks for",
}
_JOB = "The agreement: every party holds this file and agrees to every line. It names columns and classes, no contents."
_LOCAL = "This party's own settings. The other side never sees them."


class _Tidy(yaml.SafeDumper):
    """Lists of plain values in one line, all else in lines of their own."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Set lists in, too."""
        super().increase_indent(flow, False)


def _list(dumper: _Tidy, values: list[Any]) -> yaml.Node:
    in_one_line = not any(isinstance(value, dict) for value in values)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=in_one_line)


_Tidy.add_representer(list, _list)


def _text(head: str, content: Mapping[str, Any]) -> str:
    """Return the text of a file; keys that a newcomer will ask about have a comment."""

    def with_comment(found: re.Match[str]) -> str:
        comment = _COMMENTS.get(found[2])
        return found[0] if comment is None else f"{found[1]}# {comment}\n{found[0]}"

    text = yaml.dump(dict(content), Dumper=_Tidy, sort_keys=False, allow_unicode=True, width=100)
    return f"# {head}\n" + re.sub(r"^( *)(\w+):", with_comment, text, flags=re.MULTILINE)
