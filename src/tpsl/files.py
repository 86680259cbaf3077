"""Files that are whole or absent: written beside their place, made durable, then renamed into it."""

from __future__ import annotations

import os
from pathlib import Path


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
