"""Messages as bytes: what honest parties say comes back as it was, and nothing else is understood."""

import random
import struct
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tpsl.net import wire_pb2
from tpsl.net.codec import as_sentence, decode, encode, largest_frame, tensor_bytes
from tpsl.net.failures import NOT_FINITE, BadMessage
from tpsl.net.messages import Limits, Message, WireType

LIMITS = Limits(rows=64, width=32)
DTYPES: tuple[WireType, ...] = ("float32", "bfloat16", "float16", "int8")

texts = st.text(st.characters(categories=("L", "N", "P", "Zs"), exclude_characters="\x85\xa0\u2028\u2029"), max_size=50)
texts = texts.filter(str.isprintable)
whole = st.integers(0, (1 << 64) - 1)
messages = st.builds(
    Message,
    step=whole,
    part=st.integers(0, (1 << 32) - 1),
    numbers=st.lists(whole, max_size=5).map(tuple),
    secret=st.binary(max_size=64),
    fields=st.lists(st.tuples(texts, texts), max_size=3).map(tuple),
    text=texts,
    session=st.binary(max_size=64),
    number=whole,
    pending=st.booleans(),
)


def read(data: bytes, dtype: WireType = "float32") -> Message:
    return decode(data, LIMITS, dtype, sender="airport")


def header_of(data: bytes) -> bytes:
    """The header's bytes in a short frame."""
    return data[2 : 2 + data[1]]


def tensor(rows: int = 3, width: int = 5) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(rows))


@given(messages)
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    assert read(encode(message, "float32")) == message


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (1, 1), (3, 5), (64, 32)])
def test_a_tensor_comes_back_rounded_and_costs_what_was_announced(dtype: WireType, shape: tuple[int, int]) -> None:
    sent = tensor(*shape)
    message = Message(step=3, tensor=sent)
    frame, plain = encode(message, dtype), encode(Message(step=3), dtype)
    found = read(frame, dtype).tensor
    assert found is not None and found.shape == sent.shape and found.dtype == torch.float32
    torch.testing.assert_close(found, sent, rtol=2e-2, atol=2e-2)
    assert torch.equal(found, sent) or dtype != "float32"
    assert len(frame) <= len(plain) + tensor_bytes(message, dtype) + 20
    assert len(frame) <= largest_frame(LIMITS, dtype)


def test_bytes_come_back_as_they_were_and_only_where_bytes_are_due() -> None:
    sent = torch.arange(12, dtype=torch.uint8).reshape(3, 4)
    frame = encode(Message(tensor=sent), "uint8")
    found = read(frame, "uint8").tensor
    assert found is not None and torch.equal(found, sent)
    for dtype in DTYPES:
        with pytest.raises(BadMessage):
            read(frame, dtype)


def test_a_received_tensor_is_the_receiver_s_and_a_sent_one_the_sender_s() -> None:
    sent = tensor()
    frame = encode(Message(tensor=sent), "float32")
    sent.zero_()
    first, second = read(frame).tensor, read(frame).tensor
    assert first is not None and second is not None
    first.zero_()
    assert torch.equal(second, tensor())


def test_a_tensor_is_written_row_by_row_and_little_endian() -> None:
    frame = encode(Message(session=bytes(range(16)), number=7, step=3, tensor=torch.tensor([[1.0, -2.0]])), "float32")
    written = "0a 1e 0a 10 00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f 10 07 18 03 52 06 08 01 10 02 18 01 12 08"
    assert frame == bytes.fromhex(written) + struct.pack("<2f", 1, -2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_are_refused_by_their_code(dtype: WireType, number: float) -> None:
    sent = tensor()
    sent[1, 2] = number
    with pytest.raises(BadMessage) as bad:
        read(encode(Message(tensor=sent), dtype), dtype)
    assert bad.value.code == NOT_FINITE


GOOD = encode(Message(step=1, number=2, session=b"s" * 16, tensor=tensor()), "float32")
HEADER = header_of(GOOD)


def frame(header: bytes, rest: bytes = b"") -> bytes:
    return b"\x0a" + bytes((len(header),)) + header + rest


BAD = {
    "nothing": b"",
    "random": b"random",
    "half": GOOD[: len(GOOD) // 2],
    "one byte less": GOOD[:-1],
    "one byte more": GOOD + b"\0",
    "without the payload": GOOD[: 2 + len(HEADER)],
    "the header twice": frame(HEADER) + GOOD,
    "the payload first": GOOD[2 + len(HEADER) :] + frame(HEADER),
    "a header that ends early": b"\x0a\x7f" + HEADER,
    "a header of 2 GiB": b"\x0a\xff\xff\xff\xff\x07" + HEADER,
    "a longer form of the length": b"\x0a" + bytes((len(HEADER) | 0x80, 0)) + HEADER + GOOD[2 + len(HEADER) :],
    "an unknown field": frame(HEADER + b"\x98\x06\x01", GOOD[2 + len(HEADER) :]),
    "a field twice": frame(HEADER + b"\x18\x01", GOOD[2 + len(HEADER) :]),
    "a default that is written": frame(HEADER + b"\x28\x00", GOOD[2 + len(HEADER) :]),
    "another type of number": encode(Message(tensor=tensor()), "bfloat16"),
    "too many rows": encode(Message(tensor=tensor(65, 5)), "float32"),
    "too wide": encode(Message(tensor=tensor(3, 33)), "float32"),
    "a text with a line break": frame(wire_pb2.Header(text="a\nb").SerializeToString()),
    "a text with an escape": frame(wire_pb2.Header(text="\x1b[2J").SerializeToString()),
    "a long secret": frame(wire_pb2.Header(secret=bytes(65)).SerializeToString()),
    "a long session": frame(wire_pb2.Header(session=bytes(65)).SerializeToString()),
    "numbers without end": encode(Message(numbers=tuple(range(513))), "float32"),
    "fields without end": encode(Message(fields=(("a", "b"),) * 513), "float32"),
    "a long field": encode(Message(fields=(("a", "b" * 2001),)), "float32"),
}


def test_the_frame_that_is_damaged_below_is_good() -> None:
    assert read(GOOD).number == 2


@pytest.mark.parametrize("name", BAD)
def test_what_no_honest_party_sends_is_refused(name: str) -> None:
    with pytest.raises(BadMessage) as bad:
        read(BAD[name])
    assert str(bad.value).startswith("airport sent") and str(bad.value).isprintable()


@pytest.mark.parametrize("scale", [-1.0, float("inf"), -float("inf")])
def test_a_scale_that_no_rows_have_is_refused(scale: float) -> None:
    data = bytearray(encode(Message(tensor=tensor(1, 4)), "int8"))
    data[-4:] = struct.pack("<f", scale)
    with pytest.raises(BadMessage):
        read(bytes(data), "int8")


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_an_honest_message(data: bytes) -> None:
    try:
        message = read(data)
    except BadMessage:
        return
    assert encode(message, "float32") == data


@settings(max_examples=300)
@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_a_damaged_frame_is_refused_or_another_honest_one(place: int, change: int) -> None:
    data = bytearray(GOOD)
    data[place] ^= change
    try:
        message = read(bytes(data))
    except BadMessage:
        return
    assert encode(message, "float32") == bytes(data)


def test_limits_that_no_message_can_hold_are_refused() -> None:
    with pytest.raises(ValueError, match="send a batch in more parts"):
        largest_frame(Limits(rows=1 << 20, width=1 << 10), "float32")


def test_any_text_crosses_as_one_printable_line() -> None:
    generator = random.Random(0)
    for _ in range(50):
        text = "".join(chr(generator.randrange(1, 0xD000)) for _ in range(generator.randrange(3000)))
        assert read(encode(Message(text=text), "float32")) == replace(Message(), text=as_sentence(text))
