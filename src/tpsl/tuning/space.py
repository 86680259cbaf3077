"""The space that `tpsl tune` searches: a list of changes to a job, and short names for what they change."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tpsl.files import read_yaml
from tpsl.training.job import Job, make_job

_BOTH_OPTIMIZERS = "training.feature_optimizer.", "training.label_optimizer."
_METHOD = "pretrain.method"


def changed(job: Job, changes: Mapping[str, Mapping[str, Any]], origin: str) -> Job:
    """Return a job with single fields of its parts changed; an error names the origin and the field."""
    # Without nulls: a part that is null (`pretrain`) would not take fields.
    content = job.model_dump(mode="json", exclude_none=True)
    return make_job(content, {part: dict(fields) for part, fields in changes.items()}, origin)


def load_space(path: Path) -> list[Any]:
    """Read a space: a YAML list, each entry the parts and fields of the job that a configuration changes."""
    content = read_yaml(path, ValueError)
    if not isinstance(content, list) or not content:
        raise ValueError(f"{path}: a space is a list, each entry the fields of a job that a configuration changes")
    return content


def describe(jobs: Sequence[Job]) -> list[str]:
    """Return a name for each of several different jobs: the fields in which they differ."""
    flat = [_flat(job.model_dump(mode="json")) for job in jobs]
    varying = [key for key in dict.fromkeys(key for fields in flat for key in fields) if _varies(key, flat)]
    names = [", ".join(dict.fromkeys(_field(key, fields) for key in varying)) for fields in flat]
    return [name or "the job as it is" for name in names]


def _field(key: str, fields: dict[str, Any]) -> str:
    """Return a field and its value; one that both optimisers have is named with both values, or once if they agree."""
    feature, label = _BOTH_OPTIMIZERS
    name = key.removeprefix(feature).removeprefix(label)
    if name != key:
        values = dict.fromkeys(_text(fields.get(optimizer + name)) for optimizer in _BOTH_OPTIMIZERS)
        return f"{name.replace('_', ' ')} {' and '.join(values)}"
    name = key.partition(".")[2].replace(_METHOD, "pretrain")
    return f"{name.replace('_', ' ')} {_text(fields.get(key))}"


def _varies(key: str, flat: Sequence[dict[str, Any]]) -> bool:
    """Of a part that some jobs do not have (`pretrain`) the method says so, and its other fields need not."""
    given = {json.dumps(fields[key]) for fields in flat if key in fields}
    missing = key.endswith(_METHOD) and any(key not in fields for fields in flat)
    return len(given) > 1 or missing


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _flat(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return fields by their dotted names; a part that is not there has none."""
    fields: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, dict):
            fields |= _flat(value, f"{prefix}{key}.")
        elif value is not None:
            fields[f"{prefix}{key}"] = value
    return fields
