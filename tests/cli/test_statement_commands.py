"""`tpsl vault statement` and `tpsl vault statement --check`, from the label party to the other side and back."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tpsl.vault import Vault
from tpsl.vault.statement import digest_of_ids

IDS = [f"r{row}" for row in range(40)]


@pytest.fixture
def vault(tmp_path: Path, tpsl: Any) -> Path:
    units = [f"u{row // 4}" for row in range(40)]
    Vault.create(tmp_path / "vault", batches=[(IDS, [0, 1] * 20, units)]).close()
    tpsl("vault", "release", tmp_path / "vault", "--set=privacy.mechanism=laplace", "--epsilon", 0.5)
    return tmp_path / "vault"


@pytest.fixture
def stated(tpsl: Any, vault: Path, certificates: Path, tmp_path: Path) -> Path:
    made = tpsl(
        "vault", "statement", vault, "--certs", certificates / "label", "--out", tmp_path / "out", "--json"
    ).json()
    assert made["content"]["program"].startswith("tpsl ")
    assert Path(made["page"]).parent == Path(made["statement"]).parent == tmp_path / "out"
    return Path(made["statement"])


def changed(statement: Path, tmp_path: Path, **content: Any) -> Path:
    document = json.loads(statement.read_text())
    document["content"].update(content)
    (tmp_path / "changed.json").write_text(json.dumps(document))
    return tmp_path / "changed.json"


def test_the_other_side_checks_a_statement(tpsl: Any, stated: Path, certificates: Path, vault: Path) -> None:
    checked = tpsl("vault", "statement", "--check", stated, "--certs", certificates / "feature", "--json")
    found = checked.json()
    assert (found["valid"], found["by_authority"]) == (True, True)
    content = found["content"]
    assert (content["records"], content["released_records"], content["epsilon_per_record"]) == (40, 40, 0.5)
    assert content["largest_unit"] == {"epsilon": 2.0, "delta": 0.0, "records": 4}
    assert content["ids_digest"] == digest_of_ids(IDS)
    assert content["ledger_head"] == tpsl("vault", "ledger", vault, "--json").json()["head"]
    assert "warning" not in checked.stderr
    shown = tpsl("vault", "statement", "--check", stated)
    assert shown.facts()["largest total"] == "ε = 0.5 of any record"
    assert shown.facts()["of any unit"] == "ε = 2 (4 records)"
    assert "warning: the certificate was not traced to an authority" in shown.stderr
    for words in ("does not show that they are true", "someone who noted none cannot", "keeps a second vault"):
        assert words in shown.stderr


def test_a_statement_that_was_changed_does_not_hold(tpsl: Any, stated: Path, tmp_path: Path) -> None:
    for field, value in {"epsilon_per_record": 0.1, "private": False, "ledger_head": "0" * 64}.items():
        file = changed(stated, tmp_path, **{field: value})
        assert f"{file}: the signature does not fit" in tpsl("vault", "statement", "--check", file).error()


def test_the_vault_must_have_the_history_that_was_stated(
    tpsl: Any, stated: Path, vault: Path, certificates: Path, tmp_path: Path
) -> None:
    against = ("vault", "statement", "--check", stated)
    assert tpsl(*against, vault, "--json").json()["entries_since"] == 0
    with Vault.create(tmp_path / "second", batches=[(IDS, [0, 1] * 20, None)], apart="of others"):
        pass
    sentence = tpsl(*against, tmp_path / "second").error()
    assert "does not have the history it speaks of: it was cut or replaced" in sentence
    tpsl("vault", "release", vault, "--set=privacy.mechanism=laplace", "--epsilon", 1, "--set=local.compose=true")
    assert tpsl(*against, vault, "--json").json()["entries_since"] == 1
    connection = sqlite3.connect(vault / "vault.sqlite")
    connection.executescript("DROP TRIGGER outcomes_stay; DELETE FROM outcomes;")
    connection.close()
    assert "is not sound" in tpsl(*against, vault).error()
    refused = tpsl("vault", "statement", vault, "--certs", certificates / "label").error()
    assert "is not sound, so nothing is stated about it" in refused


def test_a_statement_is_contradicted_by_a_vault_that_says_otherwise(
    tpsl: Any, vault: Path, certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A label party with a program of its own states less than its ledger has, and signs it."""
    true = Vault.statement
    monkeypatch.setattr(Vault, "statement", lambda self: {**true(self), "epsilon_per_record": 0.1})
    made = tpsl("vault", "statement", vault, "--certs", certificates / "label", "--out", tmp_path, "--json").json()
    monkeypatch.undo()
    check = ("vault", "statement", "--check", made["statement"], "--certs", certificates / "label")
    assert tpsl(*check).status == 0  # a signature alone does not show it
    assert "contradicts it: epsilon_per_record is 0.5" in tpsl(*check, vault).error()


def test_only_the_label_party_states(tpsl: Any, vault: Path, certificates: Path, tmp_path: Path) -> None:
    sentence = tpsl(
        "vault", "statement", vault, "--certs", certificates / "feature", "--out", tmp_path / "none"
    ).error()
    assert "holds the certificate of 'feature', not of 'label'" in sentence
    assert not (tmp_path / "none").exists()


def test_no_statement_is_written_over_another(
    tpsl: Any, vault: Path, certificates: Path, stated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = stated.read_bytes()
    document = json.loads(before)
    monkeypatch.setattr("tpsl.handover.signing.sign", lambda content, folder: document)
    again = tpsl("vault", "statement", vault, "--certs", certificates / "label", "--out", stated.parent)
    assert "exists already" in again.error()
    assert stated.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "is no statement: it is not JSON"),
        ("[" * 100_000, "is no statement: it is not JSON"),
        ("{}", "this is no signed document"),
        (" " * (1 << 20) + "{}", "is no statement: it has more than"),
    ],
)
def test_a_file_that_is_no_statement_is_a_sentence(tpsl: Any, tmp_path: Path, content: str, sentence: str) -> None:
    (tmp_path / "file.json").write_text(content)
    assert (
        f"{tmp_path / 'file.json'}: {sentence}" in tpsl("vault", "statement", "--check", tmp_path / "file.json").error()
    )
    assert "nothing" in tpsl("vault", "statement", "--check", tmp_path / "nothing").error()
