"""Files: written whole or not at all (beside their place, made durable, then renamed into it), and YAML to read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

_SAFE_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The safe loader in C, where it is there: a folder of many runs opens eight times as fast."""


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file; a crash at any moment leaves the old content or the new, never a part."""
    beside = path.with_name(f".{path.name}.new")
    try:
        write_durably(beside, content)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_durably(path: Path, content: bytes) -> None:
    """Write a file whose content is on the disk afterwards; its name is only once its folder is synchronised."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make renames and new names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_yaml(path: Path, error: type[ValueError]) -> Any:
    """Return what a YAML file holds; one that cannot be read, or is no YAML, is this error in one sentence."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_SAFE_LOADER)  # noqa: S506
    except OSError as reason:
        raise error(f"{path}: cannot be read ({reason.strerror})") from reason
    except (yaml.YAMLError, UnicodeDecodeError) as reason:
        raise error(f"{path}: is not YAML ({' '.join(str(reason).split())})") from reason
