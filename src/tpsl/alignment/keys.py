"""The keys of a party's records, normalised so that two spellings of one key are the same, as digests.

| rule | what becomes of a value | what counts as missing |
|---|---|---|
| `exact` | nothing | an empty one |
| `id` | spaces around it are removed; Unicode normalisation form C | an empty one |
| `email` | as `id`, and lower case | one without a single @ between two parts, or with a space in it |
| `phone` | E.164: + and digits. Spaces and ( ) - . / are removed, as is a trunk (0) after the country code; 00 at the beginning is +; a number without either is national: its leading 0 is removed and the country code of the job put before it | one that is not + and 7 to 15 digits then, or national where the job has no `country` |
| `sha256` | spaces around it are removed; lower case | one that is not 64 hexadecimal digits |

These are the rules of clean rooms (Google's Customer Match, Meta's Customer information parameters: trimmed, lower
case, E.164) without their special cases for single mail providers. What is compared is a SHA-256 of the name of the key
and the normalised value; a value that is missing is in no list.
"""  # noqa: E501

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tpsl.alignment.group import POINT_BYTES, Bytes32
from tpsl.data.aligned import KeyColumns, KeyDigests, KeySource
from tpsl.data.config import AlignmentKey, KeyRule, TableFile
from tpsl.data.order import Rows
from tpsl.progress import Progress, no_progress

_DOMAIN = b"tpsl key 1\0"
_SPACES = r"\s\p{Z}"


class KeyList(NamedTuple):
    """The keys of one kind that a party has: rows of its file, ascending, and a digest for each, all different."""

    rows: Rows
    digests: KeyDigests


@dataclass(frozen=True, eq=False)
class KeyTable:
    """Records that have a key, as rows of the party's file, and digests of their keys: [n, keys, 32].

    Random bytes stand in the place of a key that a record does not have: they match nothing, and nobody can tell them
    from a key.
    """

    rows: Rows
    digests: Bytes32
    source: KeySource
    missing: Mapping[str, int] = field(default_factory=dict)
    """By the name of a key: how many rows do not have it."""
    repeated: Mapping[str, int] = field(default_factory=dict)
    """How many rows have a key that an earlier row has: they are not found by it."""

    @classmethod
    def of(cls, lists: Sequence[KeyList], source: KeySource, order: Rows | None = None) -> Self:
        """Join lists, in order of preference; `order`: all rows of the file, in the order that records shall have."""
        rows = reduce(np.union1d, (each.rows for each in lists))
        if order is not None:
            rows = order[np.isin(order, rows)]
        places = np.full(source.rows, -1, np.int64)
        places[rows] = np.arange(len(rows))
        digests = np.empty((len(rows), len(lists), POINT_BYTES), np.uint8)
        is_missing = np.ones(digests.shape[:2], bool)
        for number, each in enumerate(lists):
            digests[places[each.rows], number] = each.digests
            is_missing[places[each.rows], number] = False
        noise = os.urandom(POINT_BYTES * int(np.count_nonzero(is_missing)))
        digests[is_missing] = np.frombuffer(noise, np.uint8).reshape(-1, POINT_BYTES)
        return cls(rows, digests, source)

    def __len__(self) -> int:
        return len(self.rows)


def read_keys(
    file: TableFile, keys: tuple[AlignmentKey, ...], order: Rows | None = None, progress: Progress = no_progress
) -> KeyTable:
    """Read, normalise and digest the keys of a file, block by block; of each key its digest and its row are kept."""
    columns = KeyColumns(file, [key.name for key in keys])
    found: dict[str, list[KeyList]] = {key.name: [] for key in keys}
    for first, texts in columns.blocks(progress):
        for key in keys:
            normal = normalised(texts[key.name], key)
            present = np.flatnonzero(pc.is_valid(normal).to_numpy(zero_copy_only=False))
            found[key.name].append(KeyList(first + present, _digests(normal.drop_null(), key.name)))
    source, lists = columns.source(), []
    missing, repeated = dict[str, int](), dict[str, int]()
    for key in keys:
        rows, digests = (np.concatenate(parts) for parts in zip(*found.pop(key.name), strict=True))
        kept = _first_of_each(digests)
        missing[key.name], repeated[key.name] = source.rows - len(rows), len(rows) - len(kept)
        lists.append(KeyList(rows[kept], digests[kept]))
    return replace(KeyTable.of(lists, source, order), missing=missing, repeated=repeated)


def normalised(texts: Any, key: AlignmentKey) -> Any:
    """Return texts as the rule of a key writes them; null where one is missing or cannot be written so."""
    return _RULES[key.rule](texts.cast(pa.string()), key)


def _exact(texts: Any, key: AlignmentKey) -> Any:
    return texts


def _id(texts: Any, key: AlignmentKey) -> Any:
    return _where(_composed(pc.utf8_trim_whitespace(texts)), r"^.")


def _composed(texts: Any) -> Any:
    """Return texts in normalisation form C, by Python: some versions of PyArrow decompose instead."""
    if pc.all(pc.string_is_ascii(texts)).as_py() is not False:
        return texts
    return pa.array([text and unicodedata.normalize("NFC", text) for text in texts.to_pylist()], pa.string())


def _email(texts: Any, key: AlignmentKey) -> Any:
    return _where(pc.utf8_lower(_id(texts, key)), rf"^[^@{_SPACES}]+@[^@{_SPACES}]+$")


def _phone(texts: Any, key: AlignmentKey) -> Any:
    digits = pc.replace_substring_regex(texts, rf"[{_SPACES}\p{{Pd}}./]", "")
    digits = pc.replace_substring_regex(digits, r"^(\+|00)([0-9]+)\(0\)", r"\1\2")
    digits = pc.replace_substring_regex(digits, r"[()]", "")
    digits = pc.replace_substring_regex(digits, r"^00", "+")
    if key.country is not None:
        digits = pc.replace_substring_regex(digits, r"^0?([1-9])", rf"+{key.country}\1")
    return _where(digits, r"^\+[1-9][0-9]{6,14}$")


def _sha256(texts: Any, key: AlignmentKey) -> Any:
    return _where(pc.utf8_lower(pc.utf8_trim_whitespace(texts)), r"^[0-9a-f]{64}$")


_RULES: Mapping[KeyRule, Callable[[Any, AlignmentKey], Any]] = {
    "exact": _exact,
    "id": _id,
    "email": _email,
    "phone": _phone,
    "sha256": _sha256,
}


def _where(texts: Any, pattern: str) -> Any:
    """Return the texts that match, and null for the others."""
    return pc.if_else(pc.match_substring_regex(texts, pattern), texts, pa.scalar(None, pa.string()))


def _digests(texts: Any, name: str) -> KeyDigests:
    start = hashlib.sha256(_DOMAIN + name.encode() + b"\0")

    def digest(text: str) -> bytes:
        whole = start.copy()
        whole.update(text.encode())
        return whole.digest()

    together = b"".join(map(digest, texts.to_pylist()))
    return np.frombuffer(together, np.uint8).reshape(-1, POINT_BYTES)


def _first_of_each(digests: KeyDigests) -> npt.NDArray[np.intp]:
    """Return where each digest stands for the first time, ascending."""
    _, first = np.unique(digests.view(f"S{POINT_BYTES}").ravel(), return_index=True)
    return np.sort(first)
