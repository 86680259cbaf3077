"""From guesses about the parties' tables to a job: what each table holds, and the texts of the files."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any

import yaml

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


@dataclass(frozen=True)
class FileDraft:
    """A party's table: its id, what the other columns seem to be, and the label's if it has one."""

    party: str
    sample: Sample
    id: str
    columns: tuple[ColumnGuess, ...]
    label: LabelGuess | None = None
    unit: str | None = None

    @property
    def date_order(self) -> str:
        """The order of dates: of those in which all columns but ISO 8601 ones can be read, the first."""
        orders = [each.date_orders for each in self.columns if each.kind == "date" and each.date_orders != ("year",)]
        return next((order for order in ("day", "month") if orders and all(order in each for each in orders)), "year")

    @property
    def missing(self) -> tuple[str, ...]:
        """Texts that stand for a missing value in a column that is used."""
        used = (text for column in self.columns if column.kind is not None for text in column.absent)
        return tuple(dict.fromkeys(("", *used)))

    def as_dict(self, folder: Path | None) -> dict[str, Any]:
        """Return the file as a job in this folder has it, for other people's eyes without one."""
        roles = {key: [each.name for each in self.columns if each.kind == kind] for kind, key in _ROLES.items()}
        found = {
            "party": self.party,
            "path": path_from(folder, self.sample.path),
            "id": self.id,
            "label": self.label and self.label.column,
            "unit": self.unit,
            **roles,
            "date_order": self.date_order if self.date_order != "year" else None,
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


def draft_tables(
    features: Sequence[Sample], label: Sample | None, ids: Sequence[str] = (), label_column: str | None = None
) -> JobDraft:
    """Describe the tables of the parties that are here; of `ids` each table takes the first that it has."""
    samples = [*features, *([] if label is None else [label])]
    present = list(dict.fromkeys(name for sample in samples for name in sample.columns))
    for name in (*ids, *([] if label_column is None else [label_column])):
        if name not in present:
            raise DataError(f"there is no column {name!r}; the columns are {', '.join(map(repr, present))}")
    guesses = [guessing.guess_columns(sample) for sample in samples]
    id_columns = _named_ids(samples, ids) if ids else guessing.guess_ids(samples, guesses)
    at_label = None if label is None else _labels(label, guesses[-1], id_columns[-1], label_column)
    for known in guesses:  # one table may hold all
        if at_label is not None and at_label.label is not None and (name := at_label.label.column) in known:
            known[name] = replace(known[name], kind=None, reason="called as the label")
    names = ["feature"]
    if len(features) != 1:  # those of their files, where these differ
        stems = [re.sub(r"\W+", "-", sample.path.name.partition(".")[0]).strip("-").lower() for sample in features]
        usable = [stem and stem != LABEL_PARTY and stems.count(stem) == 1 for stem in stems]
        names = [stem if usable[at] else f"feature-{at + 1}" for at, stem in enumerate(stems)]
    drafts = []
    for name, sample, known, id_column in zip(names, features, guesses, id_columns, strict=False):
        columns = tuple(column for column in known.values() if column.name != id_column)
        if not any(column.kind for column in columns):
            raise DataError(f"{sample.path}: no column can be learned from")
        drafts.append(FileDraft(name, sample, id_column, columns))
    return JobDraft(tuple(drafts), at_label)


def _named_ids(samples: Sequence[Sample], ids: Sequence[str]) -> list[str]:
    for sample in samples:
        if not any(name in sample.columns for name in ids):
            raise DataError(f"{sample.path}: has no column {' or '.join(map(repr, ids))}; name its id too")
    return [next(name for name in ids if name in sample.columns) for sample in samples]


def _labels(sample: Sample, guesses: dict[str, ColumnGuess], id_column: str, label_column: str | None) -> FileDraft:
    """Describe the label party's table: what it has beside labels is not used until somebody names it in the job.

    Such columns are often known only after the label, or made from it.
    """
    label = guessing.guess_label(sample, id_column, label_column)
    unlabelled = sample.rows - sum(label.counts)
    if unlabelled:
        raise DataError(
            f"{sample.path}: {unlabelled:,} of {sample.rows:,} records have no label in column {label.column!r}, and "
            "training needs one: remove these rows, and the job will train on the records that both tables have; or, "
            "if the labels are to come while it trains, write a job with `labels: arriving`"
        )
    unit = guessing.guess_unit(sample, id_column, label.column)
    unused = [replace(guess, kind=None, reason="not used") for guess in guesses.values()]
    columns = tuple(column for column in unused if column.name not in (id_column, label.column, unit))
    return FileDraft(LABEL_PARTY, sample, id_column, columns, label, unit)


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
