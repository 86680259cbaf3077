"""Columns of texts: their bytes, and hashes that are the same wherever a text stands."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpsl.vault import VaultError
from tpsl.vault.texts import Texts

KEY = b"a secret of 16 b"
STATED = [18132199753086060670, 14845974251271751177], [11094641821655057871, 15412509824978625267]
"""The hashes of the texts 123 and a, for ever."""
some_texts = st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=20), max_size=20)


@settings(max_examples=40)
@given(some_texts, st.data())
def test_texts_stay_the_same_through_bytes_parts_and_choices(texts: list[str], data: st.DataObject) -> None:
    column = Texts.of(texts)
    stored = bytes(column.to_bytes())
    assert stored == b"".join(text.encode() + b"\0" for text in texts)
    assert Texts.from_bytes(stored).to_list() == column.to_list() == texts
    assert column.to_arrow().to_pylist() == texts
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(texts))] * 2)))
    part = Texts.from_bytes(stored).part(start, stop)
    assert part.to_list() == texts[start:stop]
    assert np.array_equal(part.hashes(KEY), np.array(column.hashes(KEY))[:, start:stop])
    assert Texts.joined([column.part(0, start), part, column.part(stop, len(texts))]).to_list() == texts
    rows = np.array(data.draw(st.lists(st.integers(0, max(len(texts) - 1, 0)), max_size=len(texts))), np.int64)
    assert column.take(rows).to_list() == [texts[row] for row in rows.tolist()]
    assert [texts[row] for row in column.sorted_rows().tolist()] == sorted(texts, key=str.encode)


def test_different_texts_have_different_hashes_and_equal_ones_the_same() -> None:
    texts = [*map(str, range(200_000)), *("x" * length for length in range(1, 40)), "ab", "ba", "a\x01", "a"]
    for hashes, stated in zip(Texts.of(texts).hashes(KEY), STATED, strict=True):
        assert len(np.unique(hashes)) == len(texts)
        counts = np.bincount((hashes[:200_000] >> np.uint64(56)).astype(int), minlength=256)
        assert counts.min() > 400 and counts.max() < 1200  # 781 on average
        assert hashes[[123, len(texts) - 1]].tolist() == stated
    assert Texts.of(["7", "x" * 30]).hashes(KEY)[0][1] == Texts.of(["x" * 30]).hashes(KEY)[0][0]
    other = Texts.of(texts).hashes(b"another secret 1")[0]
    assert not (other == Texts.of(texts).hashes(KEY)[0]).any()


def test_rows_are_compared_one_by_one() -> None:
    one, other = Texts.of(["a", "b", ""]), Texts.of(pa.array(["a", "bb", ""]))
    assert one.equal(other).tolist() == [True, False, True]
    numbers, count = Texts.of(["x", "y", "x"]).numbered()
    assert (numbers.tolist(), count) == ([0, 1, 0], 2)
    assert (one[1], len(one)) == ("b", 3)


def test_what_is_no_column_of_texts_is_refused() -> None:
    assert Texts.of(["a", "b"]).are_sound()
    assert not Texts.of(["a", ""]).are_sound()
    assert not Texts.of(["a", "b\0c"]).are_sound()
    with pytest.raises(VaultError, match="a column of texts is damaged"):
        Texts.from_bytes(b"a\0b")
