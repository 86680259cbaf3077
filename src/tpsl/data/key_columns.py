"""The columns of a party's file by which it finds its common records with others, and what they held when it did."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tpsl.data.config import TableFile
from tpsl.progress import Progress, no_progress
from tpsl.tables.columns import Place, key_texts
from tpsl.tables.digest import TextsDigest
from tpsl.tables.locations import Location, files_of
from tpsl.tables.reading import Block, dialect_of, read_blocks


@dataclass(frozen=True)
class KeySource:
    """A table as it was when its keys were read: number of rows, bytes, time of the last change, digest of the keys."""

    rows: int
    bytes: int
    modified: int
    digest: str

    def is_untouched(self, path: Location) -> bool:
        """Return whether the table has not been written since, as far as the sizes and times of its files tell."""
        return (self.bytes, self.modified) == _stamp(path)

    def has_same_keys(self, other: KeySource) -> bool:
        """Return whether both have the same keys in the same rows."""
        return (self.rows, self.digest) == (other.rows, other.digest)


class KeyColumns:
    """The key columns of a file, read block by block; when all are read, `source` says what was there."""

    def __init__(self, file: TableFile, keys: Sequence[str]) -> None:
        self._file, self._dialect = file, dialect_of(file.path)
        self._columns = {key: file.key_columns[key] for key in keys}
        self._digests = {key: TextsDigest(b"tpsl keys") for key in keys}
        self._rows = 0

    def blocks(self, progress: Progress = no_progress) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the first row (from 0) of each block and the texts of its keys by name, null where one is missing."""
        wanted = list(dict.fromkeys(self._columns.values()))
        for block in read_blocks(self._file.path, wanted, self._dialect, progress=progress):
            texts = {key: self._texts(block, column) for key, column in self._columns.items()}
            for key, digest in self._digests.items():
                digest.update(texts[key])
            self._rows += block.rows
            yield block.first - 1, texts

    def source(self) -> KeySource:
        """Return what was there."""
        together = hashlib.sha256(b"".join(digest.digest() for digest in self._digests.values()))
        return KeySource(self._rows, *_stamp(self._file.path), together.hexdigest())

    def _texts(self, block: Block, column: str) -> Any:
        place = Place.of(block, column, self._dialect)
        return key_texts(block.columns[column], place, self._file.missing)


def source_now(file: TableFile, keys: Sequence[str], progress: Progress = no_progress) -> KeySource:
    """Read the key columns of a file and return what is there."""
    columns = KeyColumns(file, keys)
    for _ in columns.blocks(progress):
        pass
    return columns.source()


def _stamp(path: Location) -> tuple[int, int]:
    files = files_of(path)
    return sum(file.size for file in files), max(file.modified for file in files)
