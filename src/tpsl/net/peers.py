"""The label party's name, and how sentences name a party."""

from __future__ import annotations

LABEL_PARTY = "label"


def described(party: str) -> str:
    """Return a party's name as sentences use it."""
    return "the label party" if party == LABEL_PARTY else f"feature party {party!r}"
