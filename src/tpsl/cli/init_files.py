"""The files that `tpsl init` writes: the job, and each party's local file, with comments for who edits them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import yaml

from tpsl.cli.drafting import LABEL, TablesDraft, path_from
from tpsl.files import read_yaml

if TYPE_CHECKING:
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
