import random
import re
import string
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpsl.mechanisms import laplace
from tpsl.vault import Vault
from tpsl.vault.near_duplicates import _NOT_PLAIN, common_forms
from tpsl.vault.texts import Texts


def forms_of(ids: Iterable[str]) -> list[str]:
    return common_forms(Texts.of(list(ids))).to_list()


ALIKE = [
    ["7", "007", " 7", "7 ", "7\u00a0", "\ufeff7", "７", "\t07", "7.0", "07.00"],
    ["-5", "-5.0"],
    ["C07", "c7", "C 7", "c 007"],
    ["é", "e\u0301", "É"],
    ["Ann Marie", "annmarie", "ANN  MARIE"],
    ["1 2 3", "1  2   3"],
    ["ﬁve", "five"],
]
DIFFERENT = [
    "123",
    "1 23",
    "12 3",
    "1.1",
    "1.01",
    "1.10",
    "v1.0",
    "v1",
    "2024-01-01",
    "2024-1-1",
    "-5",
    "5",
    "a01b1",
    "a1b01",
    "0",
    "x",
    "x0",
]


@pytest.mark.parametrize("alike", ALIKE)
def test_near_duplicates_have_one_form(alike: list[str]) -> None:
    assert len(set(forms_of(alike))) == 1
    for pair in combinations(alike, 2):  # also where the others do not show which rules are needed
        assert len(set(forms_of(pair))) == 1


def test_keys_that_differ_in_substance_keep_different_forms() -> None:
    assert len(set(forms_of(DIFFERENT))) == len(DIFFERENT)


@given(st.text("0017aAé \u0301-.", min_size=1, max_size=4))
def test_ids_that_are_passed_over_are_spelled_in_their_common_form(id: str) -> None:
    assert re.search(_NOT_PLAIN, id) or forms_of([id]) == [id]


@pytest.mark.parametrize("id", ["7", "12", "-3", "c10", "1", "2.5", "100", "0", "x0", "10.30"])
def test_plain_ids_are_passed_over(id: str) -> None:
    assert not re.search(_NOT_PLAIN, id)


def test_each_near_duplicate_of_an_import_is_counted_once(folder: Path) -> None:
    shuffled = random.Random(3)
    letters = "aAbBcC" + string.digits[:3] + " éÉ"
    ids = list(dict.fromkeys("".join(shuffled.choices(letters, k=3)) for _ in range(400)))
    first: dict[str, str] = {}
    expected = {
        id: first[form] for id, form in zip(ids, forms_of(ids), strict=True) if first.setdefault(form, id) != id
    }
    assert len(expected) > 5
    told: list[str] = []
    batches = [(ids[at : at + 7], [0] * len(ids[at : at + 7]), None) for at in range(0, len(ids), 7)]
    with Vault.create(folder, batches=batches, notice=told.append) as vault:
        later, earlier = next(iter(expected.items()))
        (sentence,) = told
        assert sentence.startswith(f"{len(expected)} ids are near-duplicates of an earlier one, ")
        assert f"for example {later!r} of {earlier!r}: " in sentence
        assert vault.release(laplace(1.0)).released == len(ids), "nothing is refused"
        assert vault.verify() == []


@pytest.mark.parametrize(
    ("earlier", "new", "count", "example"),
    [
        (["7", "x"], ["007"], "1 id is a near-duplicate", "'007' of '7'"),
        (["1"], ["1.0"], "1 id is a near-duplicate", "'1.0' of '1'"),
        (["r7", "8"], ["9", "R7", "r 7"], "2 ids are near-duplicates", "'R7' of 'r7'"),
        (["a"], ["\u00c9", "b", "e\u0301", "a"], "1 id is a near-duplicate", "'e\u0301' of '\u00c9'"),
        (["007"], ["7"], "", ""),
        (["7", "007"], ["8", "9"], "", ""),
    ],
)
def test_new_ids_are_compared_with_earlier_ones_that_are_plainly_spelled(
    folder: Path, earlier: list[str], new: list[str], count: str, example: str
) -> None:
    told: list[str] = []
    with Vault.create(folder, batches=[(earlier, [0] * len(earlier), None)], notice=lambda sentence: None) as vault:
        vault.add([(new, [0] * len(new), None)], notice=told.append)
    assert [count in sentence and example in sentence for sentence in told] == ([True] if count else [])


def test_without_a_notice_python_warns(folder: Path) -> None:
    with pytest.warns(UserWarning, match="1 id is a near-duplicate of an earlier one, for example '1.0' of '1'"):
        Vault.create(folder, batches=[(["1", "1.0"], [0, 1], None)]).close()


def test_adding_ids_reads_no_earlier_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Vault.create(folder, batches=[(np.arange(70_000), np.zeros(70_000), None)]) as vault:
        statements: list[str] = []
        vault._store.connection.set_trace_callback(statements.append)
        vault.add([(np.arange(70_000, 70_010), np.zeros(10), None)])
        vault.add([(["a", "B"], [0, 1], None)])
    read = [text for text in statements if text.startswith("SELECT") and "ids" in text and "FROM blocks" in text]
    assert read
    assert all("chunk = 1" in text for text in read), "the last block, to which each import adds"
