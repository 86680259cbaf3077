import random
import sqlite3
import string
from collections.abc import Iterable
from itertools import combinations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpsl.mechanisms import laplace
from tpsl.vault import Lookalikes, ReleasePolicy, Vault, VaultError, lookalikes, pairs
from tpsl.vault.lookalikes import Styles, common_forms, refuse_alike
from tpsl.vault.texts import Texts


def forms_of(ids: Iterable[str]) -> list[str]:
    return common_forms(Texts.of(list(ids))).to_list()


ALIKE = [
    ["7", "007", " 7", "7 ", "7\u00a0", "\ufeff7", "７", "\t07"],
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
def test_what_looks_alike_has_one_form(alike: list[str]) -> None:
    assert len(set(forms_of(alike))) == 1
    for pair in combinations(alike, 2):  # also where the others do not show which rules are needed
        assert len(set(forms_of(pair))) == 1


def test_keys_that_differ_in_substance_keep_different_forms() -> None:
    assert len(set(forms_of(DIFFERENT))) == len(DIFFERENT)


@given(st.lists(st.text("0017aAé \u0301-", min_size=1, max_size=4), min_size=1, max_size=30, unique=True))
def test_the_summary_never_rules_out_ids_that_look_alike(ids: list[str]) -> None:
    if Styles().joined(Texts.of(ids[:10])).joined(Texts.of(ids[10:])).all_differ:
        assert len(set(forms_of(ids))) == len(ids)


@pytest.mark.parametrize(
    ("ids", "all_differ"),
    [
        (["7", "12", "-3"], True),
        (["c01", "c02", "c10"], True),
        (["C01", "C02"], True),
        (["c01", "c2"], False),
        (["c01", "C02"], False),
        (["a", "b c"], False),
        (["a ", "b"], False),
        (["a", "é"], False),
    ],
)
def test_ids_of_one_style_need_no_comparison(ids: list[str], all_differ: bool) -> None:
    assert Styles().joined(Texts.of(ids)).all_differ is all_differ


def test_each_look_alike_is_found_once_over_batches_and_additions(folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookalikes, "_ROWS", 7)
    monkeypatch.setattr(pairs, "_IN_MEMORY", 16)  # several parts
    shuffled = random.Random(3)
    letters = "aAbBcC" + string.digits[:3] + " éÉ"
    ids = list(dict.fromkeys("".join(shuffled.choices(letters, k=3)) for _ in range(400)))
    first: dict[str, str] = {}
    expected = {
        id: first[form] for id, form in zip(ids, forms_of(ids), strict=True) if first.setdefault(form, id) != id
    }
    assert len(expected) > 5
    with Vault.create(folder, batches=[(ids[:150], [0] * 150, None)]) as vault:
        vault.add([(ids[150:151], [0], None)])
        vault.add([(ids[151:], [0] * (len(ids) - 151), None)])
        example = next(iter(expected.items()))
        assert vault.lookalikes() == Lookalikes(len(expected), (example[1], example[0]))
        connection = sqlite3.connect(folder / "vault.sqlite")
        stored = connection.execute("SELECT position, earlier FROM lookalikes").fetchall()
        connection.close()
        assert {ids[position]: ids[earlier] for position, earlier in stored} == expected
        assert vault.verify() == []


def test_a_vault_of_an_older_version_is_examined_at_its_next_release(folder) -> None:
    with Vault.create(folder, batches=[(["7", "007", "8"], [0, 0, 0], None)]) as vault:
        connection = sqlite3.connect(folder / "vault.sqlite")
        connection.executescript("DELETE FROM id_styles; DELETE FROM lookalikes;")
        connection.close()
        vault.release(laplace(1.0), ids=["8"])
        with pytest.raises(VaultError, match="'007' like '7'"):
            vault.release(laplace(1.0))
        assert vault.lookalikes() == Lookalikes(1, ("7", "007"))


def test_only_a_second_draw_is_refused(folder) -> None:
    with Vault.create(folder, batches=[(["7", "x", "007", "X"], [0, 1, 0, 1], None)]) as vault:
        assert vault.release(laplace(1.0), ids=["7", "X"]).released == 2  # of each pair one
        for ids in (["x"], ["007"], None):
            with pytest.raises(VaultError, match=r"looks? like .* twice ε, so this is refused unless you allow"):
                vault.release(laplace(1.0), ids=ids)
        head = vault.ledger().head
        assert vault.release(laplace(1.0), ids=["7", "X"]).released == 0
        assert vault.ledger().head == head
        assert vault.release(laplace(1.0), policy=ReleasePolicy(allow_lookalikes=True)).released == 2
        assert vault.release(laplace(1.0)).released == 0


def test_ids_that_no_vault_has_yet_are_compared_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookalikes, "_ROWS", 3)
    ids = ["x", "7", "a", "8", "b", "007", "A", "c"]
    with pytest.raises(VaultError, match="2 ids look like an earlier one, for example '007' like '7'"):
        refuse_alike(pa.array(ids))
    refuse_alike(pa.array(ids[:5]))
    refuse_alike(pa.array([], pa.string()))


def test_many_plain_ids_are_not_compared(folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookalikes, "_alike", lambda portions, folder: pytest.fail("compared"))
    with Vault.create(folder, batches=[(np.arange(70_000), np.zeros(70_000), None)]) as vault:
        vault.add([(np.arange(70_000, 70_010), np.zeros(10), None)])
        assert vault.lookalikes() is None
        assert vault.release(laplace(1.0)).released == 70_010
