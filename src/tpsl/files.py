"""Files: written whole or not at all (beside their place, made durable, then renamed into it); YAML, and what JSON has.

What is written beside its place is a draft: `.NAME.new`, or `.NAME.old` on its way out. Only a process that is killed
leaves one, and `remove_drafts` removes it. Files and folders made here are for their owner only, whatever the umask:
most of them hold numbers that depend on true labels.
"""

from __future__ import annotations

import errno
import math
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeAlias

import yaml

Plain: TypeAlias = Any
"""What YAML or JSON holds."""

_FILE_MODE, _FOLDER_MODE = 0o600, 0o700
_DEEPEST_YAML = 50
_MOST_BYTES = 1 << 28
_SAFE_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The safe loader in C, where it is there: a folder of many runs opens eight times as fast."""
_SAFE_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class DiskFull(OSError):
    """A file cannot be written for want of space; the message names it and says what to do."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        self.path = path

    def __str__(self) -> str:
        return f"{self.path}: cannot be written, the disk is full; free space and give the same command again"


@contextmanager
def naming_what_does_not_fit(path: Path) -> Iterator[None]:
    """Turn "no space left" and "quota exceeded", which name no file, into a `DiskFull` that names this one."""
    try:
        yield
    except OSError as error:
        if not is_disk_full(error):
            raise
        raise DiskFull(path) from error


def is_disk_full(error: BaseException) -> bool:
    """Whether the error says that a disk is full, or a quota used up."""
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file; a crash at any moment leaves the old content or the new, never a part."""
    with replaced(path) as draft:
        write_durably(draft, content)


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Give the place of a draft, which replaces a file if it is written durably, and is removed if that fails."""
    draft = draft_of(path)
    with naming_what_does_not_fit(path):
        try:
            yield draft
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
        sync_folder(path.parent)


def draft_of(path: Path) -> Path:
    """Return where what is to be at this place is written."""
    return path.with_name(f".{path.name}.new")


def write_durably(path: Path, content: bytes) -> None:
    """Write a file whose content is on the disk afterwards; its name is only once its folder is synchronised."""
    with naming_what_does_not_fit(path), open_durably(path, "wb") as file:
        file.write(content)


@contextmanager
def open_durably(path: Path, mode: str) -> Iterator[IO[bytes]]:
    """Open a file of its owner for writing; at the end all that was written is on the disk."""
    with open_private(path, mode) as file:
        yield file
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


def open_private(path: Path, mode: str) -> IO[bytes]:
    """Open a file for writing that nobody but its owner may read, also one that was there and could be read."""
    file: IO[bytes] = open(path, mode, opener=lambda name, flags: os.open(name, flags, _FILE_MODE))  # noqa: SIM115
    os.fchmod(file.fileno(), _FILE_MODE)
    return file


def is_kept_secret(status: os.stat_result, reader: int) -> bool:
    """Whether a file is its owner's only; one that root gives to a user's group, as Kubernetes does, is that user's.

    (The rule of PostgreSQL for its keys.)
    """
    of_root = status.st_uid == 0 != reader
    return not stat.S_IMODE(status.st_mode) & (0o037 if of_root else 0o077)


def make_private_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing, durably and for their owner only; what exists stays."""
    if folder.is_dir():
        return
    make_private_folder(folder.parent)
    with naming_what_does_not_fit(folder):
        folder.mkdir(mode=_FOLDER_MODE, exist_ok=True)
    folder.chmod(_FOLDER_MODE)  # the umask takes nothing away
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make renames and new names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_plain(path: Path, most: int = _MOST_BYTES) -> bytes:
    """Return what a file holds; an `OSError` if it is a pipe or a device, or has more than `most` bytes.

    For what is found in a folder: whatever somebody has put there, reading it does not wait and fills no memory.
    """
    with _open_plain(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
    return content


def require_plain(path: Path) -> None:
    """Raise an `OSError` if no file can be read there, or it is a pipe or a device: reading one may never end."""
    _open_plain(path).close()


def _open_plain(path: Path) -> IO[bytes]:
    file: IO[bytes] = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "it is no plain file", str(path))


def read_yaml(path: Path, error: type[ValueError]) -> Plain:
    """Return what a YAML file holds; one that cannot be read, or is no YAML, is this error in one sentence.

    Aliases are refused: with them a kilobyte can stand for a value that fills the memory.
    """
    try:
        text = path.read_text(encoding="utf-8")
        _refuse_what_grows(text)
        return yaml.load(text, Loader=_SAFE_LOADER)  # noqa: S506
    except OSError as reason:
        raise error(f"{path}: cannot be read ({reason.strerror})") from reason
    except _Refused as reason:
        raise error(f"{path}, {reason}") from None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as reason:  # the last three: `!!bool maybe`
        raise error(f"{path}: is not YAML ({shortened(' '.join(str(reason).split()), 300)})") from reason


def as_yaml(content: Plain) -> str:
    """Return plain data as the text of a YAML file, its keys in their order."""
    text: str = yaml.dump(content, Dumper=_SAFE_DUMPER, sort_keys=False, allow_unicode=True)
    return text


class _Refused(Exception):
    """YAML that stands for more than it should; the message begins with the line."""


def _refuse_what_grows(text: str) -> None:
    """Raise for an alias, and for nesting beyond any use: reading it takes all of the stack."""
    depth = 0
    for event in yaml.parse(text, Loader=_SAFE_LOADER):
        line = event.start_mark.line + 1 if event.start_mark else 0
        if isinstance(event, yaml.AliasEvent):
            raise _Refused(f"line {line}: aliases are not taken; write the value out")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST_YAML:
            raise _Refused(f"line {line}: lists or mappings are nested more than {_DEEPEST_YAML} deep")


def for_json(content: Plain) -> Plain:
    """Return the same data as JSON can have it: null for infinity and NaN, paths as texts."""
    if isinstance(content, dict):
        return {key: for_json(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [for_json(value) for value in content]
    if isinstance(content, Path):
        return str(content)
    return None if isinstance(content, float) and not math.isfinite(content) else content


def shortened(text: str, most: int = 100) -> str:
    """Return a text that fits into a sentence: the middle of a long one is left out."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]} … {text[-half:]}"
