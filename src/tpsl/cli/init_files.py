"""What `tpsl init` writes, the job and each party's local file, and what it prints of them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import yaml

from tpsl.cli.console import Report, slim_table
from tpsl.cli.drafting import LABEL, TablesDraft, path_from
from tpsl.cli.guessing import ABSENT, MOST_CLASSES, looks_like_label
from tpsl.files import read_yaml

if TYPE_CHECKING:
    from rich.table import Table

    from tpsl.cli.drafting import TablesDraft, Wishes
    from tpsl.cli.guessing import ColumnGuess
    from tpsl.data.check import DataReport
    from tpsl.training.job import Job


_WIDTH = 100
_USUAL_FROM, _SMALLEST_BATCH, _STEPS_AN_EPOCH = 40_000, 32, 40
"""Of fewer records batches are such that an epoch has about this many steps."""
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
}
_HEAD = """\
# The agreement: every party holds this file and agrees to every line. It names columns and classes, no contents.
"""
_LABEL_FILE = """\
# The label party's own settings. The other side never sees them.
party: label
data: {data}
listen: 127.0.0.1:7443          # 0.0.0.0:7443 on every network of this machine
certificates: certs/label       # made by `tpsl certs`
max_epsilon: {epsilon:<18g} # no label may spend more in all, whatever a job asks for
"""
_FEATURE_FILE = """\
# The feature party's own settings. The other side never sees them.
party: {party}
data: {data}
connect: 127.0.0.1:7443         # the label party's host and port
certificates: certs/{party}
"""


class _Tidy(yaml.SafeDumper):
    """Lists of plain values in one line, all else in lines of their own."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Set lists in, too."""
        super().increase_indent(flow, False)


def _list(dumper: _Tidy, values: list[Any]) -> yaml.Node:
    in_one_line = not any(isinstance(value, dict) for value in values)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=in_one_line)


_Tidy.add_representer(list, _list)


def job_text(content: Mapping[str, Any]) -> str:
    """Return a job, or a part of one, as the text of its file; keys that a newcomer will ask about have a comment."""
    text = yaml.dump(dict(content), Dumper=_Tidy, sort_keys=False, allow_unicode=True, width=_WIDTH)
    return _HEAD + re.sub(r"^( *)(\w+):", _with_comment, text, flags=re.MULTILINE)


def _with_comment(found: re.Match[str]) -> str:
    comment = _COMMENTS.get(found[2])
    return found[0] if comment is None else f"{found[1]}# {comment}\n{found[0]}"


def local_text(party: str, data: str, epsilon: float) -> str:
    """Return a party's local file."""
    template = _LABEL_FILE if party == "label" else _FEATURE_FILE
    return template.format(party=party, data=_scalar(data), epsilon=epsilon)


def _scalar(value: str) -> str:
    """Return a text as YAML has it in one line."""
    return str(yaml.safe_dump(value, allow_unicode=True, width=10**6)).splitlines()[0]


@dataclass(frozen=True)
class OtherSide:
    """What the other side has sent: how it describes its table, and the ε, where it is the label party."""

    data: Mapping[str, Any] = field(default_factory=dict)
    epsilon: float | None = None


@dataclass(frozen=True)
class JobDraft:
    """A job, or the part of one that one side can write, before it is agreed on.

    Of the other side's part only the description of its table is taken, and the label party's ε: whatever else it says
    of privacy has no effect.
    """

    tables: TablesDraft
    epsilon: float | None
    other: OtherSide
    aligned: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether the tables of all parties are described."""
        return all(key in self._data(None) for key in ("features", LABEL))

    @property
    def agreed_epsilon(self) -> float:
        """The ε that the job asks for, as the label party says; 1 if it says nothing."""
        said = self.other.epsilon if self.tables.label is None else self.epsilon
        return 1.0 if said is None else float(said)

    def content(self, folder: Path | None) -> dict[str, Any]:
        """Return what stands in the job, in this folder; without one, as the other side may see it."""
        parts = {
            "data": self._data(folder),
            "privacy": {"epsilon": self.agreed_epsilon} if self.is_complete or self.tables.label else {},
            "method": "auto" if self.is_complete else None,
            "training": _training(min(file.sample.rows for file in self.tables.files)),
        }
        return {name: part for name, part in parts.items() if part}

    def _data(self, folder: Path | None) -> dict[str, Any]:
        data = {**self.other.data, **self.tables.as_dict(folder)}
        data |= {"alignment": {"mode": "both"}} if self.aligned else {}
        first = [key for key in ("source", "features", LABEL) if key in data]
        return {key: data[key] for key in dict.fromkeys([*first, *data])}

    def job(self) -> Job:
        """Return the job, to be looked at from here; one that cannot be is an error."""
        from tpsl.training.job import make_job

        return make_job(self.content(Path.cwd()), {}, "the job")

    def texts(self, folder: Path) -> dict[Path, str]:
        """Return the text of each file to be written in a folder: the job, or what the other side needs to make it,
        and the local files of the parties that are here."""
        if self.is_complete:
            found = {folder / "job.yaml": job_text(self.content(folder))}
        else:
            name = "features" if self.tables.label is None else "labels"
            found = {folder / f"{name}.part.yaml": job_text(self.content(None))}
        for file in self.tables.files:
            data = path_from(folder, file.sample.path)
            found[folder / f"{file.party}.yaml"] = local_text(file.party, data, self.agreed_epsilon)
        return found


def _training(rows: int) -> dict[str, Any]:
    """Return batches for few records; many are trained in the usual ones."""
    if rows >= _USUAL_FROM:
        return {}
    return {"batch_size": max(_SMALLEST_BATCH, 2 ** round(math.log2(rows / _STEPS_AN_EPOCH)))}


def read_part(path: Path | None) -> OtherSide:
    """Return what the other side has sent; nothing if there is none.

    Of its paths only the names are taken: they are not to be looked for here.
    """
    if path is None:
        return OtherSide()
    content = read_yaml(path, ValueError)
    data, privacy = (content.get(part, {}) if isinstance(content, dict) else None for part in ("data", "privacy"))
    epsilon = privacy.get("epsilon") if isinstance(privacy, dict) else None
    if not isinstance(data, dict) or not isinstance(epsilon, float | int | None):
        raise ValueError(f"{path}: is no part of a job; `tpsl init` of the other side writes one")
    features = data.get("features", [])
    for file in [*(features if isinstance(features, list) else []), data.get(LABEL)]:
        if isinstance(file, dict) and isinstance(file.get("path"), str):
            file["path"] = PurePath(file["path"]).name
    return OtherSide(data, epsilon)


def require_new(files: Iterable[Path]) -> None:
    """Raise if one of these files is there already: what a person has edited is not written over."""
    for file in files:
        if file.exists():
            raise ValueError(f"{file}: is there already; remove it, or choose another --out")


def guesses(draft: TablesDraft) -> Iterator[str | Table]:
    """Yield what the tables seem to hold."""
    for file in draft.files:
        records = f"{'' if file.sample.is_whole else 'the first '}{file.sample.rows:,} records"
        yield f"{file.sample.path} ({file.party}): {records}, id {file.id!r}"
        if file.label is not None:
            classes = ", ".join(
                f"{name} ({count:,})" for name, count in zip(file.label.names, file.label.counts, strict=True)
            )
            yield f"label {file.label.column!r}: {classes}"
        if file.columns:
            yield _table(file.columns)


def _table(columns: Sequence[ColumnGuess]) -> Table:
    rows = (
        (column.name, column.kind or f"– ({column.reason})", f"{column.missing:,}", f"{column.distinct:,}")
        for column in columns
    )
    numbers = ("missing", "different")
    return slim_table(("column", "taken as", *numbers), rows, numbers=numbers)


def notes(draft: TablesDraft, wishes: Wishes) -> Iterator[str]:
    """Yield what a person should know of the guesses, and how to say otherwise."""
    for file in draft.files:
        unclear = [each.name for each in file.columns if each.kind == "date" and len(each.date_orders) > 1]
        if unclear and wishes.date_order is None:
            yield f"{', '.join(unclear)}: read with the day first; --set date_order=month if the month is"
        for each in file.columns:
            if each.kind == "date" and each.short_year:
                leave_out = f"if they are no dates, --set drop={each.name}"
                yield f"{each.name}: dates as {each.short_year} are in 1969 to 2068; {leave_out}"
        if odd := [repr(text) for text in file.missing if text not in ABSENT]:
            yield f"taken for missing values, and named in the job: {', '.join(odd)}"
    at_label, label = draft.label, draft.guessed_label
    if at_label is None or label is None:
        return
    yield from _label_elsewhere(draft, label.column)
    if not label.is_sure and wishes.positive is None:
        yield f"predicted is the probability of {label.names[-1]!r}; --set positive=VALUE says otherwise"
    if at_label.unit:
        yield f"{at_label.unit!r} of the label party repeats: the ledger will state the largest ε of any of them"
    beside = [
        each.name for each in at_label.columns if each.kind is None and each.name not in (*wishes.drop, wishes.time)
    ]
    if beside:
        yield (
            f"not used of the label party: {', '.join(beside)}; what was known before the label can be named with "
            "--set numeric=, categorical= or dates="
        )
    if draft.dates_in_all and draft.features and wishes.time is None:
        yield f"to test on the latest records: --set time={draft.dates_in_all[0]}"


def _label_elsewhere(draft: TablesDraft, chosen: str) -> Iterator[str]:
    """Yield the columns of feature parties that are called as labels are, where the label is not: wrong order?"""
    for file in draft.features if not looks_like_label(chosen) else ():
        for column in file.columns:
            if looks_like_label(column.name) and 2 <= column.distinct <= MOST_CLASSES:
                yield f"{column.name!r} of {file.sample.path.name} looks like a label: the table of labels comes last"


def as_dict(draft: TablesDraft, report: DataReport) -> dict[str, Any]:
    """Return the guesses as JSON has them; how often a label occurs is not among them."""
    tables = [
        {
            "party": file.party,
            "path": str(file.sample.path),
            "id": file.id,
            "columns": {column.name: column.kind for column in file.columns},
            **({"label": file.label.column, "classes": list(file.label.names)} if file.label else {}),
        }
        for file in draft.files
    ]
    return {"tables": tables, "findings": [asdict(finding) for finding in report.findings]}


def findings(report: DataReport) -> Iterator[str]:
    """Yield what is strange about the data, a line each."""
    for finding in report.findings:
        yield f"{finding.level}: {finding.text}"


def written(job: JobDraft, files: Sequence[Path], report: DataReport) -> Report:
    """Return what was written, and what to do with it."""
    names = [str(file) for file in files]
    headline = f"Wrote {', '.join(names[:-1])} and {names[-1]}"
    if not job.is_complete:
        return Report(headline, _what_the_other_side_needs(job, files[0]))
    if not report.passed:
        return Report(f"{headline}, but the data have errors", {}, {"mend them, then": f"tpsl check {files[0]}"})
    parties = [file.party for file in job.tables.files]
    is_alone = LABEL not in parties or len(parties) == 1
    then = "edit it as you like, then send it" if is_alone else "edit it as you like, and show it"
    facts = {"the job": f"names columns and classes, no contents: {then} to the other side"}
    if job.aligned:
        counts = list(report.common_ids.values())
        common = f"{counts[0]:,} are in both tables" if len(counts) == 1 else "the parties' ids differ"
        facts["records"] = f"{common}; training takes the common ones, and all parties learn which"
    if not is_alone:
        return Report(headline, facts, _together(job, files[0]) | _apart(job, files[0], parties))
    facts["ids"] = "must be the same at both sides; if some differ, add `alignment: {mode: both}` under data"
    return Report(headline, facts, _apart(job, files[0], parties))


def _what_the_other_side_needs(job: JobDraft, part: Path) -> dict[str, str]:
    has_labels = job.tables.label is not None
    told = "of your columns and of the labels, no counts" if has_labels else "of your columns, no contents"
    theirs = "feature" if has_labels else "label"
    return {
        "send": f"{part} to the other side; it holds the names {told}",
        "there": f"tpsl init TABLE --party {theirs} --with {part.name} writes job.yaml, which both sides need",
    }


def _together(job: JobDraft, name: Path) -> dict[str, str]:
    """Return the commands with which one process is all parties."""
    align = {"find common records": f"tpsl align {name} --together"} if job.aligned else {}
    return align | {
        "train, in one process": f"tpsl train {name} --out runs/first",
        "attack it yourself": "tpsl attack runs/first",
        "make the page": "tpsl report runs/first",
    }


def _apart(job: JobDraft, name: Path, parties: Sequence[str]) -> dict[str, str]:
    """Return the commands of parties that are programs of their own."""
    certificates = f"tpsl certs {name}" + ("" if name.parent == Path() else f" --out {name.parent / 'certs'}")
    found = {"two parties: first": certificates}
    for party in sorted(parties, key=lambda party: party != LABEL):
        local = f"{name} --local {name.with_name(party + '.yaml')}"
        command = "label serve" if party == LABEL else "feature join"
        found |= {f"{party} party: align": f"tpsl align {local}"} if job.aligned else {}
        found[f"{party} party: train"] = f"tpsl {command} {local}"
    run = Path("runs") / f"{name.stem}-{LABEL}"
    found[f"{LABEL} party: test, afterwards"] = f"tpsl label evaluate {run} --local {name.with_name(LABEL + '.yaml')}"
    return found
