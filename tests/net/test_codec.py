"""Messages as bytes: what was encoded comes back; whatever else comes is refused, in bounded memory."""

import math
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tpsl.net import wire_pb2
from tpsl.net.codec import (
    HEADER_BYTES,
    LIST_ENTRIES,
    SECRET_BYTES,
    TEXT_CHARACTERS,
    as_sentence,
    decode,
    encode,
    largest_frame,
    session_of,
)
from tpsl.net.failures import BadMessage
from tpsl.net.messages import Limits, Message, WireDtype, WireType

LIMITS = Limits(rows=8, width=4)
DTYPES: tuple[WireDtype, ...] = get_args(WireDtype)
UINT32, UINT64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
NUMBERS = st.one_of(UINT64, st.sampled_from([0, 1, 127, 128, 2**16, 2**31, 2**32 - 1, 2**63]))
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def read(data: bytes, dtype: WireType = "float32", limits: Limits = LIMITS) -> Message:
    return decode(data, limits, dtype, sender="airport")


def canonical(data: bytes) -> bytes:
    size = int.from_bytes(data[:4], "little")
    return framed(
        wire_pb2.Header.FromString(data[4 : 4 + size]).SerializeToString(deterministic=True), data[4 + size :]
    )


def refused_or_canonical(data: bytes, dtype: WireDtype) -> None:
    session_of(data)
    try:
        read(data, dtype)
    except BadMessage as refusal:
        assert "airport" in str(refusal) and "\n" not in str(refusal)
    else:
        assert canonical(data) == data


def varint(number: int) -> bytes:
    digits = [number >> shift & 0x7F | 0x80 for shift in range(0, max(number.bit_length(), 1), 7)]
    return bytes((*digits[:-1], digits[-1] & 0x7F))


def framed(header: bytes, rest: bytes = b"") -> bytes:
    return struct.pack("<I", len(header)) + header + rest


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    rows, width = draw(st.integers(0, LIMITS.rows)), draw(st.integers(0, LIMITS.width))
    finite = st.floats(width=16, allow_nan=False, allow_infinity=False)
    floats = draw(st.lists(finite, min_size=rows * width, max_size=rows * width))
    return torch.tensor(floats, dtype=torch.float32).view(rows, width)


printable = st.characters(exclude_categories=["C", "Z"]) | st.just(" ")
texts = st.text(printable, max_size=20)
messages = st.builds(
    Message,
    step=UINT64,
    part=UINT32,
    numbers=st.lists(UINT64, max_size=LIST_ENTRIES).map(tuple),
    tensor=st.none() | tensors(),
    secret=st.binary(max_size=SECRET_BYTES),
    fields=st.lists(st.tuples(texts, texts), max_size=5).map(tuple),
    text=st.text(printable, max_size=200),
    session=st.binary(max_size=SECRET_BYTES),
    number=UINT64,
    pending=st.booleans(),
)


def assert_equal(received: Message, sent: Message) -> None:
    mine, theirs = (dict(vars(message)) for message in (received, sent))
    one, other = mine.pop("tensor"), theirs.pop("tensor")
    assert mine == theirs and (one is None) == (other is None)
    if one is not None:
        assert one.shape == other.shape and one.dtype == torch.float32
        assert one.numpy().tobytes() == other.numpy().tobytes()


@settings(max_examples=300)
@given(messages, st.sampled_from(["float32", "float16"]))
def test_a_message_comes_back_as_it_was(message: Message, dtype: WireDtype) -> None:
    data = encode(message, dtype)
    assert_equal(read(data, dtype), message)
    assert session_of(data) == message.session
    assert len(data) <= largest_frame(LIMITS, dtype)
    assert canonical(data) == data


@settings(max_examples=50)
@given(st.binary(max_size=LIMITS.rows * LIMITS.width), st.integers(1, LIMITS.width))
def test_bytes_come_back_as_they_were_and_only_where_bytes_are_due(content: bytes, width: int) -> None:
    rows = torch.tensor(list(content[: len(content) // width * width]), dtype=torch.uint8).view(-1, width)[:8]
    data = encode(Message(tensor=rows), "uint8")
    received = read(data, "uint8").tensor
    assert received is not None and received.dtype == torch.uint8 and received.tolist() == rows.tolist()
    for dtype in DTYPES:
        with pytest.raises(BadMessage, match="another type of number"):
            read(data, dtype)
        with pytest.raises(BadMessage, match="another type of number"):
            read(encode(Message(tensor=rows.float()), dtype), "uint8")
        with pytest.raises(ValueError, match="crosses as rows of float32, not as uint8"):
            encode(Message(tensor=rows), dtype)


@settings(max_examples=500)
@given(st.sampled_from([b"", bytes(4), b"\x08\0\0\0"]), st.binary(max_size=100), st.sampled_from(DTYPES))
def test_random_bytes_are_refused(begin: bytes, rest: bytes, dtype: WireDtype) -> None:
    refused_or_canonical(begin + rest, dtype)


@st.composite
def damaged(draw: st.DrawFn) -> tuple[bytes, WireDtype]:
    dtype = draw(st.sampled_from(DTYPES))
    frames = messages.map(lambda message: encode(message, dtype))
    data = draw(frames)
    for _ in range(draw(st.integers(1, 3))):
        place, other = sorted((draw(st.integers(0, len(data))), draw(st.integers(0, len(data)))))
        match draw(st.integers(0, 6)):
            case 0:  # a bit flips
                flipped = bytes(byte ^ 1 << draw(st.integers(0, 7)) for byte in data[place : place + 1])
                data = data[:place] + flipped + data[place + 1 :]
            case 1:
                data = data[:place]
            case 2:
                data += draw(st.binary(max_size=20))
            case 3:  # something is there twice
                data = data[:other] + data[place:]
            case 4:  # something is gone
                data = data[:place] + data[other:]
            case 5:  # a number of any size
                data = data[:place] + varint(draw(NUMBERS)) + data[place + 1 :]
            case 6:
                data = data[:place] + draw(frames)
    return data, dtype


@settings(max_examples=600)
@given(damaged())
def test_a_damaged_frame_is_refused_or_another_honest_one(sent: tuple[bytes, WireDtype]) -> None:
    refused_or_canonical(*sent)


@st.composite
def made_up_fields(draw: st.DrawFn, depth: int = 0) -> bytes:
    parts = []
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from([0, 1, 2, 2, 2, 3, 4, 5]))
        if kind == 0:
            value = varint(draw(NUMBERS))
        elif kind == 2:
            inside = draw(made_up_fields(depth + 1)) if depth < 3 else draw(st.binary(max_size=5))
            size = draw(st.sampled_from([len(inside), 2**31, 2**64 - 1])) if depth == 3 else len(inside)
            value = varint(size) + inside
        else:
            value = draw(st.binary(max_size=8))
        parts.append(varint(draw(st.integers(1, 20)) << 3 | kind) + value)
    return b"".join(parts)


@settings(max_examples=300)
@given(made_up_fields(), st.sampled_from([b"", b"\0", b"abcd"]))
def test_a_made_up_header_is_refused(header: bytes, rest: bytes) -> None:
    refused_or_canonical(framed(header, rest), "float32")


TENSOR = torch.arange(8.0).view(2, 4)
SENT = Message(step=5, part=1, number=7, tensor=TENSOR)
FRAME = encode(SENT, "float32")
HEADER, PAYLOAD = FRAME[4 : 4 + FRAME[0]], FRAME[4 + FRAME[0] :]
FINISHED = bytes((0x10, 7, 0x18, 5))  # number 7, step 5


def header(**fields: Any) -> bytes:
    return framed(wire_pb2.Header(**fields).SerializeToString())


def tensor_frame(rows: int, width: int, dtype: int, payload: bytes) -> bytes:
    tensor = wire_pb2.Tensor(rows=rows, width=width, dtype=dtype)  # type: ignore[arg-type]
    return framed(wire_pb2.Header(number=7, tensor=tensor).SerializeToString(), payload)


def test_the_frames_that_are_damaged_below_are_good() -> None:
    assert framed(HEADER, PAYLOAD) == FRAME
    assert_equal(read(FRAME), SENT)
    assert read(framed(FINISHED)) == Message(number=7, step=5)
    assert read(framed(b"")) == Message()
    assert read(tensor_frame(2, 4, wire_pb2.FLOAT32, bytes(32))).number == 7
    assert read(header(text="x" * TEXT_CHARACTERS)).text
    assert len(read(header(numbers=range(LIST_ENTRIES))).numbers) == LIST_ENTRIES
    assert read(header(secret=bytes(SECRET_BYTES))).secret


OTHER_TYPE = "another type of number than the job's float32"
TOO_MANY = wire_pb2.Field()
BAD: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "0 bytes that do not begin with a header"),
    "half a size": (b"\x00\x00", "2 bytes that do not begin with a header"),
    "a header of zeros": (framed(bytes(HEADER_BYTES)), "header cannot be read"),
    "a huge header": (framed(b"\x1a" * (HEADER_BYTES + 1)), "bytes that do not begin with a header"),
    "a huge size": (b"\xff\xff\xff\xff" + HEADER, "do not begin with a header"),
    "a header that breaks off": (framed(FINISHED[:-1]), "header cannot be read"),
    "a header shorter than its length": (framed(FINISHED)[:-1], "header cannot be read"),
    "a number in two bytes": (framed(b"\x10\x87\x00" + FINISHED[2:]), "canonical"),
    "a field twice": (framed(b"\x10\x01" + FINISHED), "canonical"),
    "fields in another order": (framed(FINISHED[2:] + FINISHED[:2]), "canonical"),
    "a zero written out": (framed(FINISHED + b"\x20\x00"), "canonical"),
    "an unknown field": (framed(FINISHED + b"\xa0\x06\x01"), "canonical"),
    "an unknown field inside": (framed(FINISHED + b"\x42\x03\xa0\x06\x01"), "canonical"),
    "numbers one by one": (framed(FINISHED + b"\x30\x01\x30\x02"), "canonical"),
    "two headers": (framed(FINISHED) + framed(FINISHED), "canonical"),
    "a payload without a tensor": (framed(FINISHED, b"\x00"), "canonical"),
    "a tensor without a payload": (framed(HEADER), "canonical"),
    "a payload too short": (FRAME[:-1], "canonical"),
    "a payload too long": (FRAME + b"\x00", "canonical"),
    "a payload twice": (FRAME + PAYLOAD, "canonical"),
    "fewer numbers than rows": (tensor_frame(2, 4, wire_pb2.FLOAT32, bytes(28)), "canonical"),
    "dtype": (tensor_frame(2, 4, wire_pb2.BFLOAT16, bytes(16)), OTHER_TYPE),
    "no dtype": (tensor_frame(2, 4, 0, bytes(32)), OTHER_TYPE),
    "unknown dtype": (tensor_frame(2, 4, 99, bytes(32)), OTHER_TYPE),
    "rows": (tensor_frame(9, 4, wire_pb2.FLOAT32, bytes(144)), "9 rows of 4 numbers, more than 8"),
    "width": (tensor_frame(2, 5, wire_pb2.FLOAT32, bytes(40)), "2 rows of 5 numbers, more than 8"),
    "more than there is": (tensor_frame(2**32 - 1, 2**32 - 1, wire_pb2.FLOAT32, b""), "4294967295 rows"),
    "NaN": (tensor_frame(1, 1, wire_pb2.FLOAT32, struct.pack("<f", math.nan)), "not finite"),
    "infinity": (tensor_frame(1, 1, wire_pb2.FLOAT32, struct.pack("<f", -math.inf)), "not finite"),
    "a long text": (header(text="x" * (TEXT_CHARACTERS + 1)), "text that is not printable"),
    "a terminal's command": (header(text="\x1b[2J"), "text that is not printable"),
    "lines": (header(fields=[wire_pb2.Field(name="job", value="a\nb")]), "text that is not printable"),
    "no UTF-8": (framed(b"\x4a\x01\xff"), "header cannot be read"),
    "many fields": (header(fields=[TOO_MANY] * (LIST_ENTRIES + 1)), "list of more than 512 entries"),
    "many numbers": (header(numbers=range(LIST_ENTRIES + 1)), "list of more than 512 entries"),
    "a long secret": (header(secret=bytes(SECRET_BYTES + 1)), "secret of more than 64 bytes"),
    "a long session": (header(session=bytes(SECRET_BYTES + 1)), "secret of more than 64 bytes"),
    "groups in groups": (framed(b"\xa3\x06" * 20_000), "cannot be read"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_no_honest_peer_sends_is_refused(name: str) -> None:
    data, complaint = BAD[name]
    with pytest.raises(BadMessage, match=f"airport.*{complaint}") as refusal:
        read(data)
    assert refusal.value.code == ("not-finite" if complaint == "not finite" else "bad-message")


def int8_frame(*scales: float) -> bytes:
    rows = b"".join(bytes((1, 2, 129, 127)) + struct.pack("<f", scale) for scale in scales)
    return tensor_frame(len(scales), 4, wire_pb2.INT8, rows)


def test_a_row_of_int8_is_its_numbers_times_the_scale_after_them() -> None:
    tensor = read(int8_frame(0.5, 0.0), "int8").tensor
    assert tensor is not None and tensor.tolist() == [[0.5, 1.0, -63.5, 63.5], [0.0, 0.0, 0.0, 0.0]]
    sent = encode(Message(number=7, tensor=tensor), "int8")
    assert sent == int8_frame(0.5, 0.0).replace(bytes((1, 2, 129, 127, 0, 0, 0, 0)), bytes(8))


@pytest.mark.parametrize("scale", [-0.0, -1.0, -1e-45, math.inf, -math.inf])
def test_a_scale_that_no_rows_have_is_refused(scale: float) -> None:
    with pytest.raises(BadMessage, match="a row with a scale that is negative or infinite"):
        read(int8_frame(1.0, scale, 1.0), "int8")


def test_a_received_tensor_is_the_receivers_own() -> None:
    before = bytes(bytearray(FRAME))
    first, second = read(FRAME).tensor, read(FRAME).tensor
    assert first is not None and second is not None
    first.fill_(9)
    assert before == FRAME
    assert torch.equal(second, TENSOR)


def test_a_tensor_is_written_row_by_row_and_little_endian() -> None:
    assert FRAME.endswith(np.arange(8, dtype="<f4").tobytes())
    upper_halves = np.arange(8, dtype="<f4").view("<u2")[1::2]
    assert encode(SENT, "bfloat16").endswith(upper_halves.tobytes())
    halves = encode(Message(tensor=TENSOR.t()), "float16")
    assert halves.endswith(np.arange(8, dtype="<f2").reshape(2, 4).T.tobytes())


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_tensor_fits_and_costs_little_more_than_its_numbers(dtype: WireDtype) -> None:
    limits = Limits(rows=8192, width=128)
    question = Message(2**40, 63, tensor=torch.zeros(8192, 128), session=bytes(16), number=2**40)
    data = encode(question, dtype)
    assert len(data) <= largest_frame(limits, dtype)
    numbers = 8192 * (128 * getattr(torch, dtype).itemsize + (4 if dtype == "int8" else 0))
    assert numbers <= len(data) < numbers + 64
    assert read(data, dtype, limits).tensor is not None


def test_limits_that_no_message_can_hold_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^16777216 rows of 64 numbers make a message of 4294967296 bytes"):
        largest_frame(Limits(rows=2**24, width=64), "float32")


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("ε = 1, as agreed", "ε = 1, as agreed"),
        ("two\nlines\x1b[2J and \udcff", "two lines [2J and  "),
        ("x" * 5000, "x" * TEXT_CHARACTERS),
    ],
)
def test_any_reason_to_stop_arrives_as_one_line(text: str, sent: str) -> None:
    assert as_sentence(text) == sent
    assert read(encode(Message(text=text), "float32")).text == sent


def test_the_decoder_holds_with_protobuf_in_pure_python_and_without_a_warning() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", BENCHMARKS / "fuzz_frames.py", "--inputs", "2000"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing else" in done.stdout
