"""Handed-over labels: what the vault has released, and nothing that the card does not speak of."""

from __future__ import annotations

import stat
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tpsl.handover.card import CARD, LABELS, Card, CardError, write_card
from tpsl.handover.giving import hand_over
from tpsl.handover.labels_file import file_digest, read_handed_over
from tpsl.mechanisms import Mechanism, optimized_unary, randomized_response, subset_selection
from tpsl.vault import Spent, Vault, VaultError
from tpsl.vault.cost import Planned
from tpsl.vault.texts import Texts

MakeVault = Callable[..., Vault]


@pytest.mark.parametrize(
    ("mechanism", "draws"),
    [
        (randomized_response(1.0), 1),
        (randomized_response(1.0), 2),
        (optimized_unary(1.0, 10), 1),
        (subset_selection(1.0, 100), 1),
    ],
    ids=["two classes", "two draws", "10 classes", "100 classes"],
)
def test_it_holds_what_the_vault_has_released(
    tmp_path: Path, make_vault: MakeVault, mechanism: Mechanism, draws: int
) -> None:
    with make_vault(classes=mechanism.classes) as vault:
        vault.release(mechanism, draws=draws)
        ids = [f"record {number:04d}" for number in range(500)]
        kept = vault.noisy_labels(mechanism, ids, draws=draws)
        card = hand_over(vault, Planned(mechanism, draws), tmp_path / "given")
        head, entries = vault.head(), len(vault.ledger().entries)
        assert hand_over(vault, Planned(mechanism, draws), tmp_path / "given") == replace(card, ledger_head=head)
        assert (card.ledger_head, len(vault.ledger().entries)) == (head, entries)  # nothing was drawn for it
    handed = read_handed_over(tmp_path / "given", mechanism.classes)
    wanted = [3, 499, 0]
    noisy = handed.of(pa.array([ids[number] for number in wanted]))
    assert (noisy.epsilon, noisy.private, noisy.mechanism.digest) == (kept.epsilon, True, mechanism.digest)
    for found, released in zip(noisy.draws, kept.draws, strict=True):
        assert found.dtype == released.dtype and (found == released[wanted]).all()
    for file in (LABELS, CARD):
        assert stat.S_IMODE((tmp_path / "given" / file).stat().st_mode) == 0o600


def test_the_order_of_the_label_partys_file_does_not_cross(tmp_path: Path) -> None:
    """Whoever keeps all records of a class together would hand over every true label with the order of the rows."""
    mechanism, ids = randomized_response(1.0), np.random.default_rng(5).permutation(70_000).astype(str)
    batch = (ids, np.arange(70_000) // 35_000, None)  # sorted by label
    with Vault.create(tmp_path / "vault", batches=[batch]) as vault:
        vault.release(mechanism)
        hand_over(vault, Planned(mechanism, 1), tmp_path / "given")
    assert read_handed_over(tmp_path / "given", 2).ids.to_pylist() == sorted(ids)


def test_several_chunks_are_several_row_groups(tmp_path: Path, make_vault: MakeVault) -> None:
    with make_vault(records=70_000) as vault:
        vault.release(randomized_response(1.0))
        hand_over(vault, Planned(randomized_response(1.0)), tmp_path / "given")
    assert pq.ParquetFile(tmp_path / "given" / LABELS).metadata.num_row_groups == 2
    assert len(read_handed_over(tmp_path / "given" / LABELS, 2).labels) == 70_000


def test_only_released_labels_leave(tmp_path: Path, make_vault: MakeVault) -> None:
    mechanism = randomized_response(1.0)
    with make_vault() as vault:
        with pytest.raises(VaultError, match="has released nothing with discrete"):
            hand_over(vault, Planned(mechanism), tmp_path / "given")
        assert not list((tmp_path / "given").iterdir())
        vault.release(mechanism, ids=["record 0007", "record 0009"])
        assert hand_over(vault, Planned(mechanism), tmp_path / "given").records == 2
    handed = read_handed_over(tmp_path / "given", 2)
    assert handed.ids.to_pylist() == ["record 0007", "record 0009"]
    with pytest.raises(CardError, match=r"has no label of 2 of the 3 training records \(the first is 'record 0001'\)"):
        handed.of(pa.array(["record 0009", "record 0001", "record 0002"]))


def _table(**columns: Any) -> pa.Table:
    ids, outcomes = pa.array(["a", "b"]), pa.array([0, 1], pa.uint8())
    return pa.table({"id": ids, "outcome": outcomes, **columns})


CHANGES = {
    "an outcome that the mechanism does not have": (
        _table(outcome=pa.array([0, 2], pa.uint8())),
        r"has 2 outcomes, and none with the number 2",
    ),
    "another type": (_table(outcome=pa.array([0.0, 1.0])), "the column 'outcome' is not uint8 without gaps"),
    "a gap": (_table(outcome=pa.array([0, None], pa.uint8())), "the column 'outcome' is not uint8 without gaps"),
    "ids that are numbers": (_table(id=pa.array([1, 2])), "the column 'id' is not string without gaps"),
    "other ids": (_table(id=pa.array(["a", "c"])), "has other records than card.json beside it states"),
    "more records": (pa.concat_tables([_table(), _table()]), "has other records than card.json"),
    "fewer records": (_table().slice(1), "has other records than card.json"),
    "no outcomes": (_table().drop_columns("outcome"), "there is no column 'outcome'"),
}


def _given(folder: Path, table: pa.Table, **stated: Any) -> None:
    """Write labels that need not be those that their card states, but for the file's digest."""
    folder.mkdir()
    pq.write_table(table, folder / LABELS)
    digest = sha256()
    digest.update(Texts.of(["a", "b"]).to_bytes())
    facts = {"records": 2, "ids_digest": digest.hexdigest(), "labels_digest": file_digest(folder / LABELS), **stated}
    card = Card(randomized_response(1.0), 1, True, Spent(1.0, 0.0), ledger_head="", **facts)
    write_card(card, folder / CARD, None)


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_does_not_fit_its_card_is_refused(tmp_path: Path, change: str) -> None:
    table, sentence = CHANGES[change]
    _given(tmp_path / "honest", _table())
    assert read_handed_over(tmp_path / "honest", 2).labels.draws[0].tolist() == [0, 1]
    _given(tmp_path / "given", table)
    with pytest.raises(ValueError, match=rf"labels\.parquet: .*{sentence}"):
        read_handed_over(tmp_path / "given", 2)


def test_a_record_that_comes_twice_is_refused(tmp_path: Path) -> None:
    digest = sha256()
    digest.update(Texts.of(["a", "a"]).to_bytes())
    _given(tmp_path / "given", _table(id=pa.array(["a", "a"])), ids_digest=digest.hexdigest())
    with pytest.raises(CardError, match="has a record twice"):
        read_handed_over(tmp_path / "given", 2)


def test_another_file_than_the_one_that_was_signed_is_not_even_parsed(tmp_path: Path) -> None:
    _given(tmp_path / "given", _table())
    (tmp_path / "given" / LABELS).write_bytes(b"PAR1 nonsense PAR1")
    with pytest.raises(CardError, match=r"is not the file that card\.json beside it speaks of"):
        read_handed_over(tmp_path / "given", 2)
    (tmp_path / "given" / LABELS).unlink()
    with pytest.raises(CardError, match=r"labels\.parquet: there is no such file"):
        read_handed_over(tmp_path / "given", 2)


def test_noisy_labels_have_no_label_in_them(tmp_path: Path, make_vault: MakeVault) -> None:
    """The file is the same whatever the true labels are now: it is made from what was released."""
    mechanism = randomized_response(1.0)
    with make_vault() as vault:
        vault.release(mechanism)
        before = hand_over(vault, Planned(mechanism), tmp_path / "before").labels_digest
        ids = [f"record {number:04d}" for number in range(500)]
        vault.add([(ids, np.zeros(500, np.int64), None)])
        assert hand_over(vault, Planned(mechanism), tmp_path / "after").labels_digest == before
