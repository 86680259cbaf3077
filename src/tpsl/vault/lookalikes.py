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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tpsl.vault import coverage
from tpsl.vault.errors import VaultError
from tpsl.vault.storage import CHUNK, count_records, id_at, ids_between

# Vaults of older versions have neither table: the first is made at the first look, the second with the first find.
_STYLES = "CREATE TABLE IF NOT EXISTS id_styles (records INTEGER, styles INTEGER, shortest INTEGER, longest INTEGER)"
_PAIRS = "CREATE TABLE IF NOT EXISTS lookalikes (position INTEGER PRIMARY KEY, earlier INTEGER NOT NULL)"
_ROWS = 65_536
_HASHES_AT_ONCE = 1 << 24

_BEYOND_ASCII, _SPACED, _UPPER, _LOWER, _PADDED = (1 << bit for bit in range(5))
_PADDED_ID = re.compile(r"\n[^0-9\n]*0[0-9]+\n")
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

    def joined(self, ids: Sequence[str]) -> "Styles":
        """The summary of these ids too."""
        if not ids:
            return self
        lengths = set(map(len, ids))
        shortest, longest = min(self.shortest, *lengths), max(self.longest, *lengths)
        return Styles(self.records + len(ids), self.styles | _styles_of(ids), shortest, longest)

    @property
    def all_differ(self) -> bool:
        """Whether different ids of these styles have different common forms, so that no two look alike."""
        one_case = self.styles & (_UPPER | _LOWER) != _UPPER | _LOWER
        no_padding_matters = not self.styles & _PADDED or self.shortest == self.longest
        return one_case and no_padding_matters and not self.styles & (_BEYOND_ASCII | _SPACED)


def _styles_of(ids: Sequence[str]) -> int:
    text = "".join(ids)
    return (
        (0 if text.isascii() else _BEYOND_ASCII)
        | (0 if text.split(None, 1) == [text] else _SPACED)
        | (0 if text == text.lower() else _UPPER)
        | (0 if text == text.upper() else _LOWER)
        | (_PADDED if _PADDED_ID.search("\n" + "\n\n".join(ids) + "\n") else 0)
    )


def common_forms(ids: Sequence[str]) -> list[str]:
    """What ids that look alike have in common.

    A space between two digits stays, because `1 23` and `12 3` are two keys; so do zeros of all but a single number.
    """
    styles = _styles_of(ids)
    texts: Any = pa.array(ids, pa.large_string())
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
    forms: list[str] = texts.to_pylist()
    return forms


def known_styles(connection: sqlite3.Connection) -> Styles:
    """The summary of the ids that `examine` has seen; inside a transaction that writes."""
    connection.execute(_STYLES)
    row = connection.execute("SELECT records, styles, shortest, longest FROM id_styles").fetchone()
    return Styles(*row) if row else Styles()


def examine(connection: sqlite3.Connection, styles: Styles | None = None) -> None:
    """Find the records whose ids look like earlier ones, if any came since the last look; inside a transaction.

    `styles` is the summary of all ids, for who has it; ids that it does not cover are read from the vault.
    """
    known = known_styles(connection)
    styles = known if styles is None else styles
    for ids in _ids(connection, styles.records):
        styles = styles.joined(ids)
    if styles.records == known.records:
        return
    connection.execute("DELETE FROM id_styles")
    connection.execute("INSERT INTO id_styles VALUES (?, ?, ?, ?)", astuple(styles))
    if not styles.all_differ and len(pairs := _alike(lambda: _ids(connection, 0), styles.records)):
        connection.execute(_PAIRS)
        connection.executemany("INSERT OR IGNORE INTO lookalikes VALUES (?, ?)", pairs.tolist())


def found(connection: sqlite3.Connection) -> Lookalikes | None:
    """What `examine` has found; None if no two ids look alike, or `examine` has not run yet."""
    return _described(connection, _pairs(connection))


def refuse_second_draws(connection: sqlite3.Connection, wanted: dict[int, bytes]) -> None:
    """Raise a `VaultError` if drawing for these records (packed masks by chunk) would draw twice for look-alikes."""
    examine(connection)
    pairs = _pairs(connection)
    drawn = np.empty_like(pairs, np.bool_)
    now = np.zeros_like(drawn)
    for side in range(2):
        for chunk, at in coverage.by_chunk(pairs[:, side]):
            places = pairs[at, side] % CHUNK
            asked = coverage.unpack(wanted[chunk]) if chunk in wanted else np.zeros(CHUNK, np.bool_)
            now[at, side] = asked[places]
            drawn[at, side] = (asked | coverage.covered_by(coverage.masks(connection, chunk)))[places]
    _refuse(_described(connection, pairs[drawn.all(axis=1) & now.any(axis=1)]))


def refuse_alike(ids: Any) -> None:
    """Raise the same for an Arrow column of ids that no vault has yet."""

    def portions() -> Iterator[list[str]]:
        for start in range(0, len(ids), _ROWS):
            yield ids.slice(start, _ROWS).to_pylist()

    styles = Styles()
    for portion in portions():
        styles = styles.joined(portion)
    if not styles.all_differ and len(pairs := _alike(portions, len(ids))):
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
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'lookalikes'").fetchone():
        return np.empty((0, 2), np.int64)
    rows = connection.execute("SELECT position, earlier FROM lookalikes ORDER BY position").fetchall()
    return np.array(rows, np.int64).reshape(-1, 2)


def _described(connection: sqlite3.Connection, pairs: npt.NDArray[np.int64]) -> Lookalikes | None:
    if not len(pairs):
        return None
    position, earlier = pairs[0].tolist()
    return Lookalikes(len(pairs), (id_at(connection, earlier), id_at(connection, position)))


def _ids(connection: sqlite3.Connection, first: int) -> Iterator[list[str]]:
    """The ids from a position on, in portions."""
    for start in range(first, count_records(connection), _ROWS):
        yield ids_between(connection, start, start + _ROWS)


def _alike(portions: Callable[[], Iterator[list[str]]], records: int) -> npt.NDArray[np.int64]:
    """(position, first position with the same common form) of every record that has such an earlier one."""
    parts = -(-records // _HASHES_AT_ONCE)
    return np.concatenate([_alike_in_part(portions(), part, parts) for part in range(parts)])


def _alike_in_part(portions: Iterator[list[str]], part: int, parts: int) -> npt.NDArray[np.int64]:
    """The same for one part of all hashes, so that memory is bounded."""
    hashes, positions, start = [], [], 0
    for ids in portions:
        hashed = np.fromiter(map(hash, common_forms(ids)), np.int64, len(ids))
        mine = np.flatnonzero(hashed % parts == part)
        hashes.append(hashed[mine])
        positions.append(mine + start)
        start += len(ids)
    hashed, at = np.concatenate(hashes), np.concatenate(positions)
    order = np.argsort(hashed, kind="stable")
    hashed, at = hashed[order], at[order]
    first_of_run = np.flatnonzero(np.r_[True, hashed[1:] != hashed[:-1]])
    run = np.repeat(first_of_run, np.diff(np.r_[first_of_run, len(hashed)]))
    later = np.flatnonzero(run != np.arange(len(run)))
    pairs = np.stack([at[later], at[run[later]]], axis=1)
    return pairs[np.argsort(pairs[:, 0])]
