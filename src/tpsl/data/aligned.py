"""The records that parties have in common: what `tpsl align` leaves at each of them, and a table seen through it.

The folder of an alignment holds no data, only which rows of this party's own file are the common records, in the common
order:

    alignment.json     whose it is, the mode, the keys, the digest that all parties share, the file that was aligned
    rows.npy           the row (from 0) of this party's file for each record; -1: the label party does not know it
    matched_keys.npy   mode `both`: a digest of the key by which each record was found, the same at all parties
"""

from __future__ import annotations

import binascii
import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tpsl.data.config import TableData, TableFile
from tpsl.data.order import Rows
from tpsl.data.party_file import numbered_ids
from tpsl.files import make_private_folder, write_atomically
from tpsl.progress import Progress, no_progress
from tpsl.spill import Array, ArrowArray
from tpsl.tables import DataError
from tpsl.tables.columns import Place, TextsDigest, key_texts
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

    def blocks(self, progress: Progress = no_progress) -> Iterator[tuple[int, dict[str, ArrowArray]]]:
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

    def _texts(self, block: Block, column: str) -> ArrowArray:
        return key_texts(block.columns[column], Place.of(block, column), self._file.missing)


def source_now(file: TableFile, keys: Sequence[str], progress: Progress = no_progress) -> KeySource:
    """Read the key columns of a file and return what is there."""
    columns = KeyColumns(file, keys)
    for _ in columns.blocks(progress):
        pass
    return columns.source()


def _stamp(path: Location) -> tuple[int, int]:
    files = files_of(path)
    return sum(file.size for file in files), max(file.modified for file in files)


VERSION = 1
"""Rises when an older reader would misread what is written; fields may be added without that."""
UNKNOWN = -1
"""The row of a record that the label party does not know."""

_CARD, _ROWS, _MATCHED_KEYS = "alignment.json", "rows.npy", "matched_keys.npy"
_ID_BYTES = 16
_LABEL = "label"

KeyDigests = npt.NDArray[np.uint8]
"""A SHA-256 for each key: [n, 32]."""


@dataclass(frozen=True, eq=False)
class Alignment:
    """One party's view of the common records; `digest` is that of the alignment, the same at all parties.

    In mode `label-only` an id says nothing but the alignment and the position, for known and unknown records alike:
    each alignment makes new records. If known ones kept their ids they would keep their noise from alignment to
    alignment while that of unknown ones is drawn again, and comparing two runs would tell who is known. In mode `both`
    ids are made of the matched keys, the same at all parties; the label party's vault knows records by its own ids.
    """

    party: str
    mode: str
    digest: str
    keys: tuple[str, ...]
    source: KeySource
    rows: Rows = field(repr=False)
    matched: int | None = None
    """How many of the records the label party knows, where this party may know that."""
    matched_keys: KeyDigests | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def makes_new_records(self) -> bool:
        """Whether the ids are those of this alignment alone."""
        return self.matched_keys is None

    def ids(self) -> ArrowArray:
        """Return the ids of the records as a `pa.Array` of text."""
        if self.matched_keys is None:
            return pc.binary_join_element_wise(self.digest[:_ID_BYTES], numbered_ids(0, len(self)), "-")
        texts = binascii.hexlify(np.ascontiguousarray(self.matched_keys[:, :_ID_BYTES]).tobytes())
        return pa.array(np.frombuffer(texts, f"S{2 * _ID_BYTES}")).cast(pa.string())

    def labels(self, own: npt.NDArray[np.int64] | None) -> npt.NDArray[np.int64]:
        """Return the class of each record: that of its row in this party's file, and 0 if it is unknown.

        Without labels of its own, membership is the label: 1 for known records.
        """
        known = self.rows != UNKNOWN
        return known.astype(np.int64) if own is None else np.where(known, own[self.rows], 0)

    def with_one_record_for_each(self, units: ArrowArray) -> Self:
        """Return the alignment in which only the first known record of each unit is known.

        `units` say whom each row of this party's file is about. Guarantee: compare the file with the same file without
        the rows of a unit, or with other labels of these rows. The labels of the records then differ in one record at
        most, so that one draw of ε for each record costs the unit ε, however many records the other parties list of
        it, and whether it is known or not. Further records get the class of unknown ones: any other class would tell
        that the unit is known. That holds for each ε, so nobody has to look at units, and at who is known, to decide
        whether a release is permitted.
        """
        known = np.flatnonzero(self.rows != UNKNOWN)
        unit_of = units.take(pa.array(self.rows[known])).dictionary_encode().indices.to_numpy()
        first = known[np.unique(unit_of, return_index=True)[1]]
        rows = np.full_like(self.rows, UNKNOWN)
        rows[first] = self.rows[first]
        return replace(self, rows=rows)

    def save(self, folder: Path) -> None:
        """Write the alignment into a folder, for its owner only; it is whole once `alignment.json` is there."""
        make_private_folder(folder)
        (folder / _CARD).unlink(missing_ok=True)
        _write_array(folder / _ROWS, self.rows.astype("<i8", copy=False))
        if self.matched_keys is not None:
            _write_array(folder / _MATCHED_KEYS, self.matched_keys)
        card = {
            "version": VERSION,
            **{name: getattr(self, name) for name in ("party", "mode", "digest", "keys", "matched")},
            "records": len(self),
            "has_matched_keys": self.matched_keys is not None,
            "source": asdict(self.source),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        write_atomically(folder / _CARD, json.dumps(card, indent=1, ensure_ascii=False).encode())

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read an alignment; one that is missing, unfinished or damaged is an error."""
        if not (folder / _CARD).is_file():
            raise DataError(
                f"{folder}: there is no finished alignment; make it with `tpsl align`, or name its folder as "
                "`alignment` in the local file"
            )
        try:
            card = json.loads((folder / _CARD).read_text(encoding="utf-8"))
            if card["version"] != VERSION:
                raise DataError(f"{folder}: is of version {card['version']}, and this program reads version {VERSION}")
            matched_keys = None
            if card["has_matched_keys"]:
                matched_keys = _read_array(folder / _MATCHED_KEYS, np.dtype(np.uint8), (card["records"], 32))
            alignment = cls(
                card["party"],
                card["mode"],
                card["digest"],
                tuple(card["keys"]),
                KeySource(**card["source"]),
                _read_array(folder / _ROWS, np.dtype("<i8"), (card["records"],)),
                card["matched"],
                matched_keys,
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{folder}: cannot be read, it is no alignment ({error})") from error
        alignment._require_rows(folder)
        return alignment

    def _require_rows(self, folder: Path) -> None:
        known = self.rows[self.rows != UNKNOWN]
        may_be_unknown = self.mode == "label-only" and self.party == _LABEL
        fit = len(known) == 0 or 0 <= known.min() <= known.max() < self.source.rows
        if not fit or len(np.unique(known)) < len(known) or not (may_be_unknown or len(known) == len(self)):
            raise DataError(f"{folder / _ROWS}: is damaged, it does not hold rows of a file of {self.source.rows:,}")


def is_aligned(folder: Path) -> bool:
    """Return whether a folder holds a finished alignment."""
    return (folder / _CARD).is_file()


def alignment_of(config: TableData, file: TableFile, progress: Progress = no_progress) -> Alignment | None:
    """Return the alignment through which a party of a job sees its file; None: the job has none.

    One of another job or party, or of a file whose keys have changed since, is an error.
    """
    if config.alignment is None:
        return None
    if config.alignment.mode == "size":
        raise DataError("data.alignment.mode is size: only the number of common records was found, nothing to train on")
    party = _LABEL if file is config.label else file.party
    if file.alignment is None:
        raise DataError(f"{party!r} needs the folder of its alignment: `alignment` in its local file")
    files_of(file.path)  # or an error
    found, folder = Alignment.load(file.alignment), file.alignment
    names = tuple(key.name for key in config.alignment.keys)
    for what, is_now, wanted in (
        ("party", found.party, party),
        ("mode", found.mode, config.alignment.mode),
        ("keys", ", ".join(found.keys), ", ".join(names)),
    ):
        if is_now != wanted:
            raise DataError(f"{folder}: is an alignment of {what} {is_now}, and the job has {wanted}: align again")
    untouched = found.source.is_untouched(file.path)
    if not untouched and not found.source.has_same_keys(source_now(file, names, progress)):
        raise DataError(
            f"{file.path}: has other keys or rows than when {folder} was made from {found.source.rows:,} rows: "
            "align again"
        )
    return found


def _write_array(path: Path, array: Array) -> None:
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    write_atomically(path, content.getvalue())


def _read_array(path: Path, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> Array:
    array: Array = np.load(path, allow_pickle=False)
    if array.dtype != dtype or array.shape != shape:
        raise ValueError(f"{path.name} holds {array.dtype} of shape {array.shape}, not {dtype} of shape {shape}")
    return array
