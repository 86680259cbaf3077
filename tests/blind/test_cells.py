"""Sums of encrypted labels over cells equal those in the clear, however they are grouped, packed and cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpsl.blind.cells import groups_of, packed_sums, slots, sums, unmasked, with_noise
from tpsl.blind.paillier import PublicKey, SecretKey
from tpsl.mechanisms import secure_words

SIZES = [5, 1, 40, 3, 2, 17, 4]


@pytest.fixture(scope="module")
def key() -> SecretKey:
    return SecretKey.random(2048)


@pytest.mark.parametrize("classes", [2, 4])
def test_noisy_sums_are_those_in_the_clear(key: SecretKey, classes: int) -> None:
    generator, records = np.random.default_rng(1), 900
    codes = np.stack([generator.integers(0, size, records) for size in SIZES], axis=1)
    labels = generator.integers(0, classes, records)
    weights = np.repeat(generator.integers(1, 1 << 15, len(SIZES)), SIZES)
    noise = generator.integers(-(1 << 40), 1 << 40, sum(SIZES))
    messages = (0, 1) if classes == 2 else (0, 1, 1 << 20, 1 << 40)
    public = key.public
    packed = np.frombuffer(public.pack(key.encrypt(labels, messages, secure_words())), np.uint8)
    encrypted = sums(public, packed, codes, SIZES, workers=2)
    assert encrypted == sums(public, packed, codes, SIZES)
    clear = np.concatenate([np.bincount(codes[:, j], np.array(messages)[labels], size) for j, size in enumerate(SIZES)])
    assert key.decrypt(encrypted) == clear.astype(np.int64).tolist()
    if classes > 2:
        return
    masks = [public.random_mask() for _ in range(-(-sum(SIZES) // slots(public)))]
    sent = [public.blinded(c, mask) for c, mask in zip(packed_sums(public, encrypted, weights), masks, strict=True)]
    answered = with_noise(public, key.decrypt(sent), noise)
    assert (unmasked(public, answered, masks, sum(SIZES)) == clear * weights + noise).all()


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=95), st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_slots_hold_any_number(numbers: list[int], random: object) -> None:
    public = PublicKey((1 << 2047) + 12345, ())
    masks = [random.getrandbits(2040) for _ in range(-(-len(numbers) // slots(public)))]  # type: ignore[attr-defined]
    answered = with_noise(public, masks, np.array(numbers, np.int64))
    assert unmasked(public, answered, masks, len(numbers)).tolist() == numbers


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=60), st.integers(1, 10**6))
def test_every_field_is_in_one_group_and_joint_cells_are_few(sizes: list[int], records: int) -> None:
    groups = groups_of(sizes, records)
    assert sorted(field for group in groups for field in group) == list(range(len(sizes)))
    assert all(len(group) == 1 or np.prod([sizes[j] for j in group]) <= records / 4 for group in groups)
