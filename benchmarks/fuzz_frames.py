"""A hostile peer that sends a million frames: `python benchmarks/fuzz_frames.py [--inputs N] [--seed N] [--json]`.

Honest frames of every kind are damaged in every way that comes to mind, others are made up, and the pieces of long
ones are damaged, left out or sent twice. Each must be refused with BadMessage or be a frame an honest peer could have
sent; anything else that leaves the decoder ends this program.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import get_args

import torch
from tpsl.transport import wire_pb2
from tpsl.transport.frames import FrameReader, Limits, decode, encode_control, encode_message
from tpsl.transport.messages import (
    Announcement,
    Bye,
    Finished,
    Message,
    Position,
    Rewind,
    Start,
    Stop,
    TensorMessage,
    Verdict,
    WireDtype,
)

from tpsl.net.failures import BadMessage

Embeddings = partial(TensorMessage, "embeddings")
Gradients = partial(TensorMessage, "gradients")
Estimates = partial(TensorMessage, "estimates")
TestEmbeddings = partial(TensorMessage, "test embeddings")
HeadEmbeddings = partial(TensorMessage, "head embeddings")

TOPICS = ("embeddings", "gradients", "estimates", "test embeddings", "head embeddings")
LIMITS = Limits(rows=64, width=16, topics=TOPICS)
DTYPES: tuple[WireDtype, ...] = get_args(WireDtype)
EDGES = (0, 1, 0x0A, 0x12, 0x7F, 0x80, 0xFE, 0xFF)
NUMBERS = (0, 1, 63, 64, 65, 127, 128, 1 << 14, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, 1 << 64)
MOST_MEMORY = 64 << 20
PIECE_BYTES = 48
PIECES_EVERY = 8
"""One input of so many is a frame in pieces."""

Make = Callable[[Random, list[bytes]], bytes]


def honest_frames(dtype: WireDtype) -> list[bytes]:
    numbers = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    messages: list[Message] = [
        Embeddings(3, 1, numbers),
        Gradients(2**40, 0, numbers[:1]),
        TestEmbeddings(0, 7, numbers[:0]),
        HeadEmbeddings(5, 2, numbers),
        Estimates(0, 1, numbers[:, :1]),
        Rewind(1),
        Position(1, (0, 200, 400)),
        Start(1, 200),
        Verdict(400, best=True, stop=True),
        Announcement(bytes(range(32)), (1_000_000, 2_000_000)),
        Finished(400),
        Bye(),
        Stop("the label party's vault is empty"),
    ]
    field = [wire_pb2.Field(name="protocol", value="1"), wire_pb2.Field(name="job", value="f" * 64)]
    nonce = bytes(range(32))
    headers = [
        wire_pb2.Header(hello=wire_pb2.Hello(party="airport", nonce=nonce, fields=field)),
        wire_pb2.Header(challenge=wire_pb2.Challenge(nonce=nonce, fields=field)),
        wire_pb2.Header(proof=wire_pb2.Proof(proof=nonce, link=nonce, received=17)),
        wire_pb2.Header(welcome=wire_pb2.Welcome(proof=nonce, link=nonce, received=300)),
        wire_pb2.Header(refusal=wire_pb2.Refusal(reason="the job differs")),
        wire_pb2.Header(acknowledged=12, heartbeat=wire_pb2.Heartbeat()),
    ]
    return [*(encode_message(message, 300, 299, dtype) for message in messages), *map(encode_control, headers)]


def varint(number: int) -> bytes:
    digits = [number >> shift & 0x7F | 0x80 for shift in range(0, max(number.bit_length(), 1), 7)]
    return bytes((*digits[:-1], digits[-1] & 0x7F))


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
    frame = b"\x0a" + varint(len(header)) + header
    return frame if random.random() < 0.5 else frame + b"\x12" + varint(8) + bytes(8)


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
    entry = random.choice((b"\x1a\x00", b"\x0b", b"\x1a\x02\x0a\x00", b"\x08\x00", b"\x6a\x02\x10\x01", b"\xff"))
    header = entry * (random.choice((100, 5_000, 1 << 16, (1 << 16) + 9)) // len(entry))
    if random.random() < 0.5:
        header = b"\x1a" + varint(len(header)) + header
    return b"\x0a" + varint(len(header)) + header


def noise(random: Random, frames: list[bytes]) -> bytes:
    return random.choice((b"", b"\x0a", b"\x0a\x08")) + random.randbytes(random.randrange(64))


MAKERS: tuple[Make, ...] = (
    *(flipped, overwritten, truncated, extended, repeated, spliced, with_a_number, made_up, noise) * 20,
    large,
)


def in_pieces(random: Random, frames: list[bytes]) -> list[bytes]:
    """Two frames in pieces, mostly with one thing wrong."""
    whole = [random.choice(frames), random.choice(frames)]
    pieces = [frame[start : start + PIECE_BYTES] for frame in whole for start in range(0, len(frame), PIECE_BYTES)]
    place = random.randrange(len(pieces))
    match random.randrange(5):
        case 0:
            del pieces[place]
        case 1:
            pieces.insert(place, pieces[random.randrange(len(pieces))])
        case 2:
            pieces[place] = flipped(random, [pieces[place]])
        case 3:
            pieces[place] = pieces[place][: random.randrange(len(pieces[place]))]
        case _:
            pass
    return pieces


def read_pieces(pieces: list[bytes], dtype: WireDtype) -> None:
    """Read until a piece is refused; the pieces of a frame that is accepted are one honest frame."""
    reader, begun = FrameReader(LIMITS, dtype, "a hostile peer", piece_bytes=PIECE_BYTES), b""
    for piece in pieces:
        begun += piece
        if reader.take(piece) is not None:
            decode(begun, LIMITS, dtype, sender="what was accepted in pieces")
            begun = b""


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
        pieces = in_pieces(random, frames[dtype]) if number % PIECES_EVERY == 0 else []
        started = time.perf_counter()
        try:
            read_pieces(pieces, dtype)
            decode(data, LIMITS, dtype, sender="a hostile peer")
        except BadMessage as refusal:
            assert str(refusal).startswith("a hostile peer"), refusal
            counted["refused"] += 1
        except BaseException:
            print(f"input {number} of seed {seed}, {make.__name__}, {dtype}: {data.hex()}")
            raise
        else:
            counted["accepted"] += 1
            # What was accepted is written as protobuf itself would write it.
            again = wire_pb2.Frame.FromString(data).SerializeToString(deterministic=True)
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
