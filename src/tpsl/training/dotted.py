"""A job's fields by their dotted names, as sentences and tables have them: `training.batch_size`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def dotted(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return fields by their dotted names; a part or field that is None is not there."""
    fields: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, Mapping):
            fields |= dotted(value, f"{prefix}{key}.")
        elif value is not None:
            fields[f"{prefix}{key}"] = value
    return fields
