"""A hostile peer that sends a million frames: `python benchmarks/fuzz_frames.py [--inputs N] [--seed N] [--json]`.

Honest frames of every kind are damaged in every way that comes to mind, and others are made up. Each must be refused
with BadMessage or be a frame an honest peer could have sent; anything else that leaves the decoder ends this program.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import get_args

import torch

from tpsl.net import wire_pb2
from tpsl.net.codec import decode, encode
from tpsl.net.failures import BadMessage
from tpsl.net.messages import Limits, Message, WireDtype

LIMITS = Limits(rows=64, width=16)
DTYPES: tuple[WireDtype, ...] = get_args(WireDtype)
EDGES = (0, 1, 0x0A, 0x12, 0x7F, 0x80, 0xFE, 0xFF)
NUMBERS = (0, 1, 63, 64, 65, 127, 128, 1 << 14, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, 1 << 64)
MOST_MEMORY = 64 << 20

Make = Callable[[Random, list[bytes]], bytes]


def honest_frames(dtype: WireDtype) -> list[bytes]:
    rows, nonce = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), bytes(range(32))
    fields = (("protocol", "1"), ("job", "f" * 64))
    messages = [
        Message(3, 1, tensor=rows, session=nonce[:16], number=300),
        Message(2**40, 0, tensor=rows[:1]),
        Message(0, 7, tensor=rows[:0], session=nonce[:16], number=1),
        Message(0, 1, tensor=rows[:, :1]),
        Message(3, 1, session=nonce[:16], number=300, pending=True),
        Message(pending=True),
        Message(400, numbers=(1, 0)),
        Message(text="airport", secret=nonce, fields=fields),
        Message(text="airport", secret=nonce, session=nonce[:16], number=2, numbers=(0, 200, 400)),
        Message(200, secret=nonce, session=nonce[:16]),
        Message(text="airport", session=nonce[:16], fields=(("stopped", "the disk is full"),)),
        Message(),
    ]
    return [encode(message, dtype) for message in messages]


def varint(number: int) -> bytes:
    digits = [number >> shift & 0x7F | 0x80 for shift in range(0, max(number.bit_length(), 1), 7)]
    return bytes((*digits[:-1], digits[-1] & 0x7F))


def framed(header: bytes, rest: bytes = b"") -> bytes:
    return len(header).to_bytes(4, "little") + header + rest


def flipped(random: Random, frames: list[bytes]) -> bytes:
    frame = bytearray(random.choice(frames))
    for _ in range(random.choice((1, 1, 1, 2, 8))):
        frame[random.randrange(len(frame))] ^= 1 << random.randrange(8)
    return bytes(frame)


def overwritten(random: Random, frames: list[bytes]) -> bytes:
    frame = bytearray(random.choice(frames))
    frame[random.randrange(min(len(frame), 40))] = random.choice(EDGES)
    return bytes(frame)


def truncated(random: Random, frames: list[bytes]) -> bytes:
    frame = random.choice(frames)
    return frame[: random.randrange(len(frame))]


def extended(random: Random, frames: list[bytes]) -> bytes:
    return random.choice(frames) + random.randbytes(random.randrange(1, 20))


def repeated(random: Random, frames: list[bytes]) -> bytes:
    """Some bytes twice, or gone."""
    frame = random.choice(frames)
    begin, end = sorted((random.randrange(len(frame)), random.randrange(len(frame) + 1)))
    return frame[:end] + frame[begin:] if random.random() < 0.5 else frame[:begin] + frame[end:]


def spliced(random: Random, frames: list[bytes]) -> bytes:
    one, other = random.choice(frames), random.choice(frames)
    return one[: random.randrange(len(one) + 1)] + other[random.randrange(len(other)) :]


def with_a_number(random: Random, frames: list[bytes]) -> bytes:
    """A number of any size where there was a byte."""
    frame = random.choice(frames)
    place = random.randrange(min(len(frame), 40))
    return frame[:place] + varint(random.choice(NUMBERS)) + frame[place + 1 :]


def made_up(random: Random, frames: list[bytes]) -> bytes:
    """Fields and numbers that are protobuf, but no honest header."""
    header = some_fields(random, depth=0)
    return framed(header, b"" if random.random() < 0.5 else bytes(8))


def some_fields(random: Random, depth: int) -> bytes:
    fields = []
    for _ in range(random.randrange(4)):
        number, kind = random.randrange(1, 20), random.choice((0, 0, 2, 2, 2, 1, 5, 3))
        if kind == 0:
            value = varint(random.choice(NUMBERS))
        elif kind == 2:
            inside = some_fields(random, depth + 1) if depth < 3 else random.randbytes(random.randrange(8))
            value = varint(len(inside)) + inside
        else:
            value = random.randbytes({1: 8, 5: 4, 3: random.randrange(4)}[kind])
        fields.append(varint(number << 3 | kind) + value)
    return b"".join(fields)


def large(random: Random, frames: list[bytes]) -> bytes:
    """Many small things in one header, around the most it may have."""
    entry = random.choice((b"\x42\x00", b"\x0b", b"\x42\x02\x0a\x00", b"\x10\x00", b"\x30\x01", b"\xff"))
    header = entry * (random.choice((100, 5_000, 1 << 16, (1 << 16) + 9)) // len(entry))
    if random.random() < 0.5:
        header = b"\x42" + varint(len(header)) + header
    return framed(header)


def noise(random: Random, frames: list[bytes]) -> bytes:
    return random.choice((b"", bytes(4), b"\x08\0\0\0")) + random.randbytes(random.randrange(64))


MAKERS: tuple[Make, ...] = (
    *(flipped, overwritten, truncated, extended, repeated, spliced, with_a_number, made_up, noise) * 20,
    large,
)


def peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def attack(inputs: int, seed: int) -> dict[str, float]:
    random = Random(seed)
    frames = {dtype: honest_frames(dtype) for dtype in DTYPES}
    for dtype in DTYPES:
        for frame in frames[dtype]:
            decode(frame, LIMITS, dtype, sender="an honest peer")
    memory = peak_memory()
    counted: Counter[str] = Counter()
    decoding = 0.0
    for number in range(inputs):
        dtype = DTYPES[number % len(DTYPES)]
        make = random.choice(MAKERS)
        data = make(random, frames[dtype])
        started = time.perf_counter()
        try:
            decode(data, LIMITS, dtype, sender="a hostile peer")
        except BadMessage as refusal:
            assert "a hostile peer" in str(refusal), refusal
            counted["refused"] += 1
        except BaseException:
            print(f"input {number} of seed {seed}, {make.__name__}, {dtype}: {data.hex()}")
            raise
        else:
            counted["accepted"] += 1
            # The header that was accepted is written as protobuf itself would write it.
            size = int.from_bytes(data[:4], "little")
            header = wire_pb2.Header.FromString(data[4 : 4 + size])
            again = framed(header.SerializeToString(deterministic=True), data[4 + size :])
            assert again == data, f"accepted, but not canonical: {data.hex()}"
        decoding += time.perf_counter() - started
    growth = peak_memory() - memory
    assert growth < MOST_MEMORY, f"the decoder took {growth} bytes more than honest frames need"
    return {
        "inputs": inputs,
        "refused": counted["refused"],
        "accepted": counted["accepted"],
        "inputs_per_second": inputs / decoding,
        "memory_growth_bytes": growth,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    found = attack(arguments.inputs, arguments.seed)
    if arguments.json:
        print(json.dumps(found))
        return
    print(f"{found['inputs']:,} inputs: {found['refused']:,} refused, {found['accepted']:,} accepted, nothing else")
    print(f"{found['inputs_per_second']:,.0f} inputs/s in the decoder")
    print(f"{found['memory_growth_bytes'] / 2**20:.1f} MiB more memory at the peak")


if __name__ == "__main__":
    main()
