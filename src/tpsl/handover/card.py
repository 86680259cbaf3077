"""The card that goes with handed-over labels: which noise they have, what it cost, and which file they are in.

The mechanism stands there as its spec and as its integers. Who reads a card believes neither: the mechanism is rebuilt
from the spec by this program (a user's own table from its integers; no code is called that a card names), and the
integers, their digest and the ε that follows from them must be those that the card states.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tpsl.files import shortened, write_atomically
from tpsl.handover.signing import SignatureInvalid, check, read_document, sign
from tpsl.mechanisms import Mechanism, from_spec
from tpsl.vault import Spent
from tpsl.vault.cost import as_json, times

FORMAT = 1
CARD, LABELS = "card.json", "labels.parquet"
"""The two files of a hand-over, in one folder."""
_LARGEST_FILE = 1 << 25
_FIELDS: dict[str, tuple[type, ...]] = {
    "classes": (int,),
    "mechanism": (dict,),
    "table": (list,),
    "table_digest": (str,),
    "draws": (int,),
    "epsilon": (float, str),
    "delta": (float,),
    "private": (bool,),
    "epsilon_per_record": (float, str),
    "delta_per_record": (float,),
    "all_private": (bool,),
    "records": (int,),
    "ids_digest": (str,),
    "labels_digest": (str,),
    "ledger_head": (str,),
}
_LONGEST_NAME = 200


class CardError(ValueError):
    """A card, or handed-over labels, that do not hold; the sentence names the file."""


@dataclass(frozen=True)
class Card:
    """What is stated about handed-over labels."""

    mechanism: Mechanism
    draws: int
    private: bool
    """Whether the noise was drawn from secure randomness."""
    spent: Spent
    """The most that any record of the vault had spent when the labels were handed over, over all releases."""
    records: int
    ids_digest: str
    """SHA-256 of the records' ids, in the order of the file."""
    labels_digest: str
    """SHA-256 of the file."""
    ledger_head: str
    """The newest hash of the vault's ledger: with a statement it shows which history the labels belong to."""
    label: str | None = None
    """What the labels are of, as the label party calls it; None: it does not say."""
    signer: str | None = None
    """Who has signed; None: nobody has, or it was not checked against an authority."""

    def content(self) -> dict[str, Any]:
        """Return the card as JSON-able data."""
        mechanism = self.mechanism
        return {
            "card": FORMAT,
            "program": f"tpsl {version('tpsl')}",
            "classes": mechanism.classes,
            "mechanism": mechanism.spec(),
            "table": mechanism.weights.tolist(),
            "table_digest": mechanism.digest,
            "draws": self.draws,
            "epsilon": as_json(times(mechanism.epsilon, self.draws)),
            "delta": times(mechanism.delta, self.draws),
            "private": self.private,
            "epsilon_per_record": as_json(self.spent.epsilon),
            "delta_per_record": self.spent.delta,
            "all_private": self.spent.private,
            "records": self.records,
            "ids_digest": self.ids_digest,
            "labels_digest": self.labels_digest,
            "ledger_head": self.ledger_head,
            "label": self.label,
        }


def write_card(card: Card, path: Path, certificates: Path | None) -> None:
    """Write a card, signed with the key of the label party's certificate folder if one is given."""
    document = {"content": card.content()} if certificates is None else sign(card.content(), certificates)
    write_atomically(path, (json.dumps(document, ensure_ascii=False) + "\n").encode())


def read_card(path: Path, classes: int, authority: Path | None) -> Card:
    """Return the card of labels of this number of classes, checked; with an `authority` it must be signed.

    Guarantee: the mechanism is that of the integers on the card, and ε and δ follow from them.
    """
    try:
        content, signer = _checked_signature(read_document(path, "card", _LARGEST_FILE), authority)
        _require_fields(content)
        return _card(content, classes, signer)
    except OSError as error:
        raise CardError(f"{path}: cannot be read ({error.strerror}); the card lies beside the labels") from error
    except (CardError, SignatureInvalid) as error:
        raise CardError(f"{path}: {error}") from error


def _checked_signature(document: Any, authority: Path | None) -> tuple[dict[str, Any], str | None]:
    """Return the content, and who has signed it if the authority says so."""
    if isinstance(document, dict) and document.keys() == {"content"} and isinstance(document["content"], dict):
        if authority is not None:
            raise CardError(
                f"nobody has signed it, and the authority in {authority.parent} is to say who has: the label party "
                "signs with --certs (`tpsl certs` makes certificates); without --certs here, and without "
                "`certificates` in the local file, labels are taken from anybody"
            )
        return document["content"], None
    checked = check(document, authority)
    return checked.content, checked.content["signer"]["subject"] if checked.by_authority else None


def _require_fields(content: Mapping[str, Any]) -> None:
    if content.get("card") != FORMAT:
        raise CardError(f"it is no card that this version of tpsl reads (format {FORMAT})")
    for name, kinds in _FIELDS.items():
        value = content.get(name)
        is_number = float not in kinds or isinstance(value, float) or value == "inf"
        if not isinstance(value, kinds) or not is_number or (isinstance(value, bool) and bool not in kinds):
            raise CardError(f"its {name} is {shortened(repr(value))}")
    label = content.get("label")  # cards of earlier versions have none
    if label is not None and not (isinstance(label, str) and label.isprintable() and 0 < len(label) <= _LONGEST_NAME):
        raise CardError(f"its label is {shortened(repr(label))}")


def _card(content: Mapping[str, Any], classes: int, signer: str | None) -> Card:
    mechanism, draws = _mechanism(content, classes), content["draws"]
    if draws not in (1, 2):
        raise CardError(f"its draws are {draws}, and a record has one or two")
    stated = (float(content["epsilon"]), content["delta"])
    if stated != (times(mechanism.epsilon, draws), times(mechanism.delta, draws)):
        raise CardError(f"it states ε = {stated[0]!r} and δ = {stated[1]!r}, which are not those of its table")
    spent = Spent(float(content["epsilon_per_record"]), content["delta_per_record"], content["all_private"])
    if not (spent.epsilon >= stated[0] and spent.delta >= stated[1]) or content["private"] < spent.private:
        raise CardError(f"it states that no record has spent more than ε = {spent.epsilon!r}, less than this release")
    digests = content["ids_digest"], content["labels_digest"], content["ledger_head"]
    return Card(mechanism, draws, content["private"], spent, content["records"], *digests, content.get("label"), signer)


def _mechanism(content: Mapping[str, Any], classes: int) -> Mechanism:
    """Return the mechanism, rebuilt here, if its integers are those on the card."""
    spec, name = content["mechanism"], shortened(repr(content["mechanism"].get("mechanism")))
    others = CardError(f"its labels are not of {classes} classes, as those of the job are")
    if content["classes"] != classes or spec.get("classes", classes) != classes:
        raise others  # before anything of that size is built
    try:
        mechanism = from_spec(spec)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise CardError(f"its mechanism {name} cannot be built ({shortened(str(error), 300)})") from error
    if mechanism.classes != classes:
        raise others
    if mechanism.digest != content["table_digest"] or mechanism.weights.tolist() != content["table"]:
        raise CardError(f"its table is not that of its mechanism {name}")
    return mechanism
