"""The group of the private set intersection: Curve25519, computed by libsodium through PyNaCl.

A point is written as its u-coordinate, 32 bytes, little endian (RFC 7748). Two things are done with points:

* a key is hashed to one: SHA-256 with a domain of its own, Elligator 2, times the cofactor 8
  (`crypto_core_ed25519_from_uniform`), and from edwards25519 to the u-coordinate of the same point of Curve25519,
  u = (1 + y)/(1 - y) (RFC 7748, section 4.1);
* a point is multiplied by a secret scalar: X25519 (`crypto_scalarmult`). It commutes, X(a, X(b, P)) = X(b, X(a, P)),
  and its scalars are multiples of 8, so that whatever was added to a point from a small subgroup is gone.

X25519 because it is three times as fast as libsodium's multiplication on edwards25519, which checks the subgroup of
each point with a second multiplication. X25519 needs no such check: every u belongs to a point of Curve25519 or of its
twist, both have a large prime-order subgroup, and multiples of 8 clear both cofactors (Bernstein 2006). What is left to
refuse are second ways to write a u and the five u of low order, for which the product is 0: `require_points`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import ModuleType

import numpy as np
import numpy.typing as npt
import torch

from tpsl.alignment import AlignmentError
from tpsl.net.failures import BadMessage

Bytes32 = npt.NDArray[np.uint8]
"""Points, or digests of keys: [..., 32]."""

POINT_BYTES = 32
PRIME = 2**255 - 19

_ORDER_8 = (
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
)
_LOW_ORDER = np.array([list(u.to_bytes(POINT_BYTES, "little")) for u in (0, 1, PRIME - 1, *_ORDER_8)], np.uint8)
_HASH_DOMAIN = b"tpsl alignment: key to point\0"
_AT_ONCE = 512  # points that a thread takes


def fresh_scalar() -> bytes:
    """Return a new secret from the operating system; X25519 clamps it: a multiple of 8, never 0 in the group."""
    return os.urandom(POINT_BYTES)


def hashed(digests: Bytes32, context: bytes) -> Bytes32:
    """Return the point of each digest of a key; points of different contexts have nothing to do with each other."""
    start, nacl = hashlib.sha256(_HASH_DOMAIN + len(context).to_bytes(8, "little") + context), _nacl()

    def point(digest: bytes) -> bytes:
        hashing = start.copy()
        hashing.update(digest)
        made: bytes = nacl.crypto_core_ed25519_from_uniform(hashing.digest())
        return made

    return _u_coordinates(_each(point, digests))


def multiplied(points: Bytes32, scalar: bytes) -> Bytes32:
    """Return each point times the scalar, in as many threads as torch has; the points passed `require_points`."""
    return _each(partial(_nacl().crypto_scalarmult, scalar), points)


def require_points(points: Bytes32, sender: str) -> None:
    """Raise BadMessage unless each point is written in the one canonical way and is not of low order."""
    largest, lowest = points[..., 31] == 0x7F, points[..., 0] >= 0xED
    not_canonical = (points[..., 31] > 0x7F) | (largest & lowest & (points[..., 1:31] == 0xFF).all(axis=-1))
    if not_canonical.any():
        raise BadMessage(f"{sender} sent a point that is not in canonical form")
    # Most points differ from all five in their first byte.
    for low in _LOW_ORDER:
        suspects = points[points[..., 0] == low[0]]
        if (suspects == low).all(axis=-1).any():
            raise BadMessage(f"{sender} sent a point of low order")


def _each(work: Callable[[bytes], bytes], items: Bytes32) -> Bytes32:
    """Return what the work makes of each 32 bytes, in an array of the same shape. libsodium runs without the GIL."""
    data = np.ascontiguousarray(items).tobytes()

    def done(begin: int) -> bytes:
        end = min(begin + _AT_ONCE * POINT_BYTES, len(data))
        return b"".join([work(data[at : at + POINT_BYTES]) for at in range(begin, end, POINT_BYTES)])

    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        results = b"".join(threads.map(done, range(0, len(data), _AT_ONCE * POINT_BYTES)))
    return np.frombuffer(results, np.uint8).reshape(items.shape)


def _u_coordinates(edwards: Bytes32) -> Bytes32:
    """Return u = (1 + y)/(1 - y) for points of edwards25519, with one inversion for all of them (Montgomery's trick).

    No hashed key is the neutral element, y = 1: that has probability 2^-252.
    """
    data = edwards.tobytes()
    ys = [int.from_bytes(data[at : at + POINT_BYTES], "little") & (2**255 - 1) for at in range(0, len(data), 32)]
    products, product = [], 1
    for y in ys:
        products.append(product)
        product = product * (1 - y) % PRIME
    inverse, us = pow(product, -1, PRIME), []
    for y, before in zip(reversed(ys), reversed(products), strict=True):
        us.append(((1 + y) * inverse * before % PRIME).to_bytes(POINT_BYTES, "little"))
        inverse = inverse * (1 - y) % PRIME
    us.reverse()
    return np.frombuffer(b"".join(us), np.uint8).reshape(edwards.shape)


def _nacl() -> ModuleType:
    try:
        import nacl.bindings
    except ImportError:
        raise AlignmentError("private set intersection needs PyNaCl: `pip install 'tpsl[align]'` gets it") from None
    bindings: ModuleType = nacl.bindings
    return bindings
