"""Rows of many sources in portions: each keeps the place where it stands."""

import pytest

from tpsl.vault.blocks import Block
from tpsl.vault.portions import Portion, gathered, place_in, portions_of


def portions(*sources: tuple[str, int, bool]) -> list[Portion]:
    """Portions with this number of rows each, with or without units."""
    found = []
    for source, rows, units in sources:
        ids = [f"{source}{row}" for row in range(1, rows + 1)]
        found += portions_of([(ids, [0] * rows, ids if units else None)], 2, source)
    return found


def test_portions_are_joined_until_they_are_large_enough_and_keep_their_places() -> None:
    found = list(gathered(portions(("a", 2, False), ("b", 3, False), ("c", 1, False), ("d", 9, False)), 5))
    assert [portion.records.ids.to_list() for portion in found] == [
        ["a1", "a2", "b1", "b2", "b3"],
        ["c1", *(f"d{row}" for row in range(1, 10))],
    ]
    for portion in found:
        for at, id in enumerate(portion.records.ids.to_list()):
            source, row = place_in(portion.stretches, at)
            assert f"{source}{row}" == id
    with pytest.raises(AssertionError):
        place_in(found[0].stretches, 5)


def test_rows_with_units_and_without_stay_apart() -> None:
    found = list(gathered(portions(("a", 2, False), ("b", 2, True), ("c", 2, True), ("d", 2, False)), 100))
    assert [(len(portion.records), portion.records.units is None) for portion in found] == [
        (2, True),
        (4, False),
        (2, True),
    ]


def test_many_small_batches_are_counted_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = 0

    def rows(records: Block) -> int:
        nonlocal counted
        counted += 1
        return len(records.labels)

    small = portions(*((f"{number}", 1, False) for number in range(300)))
    monkeypatch.setattr(Block, "__len__", rows)
    assert len(list(gathered(small, 1000))) == 1
    assert counted < 3 * 300
