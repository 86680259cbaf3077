"""Streams of 64-bit random words, the only randomness a mechanism uses.

Both kinds are AES-256 in counter mode. They differ in the key alone: the secure stream takes it from the operating
system and forgets it with the object; the seeded stream derives it from a number that the user chose, so whoever knows
the number knows the noise. A seeded stream is for experiments that must be repeated, and everything made with it
says so.
"""

from __future__ import annotations

import hashlib
import operator
import os

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

Words = npt.NDArray[np.uint64]


class RandomWords:
    """An endless stream of uniform 64-bit words. `secure` says whether noise made from it is private."""

    def __init__(self, key: bytes, *, secure: bool) -> None:
        self._keystream: CipherContext = Cipher(AES(key), CTR(bytes(16))).encryptor()
        self.secure = secure
        self._process = os.getpid()

    def words(self, count: int) -> Words:
        """Return the next `count` words. The same key gives the same words however the calls are cut.

        A secure stream refuses to go on in a forked process: parent and child would draw the same noise.
        """
        if self.secure and os.getpid() != self._process:
            raise RuntimeError("a secure stream of random words does not cross a fork; make a new one in each process")
        keystream = self._keystream.update(bytes(8 * count))
        return np.frombuffer(keystream, dtype="<u8").astype(np.uint64, copy=False)


def secure_words() -> RandomWords:
    """Return a stream under a fresh 256-bit key from the operating system."""
    return RandomWords(os.urandom(32), secure=True)


def seeded_words(seed: int, *context: str | int) -> RandomWords:
    """Return the stream of `seed`; noise made from it is NOT private. Different contexts give independent streams."""
    text = "\x1f".join(["tpsl seeded noise", str(operator.index(seed)), *(str(part) for part in context)])
    return RandomWords(hashlib.sha256(text.encode()).digest(), secure=False)
