"""The label party compares a hand-over with its vault: whatever else than the release is in the folder is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.vault_labels import true_labels

from tpsl.handover.card import CARD, LABELS, Card, read_card, write_card
from tpsl.handover.giving import hand_over, handed_problems
from tpsl.handover.labels_file import file_digest
from tpsl.mechanisms import Mechanism, laplace, optimized_unary, randomized_response
from tpsl.vault import Spent, Vault
from tpsl.vault.cost import Planned
from tpsl.vault.texts import Texts

MakeVault = Callable[..., Vault]
ONE = randomized_response(1.0)
IDS = [f"record {number:04d}" for number in range(500)]


def given(folder: Path, change: Callable[[pa.Table], pa.Table], **stated: Any) -> Path:
    """Change the file of a hand-over, and its card with it: the digests are those of the changed file."""
    table = change(pq.read_table(folder / LABELS))
    pq.write_table(table, folder / LABELS)
    ids = sha256()
    ids.update(Texts.of(table["id"].to_pylist()).to_bytes())
    facts = {"records": len(table), "ids_digest": ids.hexdigest(), "labels_digest": file_digest(folder / LABELS)}
    write_card(replace(read_card(folder / CARD, 2, None), **facts, **stated), folder / CARD, None)
    return folder


def with_outcomes(outcomes: Any) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.set_column(1, "outcome", pa.array(np.asarray(outcomes, np.uint8)))


@pytest.mark.parametrize(
    ("mechanism", "draws", "seed", "ids"),
    [
        (ONE, 1, None, None),
        (ONE, 2, None, None),
        (laplace(0.5), 1, None, IDS[100:200]),
        (optimized_unary(1.0, 10), 1, None, None),
        (ONE, 1, 7, None),
    ],
    ids=["all", "two draws", "some records", "10 classes", "seeded"],
)
def test_what_was_handed_over_is_what_was_released(
    tmp_path: Path, make_vault: MakeVault, mechanism: Mechanism, draws: int, seed: int | None, ids: list[str] | None
) -> None:
    with make_vault(classes=mechanism.classes) as vault:
        vault.release(mechanism, draws=draws, seed=seed)
        hand_over(vault, Planned(mechanism, draws, seed), tmp_path / "given", ids=ids)
        assert handed_problems(vault, tmp_path / "given") == []
        vault.release(randomized_response(2.0, mechanism.classes), compose=True)
        assert handed_problems(vault, tmp_path / "given") == [], "also when more was released since"


def test_true_labels_in_the_file_are_found_whatever_the_card_says(tmp_path: Path, make_vault: MakeVault) -> None:
    with make_vault() as vault:
        vault.release(ONE)
        hand_over(vault, Planned(ONE), tmp_path / "given")
        truth = true_labels(vault, IDS)
        noisy = vault.noisy_labels(ONE, IDS).draws[0]
        (problem,) = handed_problems(vault, given(tmp_path / "given", with_outcomes(truth)))
        assert f"the outcomes of {(truth != noisy).sum()} of 500 records are not those that the vault" in problem
        assert vault.verify() == [], "the vault itself is sound"


def test_one_outcome_that_differs_is_found_and_named(tmp_path: Path, make_vault: MakeVault) -> None:
    with make_vault() as vault:
        vault.release(ONE)
        hand_over(vault, Planned(ONE), tmp_path / "given")
        noisy = vault.noisy_labels(ONE, IDS).draws[0].copy()
        noisy[321] ^= 1
        (problem,) = handed_problems(vault, given(tmp_path / "given", with_outcomes(noisy)))
    assert "the outcomes of 1 of 500 records" in problem and "'record 0321'" in problem


def with_metadata(table: pa.Table) -> pa.Table:
    return table.replace_schema_metadata({"labels": "0110"})


def with_metadata_of_a_column(table: pa.Table) -> pa.Table:
    return table.cast(pa.schema([pa.field("id", pa.string(), metadata={"labels": "0110"}), table.schema.field(1)]))


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.append_column("label", pa.array(np.zeros(len(table), np.uint8))),
        with_metadata,
        with_metadata_of_a_column,
    ],
    ids=["a column", "metadata", "metadata of a column"],
)
def test_there_is_no_room_for_more_than_ids_and_outcomes(tmp_path: Path, make_vault: MakeVault, change: Any) -> None:
    with make_vault() as vault:
        vault.release(ONE)
        hand_over(vault, Planned(ONE), tmp_path / "given")
        (problem,) = handed_problems(vault, given(tmp_path / "given", change))
    assert "holds more than the columns id, outcome" in problem


def test_the_order_of_the_records_is_compared_too(tmp_path: Path, make_vault: MakeVault) -> None:
    with make_vault() as vault:
        vault.release(ONE)
        hand_over(vault, Planned(ONE), tmp_path / "given")
        by_label = np.argsort(true_labels(vault, IDS), kind="stable")
        (problem,) = handed_problems(vault, given(tmp_path / "given", lambda table: table.take(by_label)))
    assert "not in the order of their ids" in problem


def test_outcomes_of_another_release_are_found(tmp_path: Path, make_vault: MakeVault) -> None:
    with make_vault() as vault:
        for seed in (1, 2):
            vault.release(ONE, seed=seed, compose=True)
        hand_over(vault, Planned(ONE, seed=1), tmp_path / "given")
        assert handed_problems(vault, tmp_path / "given") == []
        first, second = (vault.noisy_labels(ONE, IDS, seed=seed).draws[0] for seed in (1, 2))
        mixed = np.where(np.arange(500) < 250, first, second)
        (problem,) = handed_problems(vault, given(tmp_path / "given", with_outcomes(mixed)))
        assert "of 500 records are not those that the vault has released" in problem
        # no such release: the card says that the noise is secure
        (problem,) = handed_problems(vault, given(tmp_path / "given", with_outcomes(first), private=True))
        assert "the vault has released nothing with discrete" in problem


def test_records_that_were_not_released_are_found(tmp_path: Path, make_vault: MakeVault) -> None:
    with make_vault() as vault:
        vault.release(ONE, ids=IDS[:499])
        hand_over(vault, Planned(ONE), tmp_path / "given")
        for id, sentence in (("record 0499", "not released"), ("somebody", "does not know 1 of the 500 records")):
            more = pa.table({"id": [id], "outcome": pa.array([0], pa.uint8())})

            def appended(table: pa.Table, more: pa.Table = more) -> pa.Table:
                return pa.concat_tables([table.slice(0, 499), more])

            (problem,) = handed_problems(vault, given(tmp_path / "given", appended))
            assert sentence in problem and id in problem


def test_a_card_of_another_history_or_price_is_found(tmp_path: Path, make_vault: MakeVault) -> None:
    def stated(**facts: Any) -> list[str]:
        write_card(replace(card, **facts), tmp_path / "given" / CARD, None)
        return handed_problems(vault, tmp_path / "given")

    with make_vault() as vault:
        vault.release(ONE)
        card: Card = hand_over(vault, Planned(ONE), tmp_path / "given")
        assert stated() == []
        assert "the ledger has no entry with the hash" in stated(ledger_head="0" * 64)[0]
        assert "64 hexadecimal digits" in stated(ledger_head="aa")[0]
        assert "by the ledger it is 1.0" in stated(spent=Spent(1.5, 0.0))[0]
        assert "has other records than card.json" in stated(records=499)[0]
        assert "is not the file" in stated(labels_digest="00")[0]
        vault.release(laplace(1.0), compose=True)
        assert stated() == [], "less was spent then"
        assert stated(spent=Spent(1.5, 0.0)) == [], "what was spent in between is not known"
        assert stated(spent=Spent(3.5, 0.0)) != []


def test_a_folder_without_files_is_a_problem_and_no_error(tmp_path: Path, make_vault: MakeVault) -> None:
    (tmp_path / "given").mkdir()
    with make_vault() as vault:
        assert "cannot be read" in handed_problems(vault, tmp_path / "given")[0]
        (tmp_path / "given" / CARD).write_text(json.dumps({"content": {}}))
        assert "it is no card" in handed_problems(vault, tmp_path / "given")[0]
