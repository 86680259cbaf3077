"""Files: written whole or not at all (beside their place, made durable, then renamed into it), and YAML to read.

What is written beside its place is a draft: `.NAME.new`, or `.NAME.old` on its way out. Only a process that is killed
leaves one, and `remove_drafts` removes it.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

_SAFE_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The safe loader in C, where it is there: a folder of many runs opens eight times as fast."""


class DiskFull(OSError):
    """A file cannot be written for want of space; the message names it, and `size` is how much was to be written."""

    def __init__(self, path: Path, size: int = 0) -> None:
        super().__init__(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        self.path, self.size = path, size

    def __str__(self) -> str:
        return f"{self.path}: cannot be written, the disk is full"


@contextmanager
def naming_what_does_not_fit(path: Path, size: int = 0) -> Iterator[None]:
    """Turn "no space left" and "quota exceeded", which name no file, into a `DiskFull` that names this one."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DiskFull(path, size) from error


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file; a crash at any moment leaves the old content or the new, never a part."""
    beside = path.with_name(f".{path.name}.new")
    with naming_what_does_not_fit(path, len(content)):
        try:
            write_durably(beside, content)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
        sync_folder(path.parent)


def write_durably(path: Path, content: bytes) -> None:
    """Write a file whose content is on the disk afterwards; its name is only once its folder is synchronised."""
    with naming_what_does_not_fit(path, len(content)), path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def remove_drafts(folder: Path) -> None:
    """Remove the drafts that killed processes have left in a folder and in all folders of it.

    For a folder in which nobody else writes.
    """
    for draft in [*folder.rglob(".*.new"), *folder.rglob(".*.old")]:
        if draft.is_dir() and not draft.is_symlink():
            shutil.rmtree(draft)
        else:
            draft.unlink(missing_ok=True)


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
