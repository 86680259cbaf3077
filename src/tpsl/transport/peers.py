"""How sentences name the other party."""

from __future__ import annotations

LABEL_PARTY = "label"


def described(peer: str) -> str:
    """Return a party's name as sentences use it."""
    return "the label party" if peer == LABEL_PARTY else f"feature party {peer!r}"
