"""Products of ciphertexts within cells: the encrypted sum of the labels of each cell of each field.

Several small fields are multiplied at once, into the cells that they have jointly, and these into the cells of each
field afterwards: with 20 × 15 × 10 joint cells, 100,000 records and three fields take 100,000 + 9,000 products instead
of 300,000.

What goes back is packed: a plaintext has room for dozens of sums, each in a slot of 64 bits. `Σ_j S_j 2^(64j)` is made
by raising ciphertexts to powers of two, masked as one number, and taken apart by the feature party, which alone knows
the mask.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import joblib
import numpy as np
import numpy.typing as npt

from tpsl.blind.paillier import PublicKey, gmp

Codes = npt.NDArray[np.integer]
"""For each record and field the number of its cell among those of the field."""

RECORDS_AT_ONCE = 1 << 17
SLOT = 64
"""Bits for a sum with its noise; it may be negative."""

_JOINT_CELLS = 1 << 12
"""More of them leave the processor's cache, which costs more than the products saved."""


def groups_of(sizes: Sequence[int], records: int) -> list[list[int]]:
    """Return fields in groups, each with few joint cells, by first fit."""
    most = min(_JOINT_CELLS, records // 4)
    groups: list[list[int]] = []
    for field in sorted(range(len(sizes)), key=lambda j: sizes[j], reverse=True):
        for group in groups:
            if sizes[field] * math.prod(sizes[j] for j in group) <= most:
                group.append(field)
                break
        else:
            groups.append([field])
    return groups


def products(public: PublicKey, packed: npt.NDArray[np.uint8], codes: Codes, sizes: Sequence[int]) -> list[int]:
    """Return the product of the ciphertexts of each cell, field after field; 1, which encrypts 0, of an empty one."""
    ciphertexts, square = public.unpack(packed.tobytes()), public.square
    found: list[list[int]] = [[] for _ in sizes]
    for group in groups_of(sizes, len(codes)):
        shape = tuple(sizes[j] for j in group)
        joint = np.ravel_multi_index(tuple(codes[:, j] for j in group), shape).tolist()
        cells: dict[int, int] = {}
        for cell, ciphertext in zip(joint, ciphertexts, strict=True):
            cells[cell] = cells[cell] * ciphertext % square if cell in cells else ciphertext
        for field, codes_of_field in zip(group, np.unravel_index(np.array([*cells], np.int64), shape), strict=True):
            row = found[field] = [gmp().mpz(1)] * sizes[field]
            for code, product in zip(codes_of_field.tolist(), cells.values(), strict=True):
                row[code] = row[code] * product % square
    return [cell for row in found for cell in row]


def sums(
    public: PublicKey, packed: npt.NDArray[np.uint8], codes: Codes, sizes: Sequence[int], workers: int = 1
) -> list[int]:
    """Return `products` of all records, by several processes.

    Args:
        public: the key of the ciphertexts.
        packed: a ciphertext a record, one after the other, as bytes; may be mapped from a file.
        codes: the cells of the records.
        sizes: the number of cells of each field.
        workers: processes.
    """
    size = public.ciphertext_bytes
    at_once = max(1, min(RECORDS_AT_ONCE, -(-len(codes) // workers)))
    parts = [slice(at, min(at + at_once, len(codes))) for at in range(0, len(codes), at_once)]
    run = joblib.Parallel(n_jobs=min(workers, len(parts)) or 1, return_as="generator", max_nbytes=None)
    work = joblib.delayed(products)
    total = [gmp().mpz(1)] * sum(sizes)
    for of_part in run(
        work(public, packed[part.start * size : part.stop * size], codes[part], sizes) for part in parts
    ):
        total = [a * b % public.square for a, b in zip(total, of_part, strict=True)]
    return total


def slots(public: PublicKey) -> int:
    """Return how many sums a plaintext has room for; the highest is not filled, so that signs are told apart."""
    return (public.bits - 1) // SLOT


def packed_sums(public: PublicKey, sums: Sequence[int], weights: Sequence[int]) -> list[int]:
    """Return ciphertexts of `Σ_j weight_j·sum_j·2^(64j)`, for as many sums at a time as there are slots."""
    g, found = gmp(), []
    for start in range(0, len(sums), slots(public)):
        total = g.mpz(1)
        part = slice(start, start + slots(public))
        for ciphertext, weight in reversed([*zip(sums[part], weights[part], strict=True)]):
            weighted = g.powmod(ciphertext, int(weight), public.square)
            total = g.powmod(total, 1 << SLOT, public.square) * weighted % public.square
        found.append(total)
    return found


def with_noise(public: PublicKey, masked: Sequence[int], noise: npt.NDArray[np.int64]) -> list[int]:
    """Return decrypted numbers with noise in their slots: what the label party answers. It does not know the sums."""
    room, n = slots(public), int(public.n)
    return [(int(number) + _joined(noise[at * room : (at + 1) * room])) % n for at, number in enumerate(masked)]


def unmasked(public: PublicKey, noisy: Sequence[int], masks: Sequence[int], count: int) -> npt.NDArray[np.int64]:
    """Return the noisy sums of `count` slots."""
    n, room = int(public.n), slots(public)
    found: list[int] = []
    for number, mask in zip(noisy, masks, strict=True):
        rest = (int(number) - int(mask)) % n
        rest -= n if rest > n // 2 else 0
        for _ in range(min(room, count - len(found))):
            digit = (rest + (1 << SLOT - 1)) % (1 << SLOT) - (1 << SLOT - 1)
            rest = rest - digit >> SLOT
            found.append(digit)
    return np.array(found, np.int64)


def _joined(numbers: npt.NDArray[np.int64]) -> int:
    """Return `Σ_j numbers_j·2^(64j)`."""
    total = 0
    for number in reversed(numbers.tolist()):
        total = (total << SLOT) + int(number)
    return total
