"""Common records against a plain loop over all rows."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpsl.alignment import matching
from tpsl.alignment.group import Bytes32
from tpsl.alignment.matching import common_records, require_distinct
from tpsl.net.failures import BadMessage

Table = list[tuple[int, ...]]
"""Rows of keys as small numbers."""


def digests(table: Table, keys: int) -> Bytes32:
    content = b"".join(hashlib.sha256(bytes([value])).digest() for row in table for value in row)
    return np.frombuffer(content, np.uint8).reshape(len(table), keys, 32)


def by_hand(tables: list[Table], keys: int) -> list[tuple[int, ...]]:
    """Rows of each table and the key, for each common record, in the order of the first table."""
    found: list[tuple[int, ...]] = []
    for key in range(keys):
        taken = [{record[place] for record in found} for place in range(len(tables))]
        for row, values in enumerate(tables[0]):
            rows = [row]
            for place, table in enumerate(tables[1:], start=1):
                rows += [at for at, other in enumerate(table) if other[key] == values[key] and at not in taken[place]]
            if row not in taken[0] and len(rows) == len(tables):
                found.append((*rows, key))
    return sorted(found)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[Table], int]:
    keys, number = draw(st.integers(1, 3)), draw(st.integers(2, 4))
    columns = st.lists(st.integers(0, 9), unique=True, max_size=8)
    made = []
    for _ in range(number):
        first = draw(columns)
        rest = [draw(st.permutations(range(10)))[: len(first)] for _ in range(keys - 1)]
        made.append(list(zip(first, *rest, strict=True)))
    return made, keys


@settings(max_examples=300)
@given(tables(), st.sampled_from([1, 3, 1 << 19]))
def test_common_records_are_those_of_a_plain_loop(drawn: tuple[list[Table], int], at_once: int) -> None:
    lists, keys = drawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matching, "ROWS_AT_ONCE", at_once)
        found = common_records([digests(each, keys) for each in lists])
    assert [(*row, key) for row, key in zip(found.positions.tolist(), found.keys.tolist(), strict=True)] == by_hand(
        lists, keys
    )


def test_all_records_of_a_single_list_are_common() -> None:
    found = common_records([digests([(3,), (1,)], 1)])
    assert found.positions.tolist() == [[0], [1]]


@pytest.mark.parametrize("at_once", [1, 1 << 19])
def test_a_key_twice_is_found_in_any_column(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(matching, "ROWS_AT_ONCE", at_once)
    require_distinct(digests([(1, 2), (2, 1)], 2), "nobody")
    for table in ([(1, 2), (1, 3)], [(1, 2), (3, 2)]):
        with pytest.raises(BadMessage, match=r"^the list of feature party 'shop' names a key twice$"):
            require_distinct(digests(table, 2), "feature party 'shop'")
