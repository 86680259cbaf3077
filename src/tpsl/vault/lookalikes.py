"""Ids that look alike: probably one record under two names, which a release would draw for twice.

Two ids look alike if they differ only in spaces, letter case, Unicode normalisation (NFKC), or zeros before the only
number in them: `007` and `7`, `C07` and `c 7`. Each such id is stored with the first record it looks like. Nothing is
ever merged: whether two names are one record is for people to say.

Where all ids are of one style (plain integers, hexadecimal digests, padded numbers) no two can look alike, and that is
known from a summary of the ids. Otherwise their common forms are compared by 64-bit hashes, in bounded memory, all of
them at each addition: about a second for a million records.
"""

import re
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from tpsl.vault import coverage
from tpsl.vault.blocks import CHUNK, by_chunk, id_at, read_blocks
from tpsl.vault.canonical import ids_as_text
from tpsl.vault.coverage import PositionSet
from tpsl.vault.errors import VaultError
from tpsl.vault.pairs import Pairs
from tpsl.vault.texts import HashKey, Texts

SCHEMA = """
CREATE TABLE id_styles (records INTEGER, styles INTEGER, shortest INTEGER, longest INTEGER);
CREATE TABLE lookalikes (position INTEGER PRIMARY KEY, earlier INTEGER NOT NULL);
"""
_ROWS = 65_536

_BEYOND_ASCII, _SPACED, _UPPER, _LOWER, _PADDED = (1 << bit for bit in range(5))
_PADDED_ID = re.compile(rb"(?:\A|\0)[^0-9\0]*0[0-9]+(?=\0)")
_SPACE = r"[\s\x{200B}-\x{200D}\x{2028}\x{2029}\x{2060}\x{FEFF}]+"


@dataclass(frozen=True)
class Lookalikes:
    """How many records have an id that looks like an earlier one's, with the first two ids as an example."""

    records: int
    example: tuple[str, str]

    def __str__(self) -> str:
        first, second = self.example
        count = "1 id looks" if self.records == 1 else f"{self.records:,} ids look"
        return (
            f"{count} like an earlier one, for example {second!r} like {first!r}: the difference is only in spaces, "
            "letter case, leading zeros or Unicode form, and both are probably one record"
        )


@dataclass(frozen=True)
class Styles:
    """How the first ids of a vault are written: a summary that grows with them and takes no space."""

    records: int = 0
    styles: int = 0
    shortest: int = 1 << 62
    longest: int = 0

    def joined(self, ids: Texts) -> "Styles":
        """The summary of these ids too."""
        if not len(ids):
            return self
        shortest, longest = ids.lengths()
        return Styles(
            self.records + len(ids),
            self.styles | _styles_of(ids),
            min(self.shortest, shortest),
            max(self.longest, longest),
        )

    @property
    def all_differ(self) -> bool:
        """Whether different ids of these styles have different common forms, so that no two look alike."""
        one_case = self.styles & (_UPPER | _LOWER) != _UPPER | _LOWER
        no_padding_matters = not self.styles & _PADDED or self.shortest == self.longest
        return one_case and no_padding_matters and not self.styles & (_BEYOND_ASCII | _SPACED)


def _styles_of(ids: Texts) -> int:
    text = np.frombuffer(ids.to_bytes(), np.uint8)
    return (
        (_BEYOND_ASCII if (text > 127).any() else 0)
        | (_SPACED if ((text > 0) & (text <= ord(" "))).any() else 0)
        | (_UPPER if ((text >= ord("A")) & (text <= ord("Z"))).any() else 0)
        | (_LOWER if ((text >= ord("a")) & (text <= ord("z"))).any() else 0)
        | (_PADDED if _has_padded(text) else 0)
    )


def _has_padded(text: npt.NDArray[np.uint8]) -> bool:
    """Whether any id has zeros before the number that it ends with, the only one in it."""
    is_digit = (text >= ord("0")) & (text <= ord("9"))
    begins = np.flatnonzero((text[:-1] == ord("0")) & is_digit[1:])
    begins = begins[~is_digit[np.maximum(begins - 1, 0)] | (begins == 0)]
    return bool(begins.size) and _PADDED_ID.search(text.data) is not None


def common_forms(ids: Texts) -> Texts:
    """What ids that look alike have in common.

    A space between two digits stays, because `1 23` and `12 3` are two keys; so do zeros of all but a single number.
    """
    styles = _styles_of(ids)
    texts: Any = ids.to_arrow()
    if styles & _BEYOND_ASCII:
        texts = pc.utf8_normalize(texts, "NFKC")
    if styles & (_BEYOND_ASCII | _UPPER):
        texts = pc.utf8_lower(texts)
    if styles & (_BEYOND_ASCII | _SPACED):
        for _ in range(2):  # twice, since a digit can stand between two spaces
            texts = pc.replace_substring_regex(texts, rf"(\d){_SPACE}(\d)", "\\1\0\\2")
        texts = pc.replace_substring(pc.replace_substring_regex(texts, _SPACE, ""), "\0", " ")
    if styles & (_BEYOND_ASCII | _SPACED | _PADDED):
        texts = pc.replace_substring_regex(texts, r"^(\D*)0+(\d+)$", r"\1\2")
    return Texts.of(texts)


def known_styles(connection: sqlite3.Connection) -> Styles:
    """The summary of the ids that `examine` has seen."""
    row = connection.execute("SELECT records, styles, shortest, longest FROM id_styles").fetchone()
    return Styles(*row) if row else Styles()


def examine(connection: sqlite3.Connection, folder: Path, styles: Styles | None = None) -> None:
    """Find the records whose ids look like earlier ones, if any came since the last look; inside a transaction.

    `styles` is the summary of all ids, for who has it; ids that it does not cover are read from the vault.
    """
    known = known_styles(connection)
    styles = known if styles is None else styles
    for block in read_blocks(connection, styles.records):
        styles = styles.joined(block.ids)
    if styles.records == known.records:
        return
    connection.execute("DELETE FROM id_styles")
    connection.execute("INSERT INTO id_styles VALUES (?, ?, ?, ?)", astuple(styles))
    if not styles.all_differ:
        pairs = _alike((block.ids for block in read_blocks(connection)), folder)
        connection.executemany("INSERT OR IGNORE INTO lookalikes VALUES (?, ?)", pairs.tolist())


def found(connection: sqlite3.Connection) -> Lookalikes | None:
    """What `examine` has found; None if no two ids look alike, or `examine` has not run yet."""
    return _described(connection, _pairs(connection))


def refuse_second_draws(connection: sqlite3.Connection, folder: Path, wanted: PositionSet) -> None:
    """Raise a `VaultError` if drawing for the records at these positions would draw twice for look-alikes."""
    examine(connection, folder)
    pairs = _pairs(connection)
    drawn = np.empty_like(pairs, np.bool_)
    now = np.zeros_like(drawn)
    for side in range(2):
        for chunk, at in by_chunk(pairs[:, side]):
            places = pairs[at, side] % CHUNK
            asked = wanted.mask(chunk)
            now[at, side] = asked[places]
            drawn[at, side] = (asked | coverage.covered_by(coverage.masks(connection, chunk)))[places]
    _refuse(_described(connection, pairs[drawn.all(axis=1) & now.any(axis=1)]))


def refuse_alike(ids: Any) -> None:
    """Raise the same for an Arrow column of ids that no vault has yet."""

    def portions() -> Iterator[Texts]:
        for start in range(0, len(ids), _ROWS):
            yield ids_as_text(ids.slice(start, _ROWS))

    styles = Styles()
    for portion in portions():
        styles = styles.joined(portion)
    if not styles.all_differ and len(pairs := _alike(portions(), Path(tempfile.gettempdir()))):
        second, first = pairs[0].tolist()
        _refuse(Lookalikes(len(pairs), (ids[first].as_py(), ids[second].as_py())))


def _refuse(alike: Lookalikes | None) -> None:
    if alike is not None:
        raise VaultError(
            f"{alike}; noise drawn twice for one label costs twice ε, so this is refused unless you allow look-alikes "
            "(--set local.allow_lookalikes=true)"
        )


def _pairs(connection: sqlite3.Connection) -> npt.NDArray[np.int64]:
    """(position, position of the first record that it looks like), in order."""
    rows = connection.execute("SELECT position, earlier FROM lookalikes ORDER BY position").fetchall()
    return np.array(rows, np.int64).reshape(-1, 2)


def _described(connection: sqlite3.Connection, pairs: npt.NDArray[np.int64]) -> Lookalikes | None:
    if not len(pairs):
        return None
    position, earlier = pairs[0].tolist()
    return Lookalikes(len(pairs), (id_at(connection, earlier), id_at(connection, position)))


def _alike(portions: Iterable[Texts], folder: Path) -> npt.NDArray[np.int64]:
    """(position, first position with the same common form) of every record that has such an earlier one."""
    key, start, found = HashKey.random(), 0, [np.zeros((0, 2), np.int64)]
    with Pairs(folder) as forms:
        for ids in portions:
            forms.take(common_forms(ids).hashes(key), np.arange(start, start + len(ids)))
            start += len(ids)
        for part in forms.parts():
            hashed, at = part[np.argsort(part[:, 0], kind="stable")].T
            first_of_run = np.flatnonzero(np.diff(hashed, prepend=~hashed[:1]))
            run = np.repeat(first_of_run, np.diff(first_of_run, append=len(hashed)))
            later = np.flatnonzero(run != np.arange(len(run)))
            found.append(np.stack([at[later], at[run[later]]], axis=1).astype(np.int64))
    pairs = np.concatenate(found)
    return pairs[np.argsort(pairs[:, 0])]
