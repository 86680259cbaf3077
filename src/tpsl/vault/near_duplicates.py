"""Near-duplicate ids: probably one record under two ids, for which a release draws twice. An import warns of them.

Two ids are near-duplicates if they differ only in spaces, letter case, Unicode normalisation (NFKC), zeros before the
only number in them, or a fraction of zeros: `007` and `7`, `C07` and `c 7`, `1` and `1.0`. Nothing is ever merged or
refused: whether two ids are one record is for people to say.

The new ids of an import are compared with each other by 64-bit hashes of their common forms, in bounded memory, unless
all are of one style (plain integers, hexadecimal digests, padded numbers), in which no two are near-duplicates. They
are compared with earlier ids by a look-up of the common form: it finds an earlier `7`, and not an earlier `007`.
"""

import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from tpsl.vault.blocks import count_records, id_at, read_blocks
from tpsl.vault.coverage import PositionSet
from tpsl.vault.id_index import find_positions
from tpsl.vault.pairs import Pairs
from tpsl.vault.store import Store
from tpsl.vault.texts import HashKey, Texts

_BEYOND_ASCII, _SPACED, _UPPER, _LOWER, _PADDED, _ZERO_FRACTION = (1 << bit for bit in range(6))
_PADDED_ID = re.compile(rb"(?:\A|\0)[^0-9\0]*0[0-9]+(?=\0)")
_ZERO_FRACTION_END = re.compile(rb"\.0+\0")
_SPACE = r"[\s\x{200B}-\x{200D}\x{2028}\x{2029}\x{2060}\x{FEFF}]+"

_Numbers = npt.NDArray[np.int64]


def warn(sentence: str) -> None:
    """Issue a Python warning, where nobody else is to be told."""
    warnings.warn(sentence, stacklevel=2)


class NearDuplicates:
    """The near-duplicates among the new ids of one import, inside its transaction."""

    def __init__(self, store: Store) -> None:
        self._store, self._known = store, count_records(store)
        self._styles, self._found = Styles(), PositionSet()
        self._example: tuple[int, int] | None = None

    def take(self, ids: Texts, first: int) -> None:
        """Take in new ids, whose positions begin with `first`, before the index of ids has them."""
        self._styles = self._styles.joined(ids)
        if self._known:
            forms = common_forms(ids)
            rows = np.flatnonzero(~forms.equal(ids))
            earlier = find_positions(self._store, forms.take(rows))
            self._note(first + rows[earlier >= 0], earlier[earlier >= 0])

    def sentence(self) -> str:
        """The warning about all ids that were taken in, once the vault has them; empty: no two are near-duplicates."""
        if not self._styles.all_differ:
            for later, earlier in self._alike(block.ids for block in read_blocks(self._store, self._known)):
                self._note(later, earlier)
        if self._example is None:
            return ""
        second, first = (id_at(self._store, position) for position in self._example)
        count = len(self._found)
        return (
            f"{'1 id is a near-duplicate' if count == 1 else f'{count:,} ids are near-duplicates'} of an earlier one, "
            f"for example {second!r} of {first!r}: they differ only in spaces, letter case, leading zeros, '.0' or "
            "Unicode form, and are probably one record, whose label a release then draws twice, for twice its ε"
        )

    def _note(self, later: _Numbers, earlier: _Numbers) -> None:
        """Note records, by position, and for each an earlier one that it is a near-duplicate of."""
        if len(later):
            at = int(later.argmin())
            found = int(later[at]), int(earlier[at])
            self._example = min(self._example or found, found)
            self._found.add(later)

    def _alike(self, parts: Iterable[Texts]) -> Iterator[tuple[_Numbers, _Numbers]]:
        """Positions of new records, and of the first new one with the same common form, where that is another."""
        key, start = HashKey.random(), self._known
        with Pairs(self._store.folder) as forms:
            for ids in parts:
                forms.take(common_forms(ids).hashes(key), np.arange(start, start + len(ids)))
                start += len(ids)
            for part in forms.parts():
                hashed, at = part[np.argsort(part[:, 0], kind="stable")].T
                first_of_run = np.flatnonzero(np.diff(hashed, prepend=~hashed[:1]))
                run = np.repeat(first_of_run, np.diff(first_of_run, append=len(hashed)))
                later = np.flatnonzero(run != np.arange(len(run)))
                yield at[later].astype(np.int64), at[run[later]].astype(np.int64)


@dataclass(frozen=True)
class Styles:
    """How ids are written: a summary that grows with them and takes no space."""

    styles: int = 0
    shortest: int = 1 << 62
    longest: int = 0

    def joined(self, ids: Texts) -> "Styles":
        """The summary of these ids too."""
        if not len(ids):
            return self
        shortest, longest = ids.lengths()
        return Styles(self.styles | _styles_of(ids), min(self.shortest, shortest), max(self.longest, longest))

    @property
    def all_differ(self) -> bool:
        """Whether different ids of these styles have different common forms, so that no two are near-duplicates."""
        one_case = self.styles & (_UPPER | _LOWER) != _UPPER | _LOWER
        no_padding_matters = not self.styles & _PADDED or self.shortest == self.longest
        return one_case and no_padding_matters and not self.styles & (_BEYOND_ASCII | _SPACED | _ZERO_FRACTION)


def _styles_of(ids: Texts) -> int:
    text = np.frombuffer(ids.to_bytes(), np.uint8)
    return (
        (_BEYOND_ASCII if (text > 127).any() else 0)
        | (_SPACED if ((text > 0) & (text <= ord(" "))).any() else 0)
        | (_UPPER if ((text >= ord("A")) & (text <= ord("Z"))).any() else 0)
        | (_LOWER if ((text >= ord("a")) & (text <= ord("z"))).any() else 0)
        | (_PADDED if _has_padded(text) else 0)
        | (_ZERO_FRACTION if (text == ord(".")).any() and _ZERO_FRACTION_END.search(text.data) else 0)
    )


def _has_padded(text: npt.NDArray[np.uint8]) -> bool:
    """Whether any id has zeros before the number that it ends with, the only one in it."""
    is_digit = (text >= ord("0")) & (text <= ord("9"))
    begins = np.flatnonzero((text[:-1] == ord("0")) & is_digit[1:])
    begins = begins[~is_digit[np.maximum(begins - 1, 0)] | (begins == 0)]
    return bool(begins.size) and _PADDED_ID.search(text.data) is not None


def common_forms(ids: Texts) -> Texts:
    """What ids that are near-duplicates have in common.

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
    if styles & (_BEYOND_ASCII | _SPACED | _ZERO_FRACTION):
        texts = pc.replace_substring_regex(texts, r"^(-?\d+)\.0+$", r"\1")
    if styles & (_BEYOND_ASCII | _SPACED | _ZERO_FRACTION | _PADDED):
        texts = pc.replace_substring_regex(texts, r"^(\D*)0+(\d+)$", r"\1\2")
    return Texts.of(texts)
