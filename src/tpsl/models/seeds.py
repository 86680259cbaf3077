"""Seeds of random streams: one for each purpose, so that what one of them draws does not shift the others."""

from __future__ import annotations

import hashlib


def seed_of(*purpose: str | int) -> int:
    """Return the seed of the stream of this purpose, as `seed_of("tpsl weights", 7, "label top")`."""
    digest = hashlib.sha256("\x1f".join(map(str, purpose)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
