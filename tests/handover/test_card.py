"""What a card states is believed only as far as it can be checked."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tpsl.handover.card import Card, CardError, read_card, write_card
from tpsl.mechanisms import (
    Mechanism,
    from_spec,
    integer_weights,
    laplace,
    randomized_response,
    subset_selection,
    table_mechanism,
)
from tpsl.vault import Spent

OWN = table_mechanism("ordinal", integer_weights([[0.6, 0.3, 0.1], [0.3, 0.4, 0.3], [0.1, 0.3, 0.6]], 2.0))


ONE = randomized_response(1.0)


def card(mechanism: Mechanism = ONE, draws: int = 1) -> Card:
    spent = Spent(max(3.0, draws * mechanism.epsilon), 0.0, True)
    return Card(mechanism, draws, True, spent, 7, "aa", "bb", "cc", "delay > 15 min")


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the content of an unsigned card."""
    document = json.loads(path.read_text())
    change(document["content"])
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    "mechanism",
    [randomized_response(1.0), laplace(0.5), randomized_response(3.0, 10), subset_selection(1.0, 100), OWN],
    ids=str,
)
def test_a_card_says_what_was_written(tmp_path: Path, mechanism: Mechanism) -> None:
    written = card(mechanism, 2)
    write_card(written, tmp_path / "card.json", None)
    read = read_card(tmp_path / "card.json", mechanism.classes, None)
    assert read.content() == written.content() and read.signer is None
    assert read.label == "delay > 15 min"
    assert (read.mechanism.weights == mechanism.weights).all()
    content = json.loads((tmp_path / "card.json").read_text())["content"]
    assert all(sum(row) == 1 << 64 for row in content["table"])
    assert content["epsilon"] == pytest.approx(2 * mechanism.epsilon, abs=1e-12)


def test_a_card_of_an_earlier_version_does_not_name_the_label(tmp_path: Path) -> None:
    write_card(card(), tmp_path / "card.json", None)
    changed(tmp_path / "card.json", lambda content: content.pop("label"))
    assert read_card(tmp_path / "card.json", 2, None).label is None


def test_without_noise_the_card_says_so(tmp_path: Path) -> None:
    written = card(from_spec({"mechanism": "none", "classes": 2}))
    write_card(written, tmp_path / "card.json", None)
    assert json.loads((tmp_path / "card.json").read_text())["content"]["epsilon"] == "inf"
    assert math.isinf(read_card(tmp_path / "card.json", 2, None).mechanism.epsilon)


def test_a_signature_is_traced_to_the_authority(tmp_path: Path, certificates: Path) -> None:
    path, authority = tmp_path / "card.json", certificates / "feature" / "ca.pem"
    write_card(card(), path, certificates / "label")
    assert "label" in (read_card(path, 2, authority).signer or "")
    assert read_card(path, 2, None).signer is None  # anybody could have made the certificate
    document = json.loads(path.read_text())
    document["content"]["records"] = 8
    path.write_text(json.dumps(document))
    with pytest.raises(CardError, match=r"card\.json: the signature does not fit"):
        read_card(path, 2, None)
    write_card(card(), path, certificates / "foreign")
    with pytest.raises(CardError, match="its certificate is not one that the authority"):
        read_card(path, 2, authority)
    write_card(card(), path, None)
    with pytest.raises(CardError, match="nobody has signed it"):
        read_card(path, 2, authority)


def _spec(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda content: content["mechanism"].update(changes)


def _field(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda content: content.update(changes)


LIES = {
    "less ε than its table": (_field(epsilon=0.5), "states ε = 0.5 and δ = 0.0, which are not those of its table"),
    "less δ than its table": (_field(delta=1e-9), "not those of its table"),
    "less ε in all than in this release": (_field(epsilon_per_record=0.5), "than ε = 0.5, less than this release"),
    "no number for ε in all": (_field(epsilon_per_record=math.nan), "than ε = nan, less than this release"),
    "no number for δ in all": (_field(delta_per_record=math.nan), "less than this release"),
    "private in all, but not this": (_field(private=False), "less than this release"),
    "another ε in the spec": (_spec(epsilon=0.5), "its table is not that of its mechanism 'discrete'"),
    "another table": (lambda content: content["table"][0].reverse(), "its table is not that of its mechanism"),
    "another digest": (_field(table_digest="00"), "its table is not that of its mechanism"),
    "an unknown mechanism": (_spec(mechanism="os.system"), r"its mechanism 'os\.system' cannot be built"),
    "a mechanism of the wrong type": (_spec(mechanism=[1]), "cannot be built"),
    "a parameter of the wrong type": (_spec(epsilon="1; import os"), "epsilon must be a number"),
    "a parameter too many": (_spec(path="/etc/passwd"), "does not take these parameters"),
    "an ε without end": (_spec(epsilon=1e308), "too large to represent"),
    "classes without end": (_spec(classes=10**12), "its labels are not of 2 classes"),
    "other classes": (_field(classes=3), "its labels are not of 2 classes"),
    "too many draws": (_field(draws=3, epsilon=3.0), "its draws are 3"),
    "a number that is a text": (_field(records="7"), "its records is '7'"),
    "a number that is a truth": (_field(draws=True), "its draws is True"),
    "a field left out": (lambda content: content.pop("ledger_head"), "its ledger_head is None"),
    "a name that is a number": (_field(label=1), "its label is 1"),
    "a name that moves the cursor": (_field(label="\x1b[2J"), "its label is "),
    "a name without end": (_field(label=10_000 * "a"), "its label is 'aaa"),
    "another format": (_field(card=2), r"no card that this version of tpsl reads \(format 1\)"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_card_that_lies_is_refused(tmp_path: Path, lie: str) -> None:
    path = tmp_path / "card.json"
    write_card(card(), path, None)
    change, sentence = LIES[lie]
    changed(path, change)
    with pytest.raises(CardError, match=rf"card\.json: .*{sentence}"):
        read_card(path, 2, None)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"[" * 100_000, b"[]", b'{"content": 1}', b"{}", b"\xff"])
def test_what_is_no_card_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "card.json").write_bytes(content)
    with pytest.raises(CardError, match=r"card\.json: "):
        read_card(tmp_path / "card.json", 2, None)


def test_a_missing_card_is_named(tmp_path: Path) -> None:
    with pytest.raises(CardError, match=r"card\.json: cannot be read .*; the card lies beside the labels"):
        read_card(tmp_path / "card.json", 2, None)
