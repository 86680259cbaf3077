"""What the parties of an alignment agree on before a list crosses, and what they accept from each other."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

import numpy as np

from tpsl.alignment.group import POINT_BYTES
from tpsl.data.config import AlignmentConfig
from tpsl.net.agreement import Agreement
from tpsl.net.messages import LABEL_PARTY, Limits

POSITION = np.dtype([("position", "<u4"), ("key", "u1")])
"""Where a common record is in a party's list, and the number of the key by which it was found, as they cross."""
MOST_RECORDS = (1 << 32) - 1

POINTS_AT_ONCE = 1 << 14
"""How many points cross in one message."""

_PROTOCOL = "alignment 3"


@dataclass(frozen=True)
class AlignmentTerms:
    """How records are aligned, and by whom; all parties hold the same, or the handshake names the difference."""

    config: AlignmentConfig
    parties: tuple[str, ...]
    """The feature parties in the job's order. The list of the first sets the order of the common records."""

    @property
    def circle(self) -> tuple[str, ...]:
        """All parties in the order in which lists go around."""
        return (LABEL_PARTY, *self.parties)

    @property
    def rounds(self) -> int:
        """In round r each party blinds the list of the one r places before it in the circle."""
        return len(self.circle)

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the keys, in order of preference."""
        return tuple(key.name for key in self.config.keys)

    @property
    def row_bytes(self) -> int:
        """Bytes of a record in a list."""
        return POINT_BYTES * len(self.keys)

    @property
    def batch(self) -> int:
        """How many records cross in one message."""
        return max(1, POINTS_AT_ONCE // len(self.keys))

    def owner(self, party: str, round_: int) -> str:
        """Return whose list a party blinds in a round."""
        return self.circle[(self.circle.index(party) - round_) % len(self.circle)]

    def agreement(self) -> Agreement:
        """Return what the handshake compares. No ids are compared: the proofs are made under a digest of the fields."""
        fields = {
            "protocol version": _PROTOCOL,
            "feature parties": ", ".join(self.parties),
            **{f"alignment.{name}": json.dumps(value) for name, value in self.config.model_dump(mode="json").items()},
        }
        return Agreement(fields, hashlib.sha256(json.dumps(fields).encode()).digest())

    def limits(self) -> Limits:
        """Return the messages that a party accepts."""
        return Limits(self.batch, self.row_bytes)
