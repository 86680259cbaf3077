"""Near-duplicate ids: probably one record under two ids, for which a release draws twice. An import warns of them.

Two ids are near-duplicates if they differ only in spaces, letter case, Unicode normalisation (NFKC), zeros before the
only number in them, or a fraction of zeros: `007` and `7`, `C07` and `c 7`, `1` and `1.0`. Nothing is ever merged or
refused: whether two ids are one record is for people to say.

Of the new ids of an import those count that are not spelled in their common form. They are compared with each other by
the hashes of their common forms, and with all ids, new and stored, by a look-up of the common form. So a new `007` is
found beside a stored `7`, and a new `7` beside a stored `007` is not: stored ids are not read again. Time is linear.
"""

import warnings
from contextlib import AbstractContextManager

import numpy as np
import pyarrow.compute as pc

from tpsl.tables import ArrowArray
from tpsl.vault import id_index
from tpsl.vault.blocks import id_at
from tpsl.vault.store import Store
from tpsl.vault.texts import Hashes, Texts

_SPACE = r"[\s\x{200B}-\x{200D}\x{2028}\x{2029}\x{2060}\x{FEFF}]+"


def warn(sentence: str) -> None:
    """Issue a Python warning, where nobody else is to be told."""
    warnings.warn(sentence, stacklevel=2)


class NearDuplicates(AbstractContextManager["NearDuplicates"]):
    """The near-duplicates among the new ids of one import, inside its transaction."""

    def __init__(self, store: Store) -> None:
        self._store, self._keys, self._forms = store, id_index.keys_of(store), id_index.new_parts(store)

    def __exit__(self, *error: object) -> None:
        self._forms.close()

    def take(self, ids: Texts, positions: Hashes) -> None:
        """Take in new ids and their positions."""
        forms = common_forms(ids)
        rows = np.flatnonzero(~forms.equal(ids)) if forms is not ids else np.zeros(0, np.intp)
        if len(rows):
            id_index.write_hashes(self._forms, self._keys, forms.take(rows), positions[rows])

    def sentence(self) -> str:
        """The warning about all ids that were taken in, once the index has them; empty: no two are near-duplicates."""
        count, pairs = 0, list[tuple[int, int]]()
        for one, two, positions in self._forms.parts():
            at, plain = id_index.look_up(self._store, one, two)
            # An id that is spelled in its common form joins the group of those that are not, as often as it is found:
            # of the positions 3, 8, 8 and 5 with the forms a, a, a and b, 3 and 8 are near-duplicates.
            forms, members = np.append(one, one[at]), np.append(positions, plain.astype(np.uint64))
            order = np.lexsort((members, forms))
            forms, members = forms[order], members[order]
            starts = np.flatnonzero(np.diff(forms, prepend=~forms[:1]))
            first = np.repeat(members[starts], np.diff(starts, append=len(members)))
            again = np.append(False, (members[1:] == members[:-1]) & (forms[1:] == forms[:-1]))
            later = np.flatnonzero((members != first) & ~again)
            count += len(later)
            if len(later):
                example = later[members[later].argmin()]
                pairs.append((int(members[example]), int(first[example])))
        if not count:
            return ""
        second, first_id = (id_at(self._store, position) for position in min(pairs))
        return (
            f"{'1 id is a near-duplicate' if count == 1 else f'{count:,} ids are near-duplicates'} of an earlier one, "
            f"for example {second!r} of {first_id!r}: they differ only in spaces, letter case, leading zeros, '.0' or "
            "Unicode form, and are probably one record, whose label a release then draws twice, for twice its ε"
        )


def common_forms(ids: Texts) -> Texts:
    """What ids that are near-duplicates have in common; the same object where all ids are spelled like that.

    A space between two digits stays, because `1 23` and `12 3` are two keys; so do zeros of all but a single number.
    """
    if not _may_differ(np.frombuffer(ids.to_bytes(), np.uint8)):
        return ids
    texts: ArrowArray = pc.utf8_lower(pc.utf8_normalize(ids.to_arrow(), "NFKC"))
    for _ in range(2):  # twice, since a digit can stand between two spaces
        texts = pc.replace_substring_regex(texts, rf"(\d){_SPACE}(\d)", "\\1\0\\2")
    texts = pc.replace_substring(pc.replace_substring_regex(texts, _SPACE, ""), "\0", " ")
    texts = pc.replace_substring_regex(texts, r"^(-?\d+)\.0+$", r"\1")
    return Texts.of(pc.replace_substring_regex(texts, r"^(\D*)0+(\d+)$", r"\1\2"))


def _may_differ(text: ArrowArray) -> bool:
    """Whether ids, each ending with a zero byte, have any character that their common forms may not have.

    Upper case, spaces, what is not ASCII, a point before a zero, or a zero that begins a number of several digits.
    """
    if ((text > 126) | ((text > 0) & (text <= ord(" "))) | ((text >= ord("A")) & (text <= ord("Z")))).any():
        return True
    before, after = np.append(np.uint8(0), text[:-1]), np.append(text[1:], np.uint8(0))
    zero, digits = text == ord("0"), (ord("0"), ord("9"))
    begins = zero & ~((before >= digits[0]) & (before <= digits[1])) & (after >= digits[0]) & (after <= digits[1])
    return bool((begins | (zero & (before == ord(".")))).any())
