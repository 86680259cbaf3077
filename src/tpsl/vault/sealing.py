"""Pieces of a file beside an encrypted vault: AES-256-GCM, each bound to its place."""

import hashlib
import os
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE_BYTES = 12


class SealBroken(Exception):
    """A piece was changed, or moved from its place, or closed with another key."""


@dataclass(frozen=True)
class Seal:
    """Closes pieces with a key, or leaves them as they are if there is none."""

    key: bytes | None = field(repr=False)

    @property
    def name(self) -> str | None:
        """Tells two keys apart, and nothing about them."""
        return None if self.key is None else hashlib.sha256(b"name of a seal" + self.key).hexdigest()

    def close(self, piece: bytes, place: str) -> bytes:
        """The piece as it is stored at its place."""
        if self.key is None:
            return piece
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + AESGCM(self.key).encrypt(nonce, piece, place.encode())

    def open(self, stored: bytes, place: str) -> bytes:
        """The piece that is stored at a place; `SealBroken` if it is not the one that was closed there."""
        if self.key is None:
            return stored
        try:
            return AESGCM(self.key).decrypt(stored[:_NONCE_BYTES], stored[_NONCE_BYTES:], place.encode())
        except (InvalidTag, ValueError) as error:
            raise SealBroken("it was changed, or stored with another key") from error
