"""Points against RFC 7748 and RFC 9380, computed here a second time with Python's integers."""

import builtins
import hashlib
import os
from typing import Any

import numpy as np
import pytest
from nacl.bindings import crypto_scalarmult

from tpsl.alignment import AlignmentError, group
from tpsl.alignment.group import POINT_BYTES, PRIME, Bytes32, fresh_scalar, hashed, multiplied, require_points
from tpsl.net.failures import BadMessage

ORDER = 2**252 + 27742317777372353535851937790883648493
"""Of the prime-order subgroup."""
A = 486662
LOW_ORDER = [
    0,
    1,
    PRIME - 1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
]


def rows(*numbers: int) -> Bytes32:
    return np.array([list(number.to_bytes(POINT_BYTES, "little")) for number in numbers], np.uint8)


def number(point: Bytes32) -> int:
    return int.from_bytes(point.tobytes(), "little")


def ladder(scalar: int, u: int) -> int:
    """The Montgomery ladder of RFC 7748, section 5, for any scalar; 0 stands for the neutral element too."""
    x2, z2, x3, z3 = 1, 0, u, 1
    for bit in reversed(range(256)):
        if scalar >> bit & 1:
            x2, z2, x3, z3 = x3, z3, x2, z2
        total, difference = x2 + z2, x2 - z2
        cross, other = (x3 - z3) * total, (x3 + z3) * difference
        x3, z3 = (cross + other) ** 2 % PRIME, u * (cross - other) ** 2 % PRIME
        square, e = total**2, total**2 - difference**2
        x2, z2 = square * difference**2 % PRIME, e * (square + (A - 2) // 4 * e) % PRIME
        if scalar >> bit & 1:
            x2, z2, x3, z3 = x3, z3, x2, z2
    return x2 * pow(z2, -1, PRIME) % PRIME if z2 else 0


def elligator_2(r: int) -> int:
    """The u-coordinate of RFC 9380, section 6.7.1, for Curve25519 with Z = 2."""
    w = -A * pow(1 + 2 * r * r, -1, PRIME) % PRIME
    is_square = pow(w**3 + A * w**2 + w, (PRIME - 1) // 2, PRIME) <= 1
    return w if is_square else (-w - A) % PRIME


def random_points(count: int) -> Bytes32:
    return hashed(np.frombuffer(os.urandom(POINT_BYTES * count), np.uint8).reshape(-1, POINT_BYTES), b"a test")


def test_a_hashed_key_is_elligator_2_of_its_digest_times_the_cofactor() -> None:
    digests = np.arange(5 * POINT_BYTES, dtype=np.uint8).reshape(-1, POINT_BYTES)
    for digest, point in zip(digests, hashed(digests, b"context"), strict=True):
        text = b"tpsl alignment: key to point\0" + (7).to_bytes(8, "little") + b"context" + digest.tobytes()
        r = int.from_bytes(hashlib.sha256(text).digest(), "little") % 2**255
        assert number(point) == ladder(8, elligator_2(r))


def test_hashed_keys_are_in_the_prime_order_subgroup() -> None:
    for point in random_points(20):
        assert ladder(ORDER, number(point)) == 0
        assert number(point) != 0


def test_a_context_changes_every_point() -> None:
    digests = np.arange(10 * POINT_BYTES, dtype=np.uint32).astype(np.uint8).reshape(-1, POINT_BYTES)
    assert (hashed(digests, b"one") != hashed(digests, b"two")).any(axis=1).all()
    assert (hashed(digests, b"one") == hashed(digests, b"one")).all()


def test_multiplication_is_x25519() -> None:
    scalar = bytes.fromhex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4")
    u = np.frombuffer(bytes.fromhex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c"), np.uint8)
    expected = "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"
    assert multiplied(u[None], scalar).tobytes().hex() == expected


def test_multiplications_commute_keep_their_shape_and_differ_by_scalar() -> None:
    points = random_points(1200).reshape(400, 3, POINT_BYTES)
    a, b = fresh_scalar(), fresh_scalar()
    assert (multiplied(multiplied(points, a), b) == multiplied(multiplied(points, b), a)).all()
    assert multiplied(points, a).shape == points.shape
    assert (multiplied(points, a) != multiplied(points, b)).any(axis=-1).all()
    assert multiplied(points[:0], a).shape == (0, 3, POINT_BYTES)


def test_what_is_of_low_order_in_a_point_is_gone_after_a_multiplication() -> None:
    """On the curve (cofactor 8) and on its twist (cofactor 4): the product lies in the subgroup of prime order."""
    twist_order = (2 * PRIME + 2 - 8 * ORDER) // 4
    for u in range(2, 12):
        on_curve = pow(u**3 + A * u**2 + u, (PRIME - 1) // 2, PRIME) == 1
        product = number(multiplied(rows(u), fresh_scalar())[0])
        assert ladder(ORDER if on_curve else twist_order, product) == 0


@pytest.mark.parametrize("u", LOW_ORDER)
def test_points_of_low_order_are_refused_as_libsodium_does(u: int) -> None:
    points = np.concatenate([random_points(3), rows(u)])
    with pytest.raises(BadMessage, match=r"^feature party 'shop' sent a point of low order$"):
        require_points(points, "feature party 'shop'")
    with pytest.raises(RuntimeError):
        crypto_scalarmult(fresh_scalar(), rows(u).tobytes())


@pytest.mark.parametrize("u", [PRIME, PRIME + 1, PRIME + 18, 2**255, 2**255 + 9, 2**256 - 1])
def test_a_second_way_to_write_a_point_is_refused(u: int) -> None:
    with pytest.raises(BadMessage, match=r"^the label party sent a point that is not in canonical form$"):
        require_points(np.concatenate([random_points(3), rows(u)]), "the label party")


def test_all_other_points_are_accepted() -> None:
    require_points(np.concatenate([random_points(100), rows(2, PRIME - 2, 2**255 - 2**240)]), "nobody")
    require_points(random_points(6).reshape(2, 3, POINT_BYTES), "nobody")


def test_without_pynacl_one_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    imports = builtins.__import__

    def without_nacl(name: str, *arguments: Any, **named: Any) -> Any:
        if name.startswith("nacl"):
            raise ImportError(name)
        return imports(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without_nacl)
    with pytest.raises(AlignmentError, match=r"needs PyNaCl: `pip install 'tpsl\[align\]'` gets it"):
        group.hashed(np.zeros((1, POINT_BYTES), np.uint8), b"")
