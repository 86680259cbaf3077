"""Near-duplicate ids: probably one record under two ids, for which a release draws twice. An import warns of them.

Two ids are near-duplicates if they differ only in spaces, letter case, Unicode normalisation (NFKC), zeros before the
only number in them, or a fraction of zeros: `007` and `7`, `C07` and `c 7`, `1` and `1.0`. Nothing is ever merged or
refused: whether two ids are one record is for people to say.

Of the new ids of an import the first four million count that are not spelled in their common form. They are compared
with each other, and with all ids, new and stored, by a look-up of the common form. So a new `007` is found beside a
stored `7`, and a new `7` beside a stored `007` is not: stored ids are not read again.
"""

import warnings

import numpy as np
import pyarrow.compute as pc

from tpsl.tables import ArrowArray
from tpsl.vault.blocks import Positions, id_at
from tpsl.vault.id_index import find_positions
from tpsl.vault.store import Store
from tpsl.vault.texts import Texts

_MOST = 1 << 22
_NOT_PLAIN = r"[^!-@\[-~]|\.0|(^|\D)0\d"
"""In each id that is not spelled in its common form: upper case, a space, a sign beyond ASCII, `.0`, a leading zero."""
_SPACE = r"[\s\x{200B}-\x{200D}\x{2028}\x{2029}\x{2060}\x{FEFF}]+"


def warn(sentence: str) -> None:
    """Issue a Python warning, where nobody else is to be told."""
    warnings.warn(sentence, stacklevel=2)


class NearDuplicates:
    """The near-duplicates among the new ids of one import, inside its transaction."""

    def __init__(self, store: Store) -> None:
        self._store, self._forms, self._positions = store, Texts.of([]), np.zeros(0, np.int64)

    def take(self, ids: Texts, positions: Positions) -> None:
        """Take in new ids and their positions."""
        suspects = np.flatnonzero(pc.match_substring_regex(ids.to_arrow(), _NOT_PLAIN))[: _MOST - len(self._forms)]
        if len(suspects):
            forms = common_forms(ids.take(suspects))
            differ = ~forms.equal(ids.take(suspects))
            self._forms = Texts.joined([self._forms, forms.take(differ)])
            self._positions = np.append(self._positions, positions[suspects[differ]])

    def sentence(self) -> str:
        """The warning about all ids that were taken in, once the index has them; empty: no two are near-duplicates."""
        if not len(self._forms):
            return ""
        groups, count = self._forms.numbered()
        # An id that is spelled in its common form joins the group of those that are not: with the forms a, a and b at
        # the positions 3, 8 and 5, and an id a at 1, the members are 1, 3 and 8, and 5.
        plain = np.full(count, -1)
        plain[groups] = find_positions(self._store, self._forms)
        there = np.flatnonzero(plain >= 0)
        groups, members = np.append(groups, there), np.append(self._positions, plain[there])
        first = np.full(count, members.max())
        np.minimum.at(first, groups, members)
        later = np.flatnonzero(members > first[groups])
        if not len(later):
            return ""
        example = later[members[later].argmin()]
        ids = id_at(self._store, int(members[example])), id_at(self._store, int(first[groups[example]]))
        return (
            f"{'1 id is a near-duplicate' if len(later) == 1 else f'{len(later):,} ids are near-duplicates'} of an "
            f"earlier one, for example {ids[0]!r} of {ids[1]!r}: they differ only in spaces, letter case, leading "
            "zeros, '.0' or Unicode form, and are probably one record, whose label a release then draws twice, for "
            "twice its ε"
        )


def common_forms(ids: Texts) -> Texts:
    """What ids that are near-duplicates have in common.

    A space between two digits stays, because `1 23` and `12 3` are two keys; so do zeros of all but a single number.
    """
    texts: ArrowArray = pc.utf8_lower(pc.utf8_normalize(ids.to_arrow(), "NFKC"))
    for _ in range(2):  # twice, since a digit can stand between two spaces
        texts = pc.replace_substring_regex(texts, rf"(\d){_SPACE}(\d)", "\\1\0\\2")
    texts = pc.replace_substring(pc.replace_substring_regex(texts, _SPACE, ""), "\0", " ")
    texts = pc.replace_substring_regex(texts, r"^(-?\d+)\.0+$", r"\1")
    return Texts.of(pc.replace_substring_regex(texts, r"^(\D*)0+(\d+)$", r"\1\2"))
