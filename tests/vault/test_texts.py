"""Columns of texts: their bytes, and hashes that are the same wherever a text stands."""

import hashlib
import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpsl.vault import VaultError
from tpsl.vault.texts import HashKey, TextDigest, Texts

KEY = HashKey(b"a secret of 16 b")
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
    assert (part.hashes(KEY) == column.hashes(KEY)[start:stop]).all()
    assert Texts.joined([column.part(0, start), part, column.part(stop, len(texts))]).same_as(column)
    rows = np.array(data.draw(st.lists(st.integers(0, max(len(texts) - 1, 0)), max_size=len(texts))), np.int64)
    assert column.take(rows).to_list() == [texts[row] for row in rows.tolist()]
    assert [texts[row] for row in column.sorted_rows().tolist()] == sorted(texts, key=str.encode)
    digest = TextDigest()
    digest.update(part)
    assert digest.hexdigest() == hashlib.sha256(part.to_bytes()).hexdigest()


def test_different_texts_have_different_hashes_and_equal_ones_the_same() -> None:
    texts = [*map(str, range(200_000)), *("x" * length for length in range(1, 40)), "ab", "ba", "a\x01", "a"]
    assert len(np.unique(Texts.of(texts).hashes(KEY))) == len(texts)
    assert Texts.of(["7", "x" * 30]).hashes(KEY)[1] == Texts.of(["x" * 30]).hashes(KEY)[0]
    assert Texts.of(["123", "é"]).hashes(KEY).tolist() == [12753576333803866766, 10139431596235011233]  # for ever


def test_one_long_text_among_many_costs_no_pass_over_all_of_them() -> None:
    many, long = Texts.of(list(map(str, range(400_000)))), Texts.of(["x" * 100_000])

    def once(texts: Texts) -> float:
        begun = time.process_time()
        texts.hashes(KEY)
        return time.process_time() - begun

    def seconds(texts: Texts) -> float:
        return min(once(texts) for _ in range(3))

    together = Texts.joined([many, long])
    assert together.hashes(KEY)[-1] == long.hashes(KEY)[0]
    assert seconds(together) < 4 * (seconds(many) + seconds(long))  # with such passes 10 times as long


def test_the_bits_of_hashes_are_as_even_as_those_of_chance() -> None:
    """Ids that follow each other fill all buckets alike."""
    counts = np.bincount((Texts.of(list(map(str, range(1 << 18)))).hashes(KEY) >> np.uint64(56)).astype(int))
    chi_square = ((counts - 1024) ** 2 / 1024).sum()
    assert 150 < chi_square < 380  # 255 on average, deviation 23


def test_rows_are_compared_one_by_one() -> None:
    one, other = Texts.of(["a", "b", ""]), Texts.of(pa.array(["a", "bb", ""]))
    assert one.equal(other).tolist() == [True, False, True]
    assert not one.same_as(other)
    numbers, count = Texts.of(["x", "y", "x"]).numbered()
    assert (numbers.tolist(), count) == ([0, 1, 0], 2)
    assert (one[1], len(one)) == ("b", 3)


def test_what_is_no_column_of_texts_is_refused() -> None:
    assert Texts.of(["a", "b"]).are_sound()
    assert not Texts.of(["a", ""]).are_sound()
    assert not Texts.of(["a", "b\0c"]).are_sound()
    with pytest.raises(VaultError, match="a column of texts is damaged"):
        Texts.from_bytes(b"a\0b")
