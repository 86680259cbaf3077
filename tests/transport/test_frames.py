import math
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tpsl.transport import wire_pb2
from tpsl.transport.checks import BadMessage
from tpsl.transport.frames import (
    HEADER_BYTES,
    LIST_ENTRIES,
    SECRET_BYTES,
    TEXT_CHARACTERS,
    Decoded,
    FrameReader,
    Limits,
    as_sentence,
    decode,
    encode_control,
    encode_message,
    frame_of,
    largest_frame,
)
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
    WireType,
)

Embeddings = partial(TensorMessage, "embeddings")
Gradients = partial(TensorMessage, "gradients")
Estimates = partial(TensorMessage, "estimates")
TestEmbeddings = partial(TensorMessage, "test embeddings")
HeadEmbeddings = partial(TensorMessage, "head embeddings")

TOPICS = ("embeddings", "gradients", "estimates", "test embeddings", "head embeddings")
LIMITS = Limits(rows=8, width=4, topics=TOPICS)
DTYPES: tuple[WireDtype, ...] = get_args(WireDtype)
UINT64 = st.integers(0, 2**64 - 1)
NUMBERS = st.one_of(UINT64, st.sampled_from([0, 1, 127, 128, 2**16, 2**31, 2**32 - 1, 2**63]))
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def read(data: bytes, dtype: WireType = "float32", limits: Limits = LIMITS) -> Decoded:
    return decode(data, limits, dtype, sender="airport")


def refused_or_canonical(data: bytes, dtype: WireDtype) -> None:
    try:
        read(data, dtype)
    except BadMessage as refusal:
        assert str(refusal).startswith("airport sent ")
        assert "\n" not in str(refusal)
    else:
        assert wire_pb2.Frame.FromString(data).SerializeToString(deterministic=True) == data


def varint(number: int) -> bytes:
    digits = [number >> shift & 0x7F | 0x80 for shift in range(0, max(number.bit_length(), 1), 7)]
    return bytes((*digits[:-1], digits[-1] & 0x7F))


def framed(header: bytes, rest: bytes = b"") -> bytes:
    return b"\x0a" + varint(len(header)) + header + rest


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    rows, width = draw(st.integers(0, LIMITS.rows)), draw(st.integers(0, LIMITS.width))
    floats = draw(st.lists(st.floats(width=16, allow_nan=False), min_size=rows * width, max_size=rows * width))
    return torch.tensor(floats, dtype=torch.float32).view(rows, width)


def tensor_messages(kind: Callable[[int, int, torch.Tensor], Message]) -> st.SearchStrategy[Message]:
    return st.builds(kind, UINT64, st.integers(0, 2**32 - 1), tensors())


printable = st.characters(exclude_categories=["C", "Z"]) | st.just(" ")
messages: st.SearchStrategy[Message] = st.one_of(
    tensor_messages(Embeddings),
    tensor_messages(Gradients),
    tensor_messages(Estimates),
    tensor_messages(TestEmbeddings),
    tensor_messages(HeadEmbeddings),
    st.builds(Rewind, UINT64),
    st.builds(Position, UINT64, st.lists(UINT64, max_size=LIST_ENTRIES).map(tuple)),
    st.builds(Start, UINT64, UINT64, st.integers(0, 2**32 - 1)),
    st.builds(Verdict, UINT64, st.booleans(), st.booleans()),
    st.builds(Announcement, st.binary(max_size=SECRET_BYTES), st.lists(UINT64, max_size=LIST_ENTRIES).map(tuple)),
    st.builds(Finished, UINT64),
    st.builds(Bye),
    st.builds(Stop, st.text(printable, max_size=200)),
)
fields = st.lists(
    st.builds(wire_pb2.Field, name=st.text(printable, max_size=20), value=st.text(printable, max_size=20)), max_size=5
)
secrets = st.binary(max_size=SECRET_BYTES)
headers = st.one_of(
    st.builds(
        lambda party, nonce, fields: wire_pb2.Header(hello=wire_pb2.Hello(party=party, nonce=nonce, fields=fields)),
        st.text(printable, max_size=20),
        secrets,
        fields,
    ),
    st.builds(
        lambda nonce, fields: wire_pb2.Header(challenge=wire_pb2.Challenge(nonce=nonce, fields=fields)), secrets, fields
    ),
    st.builds(
        lambda proof, link, received: wire_pb2.Header(
            proof=wire_pb2.Proof(proof=proof, link=link, received=received),
        ),
        secrets,
        secrets,
        UINT64,
    ),
    st.builds(
        lambda proof, link, received: wire_pb2.Header(
            welcome=wire_pb2.Welcome(proof=proof, link=link, received=received),
        ),
        secrets,
        secrets,
        UINT64,
    ),
    st.builds(
        lambda reason: wire_pb2.Header(refusal=wire_pb2.Refusal(reason=reason)), st.text(printable, max_size=200)
    ),
    st.builds(lambda number: wire_pb2.Header(acknowledged=number, heartbeat=wire_pb2.Heartbeat()), UINT64),
)


def assert_equal(received: Message | None, sent: Message) -> None:
    if not isinstance(sent, TensorMessage):
        assert received == sent
        return
    assert isinstance(received, TensorMessage)
    assert (received.topic, received.step, received.part) == (sent.topic, sent.step, sent.part)
    assert received.tensor.shape == sent.tensor.shape
    assert received.tensor.dtype == torch.float32
    assert received.tensor.numpy().tobytes() == sent.tensor.numpy().tobytes()


@settings(max_examples=300)
@given(messages, st.integers(1, 2**64 - 1), UINT64, st.sampled_from(["float32", "float16"]))
def test_a_message_comes_back_as_it_was(message: Message, sequence: int, acknowledged: int, dtype: WireDtype) -> None:
    data = encode_message(message, sequence, acknowledged, dtype)
    frame = read(data, dtype)
    assert (frame.sequence, frame.acknowledged) == (sequence, acknowledged)
    assert_equal(frame.message, message)
    assert len(data) <= largest_frame(LIMITS, dtype)
    assert wire_pb2.Frame.FromString(data).SerializeToString(deterministic=True) == data


@settings(max_examples=50)
@given(st.binary(max_size=LIMITS.rows * LIMITS.width), st.integers(1, LIMITS.width))
def test_bytes_come_back_as_they_were_and_only_where_bytes_are_due(content: bytes, width: int) -> None:
    rows = torch.tensor(list(content[: len(content) // width * width]), dtype=torch.uint8).view(-1, width)[:8]
    data = encode_message(Embeddings(3, 1, rows), 7, 6, "uint8")
    received = read(data, "uint8").message
    assert isinstance(received, TensorMessage) and received.tensor.dtype == torch.uint8
    assert received.tensor.tolist() == rows.tolist()
    for dtype in DTYPES:
        with pytest.raises(BadMessage, match="in another type of number"):
            read(data, dtype)
        with pytest.raises(BadMessage, match="in another type of number"):
            read(encode_message(Embeddings(3, 1, rows.float()), 7, 6, dtype), "uint8")
        with pytest.raises(ValueError, match="crosses as rows of float32, not as uint8"):
            encode_message(Embeddings(3, 1, rows), 7, 6, dtype)


@settings(max_examples=100)
@given(headers)
def test_a_control_frame_comes_back_as_it_was(header: wire_pb2.Header) -> None:
    frame = read(encode_control(header))
    assert frame.header == header
    assert (frame.sequence, frame.acknowledged, frame.message) == (0, header.acknowledged, None)


@settings(max_examples=500)
@given(st.sampled_from([b"", b"\x0a", b"\x0a\x08"]), st.binary(max_size=100), st.sampled_from(DTYPES))
def test_random_bytes_are_refused(begin: bytes, rest: bytes, dtype: WireDtype) -> None:
    refused_or_canonical(begin + rest, dtype)


@st.composite
def damaged(draw: st.DrawFn) -> tuple[bytes, WireDtype]:
    dtype = draw(st.sampled_from(DTYPES))
    frames = st.one_of(
        messages.map(lambda message: encode_message(message, 300, 299, dtype)), headers.map(encode_control)
    )
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
            value = (
                varint(draw(st.sampled_from([len(inside), 2**31, 2**64 - 1])) if depth == 3 else len(inside)) + inside
            )
        else:
            value = draw(st.binary(max_size=8))
        parts.append(varint(draw(st.integers(1, 20)) << 3 | kind) + value)
    return b"".join(parts)


@settings(max_examples=300)
@given(made_up_fields(), st.sampled_from([b"", b"\x12\x00", b"\x12\x04abcd"]))
def test_a_made_up_header_is_refused(header: bytes, rest: bytes) -> None:
    refused_or_canonical(framed(header, rest), "float32")


TENSOR = torch.arange(8.0).view(2, 4)
FRAME = encode_message(Embeddings(5, 1, TENSOR), 7, 6, "float32")
HEADER = FRAME[2 : 2 + FRAME[1]]
PAYLOAD = FRAME[2 + FRAME[1] :]
FINISHED = bytes((0x08, 7, 0x7A, 2, 0x08, 5))


def control(**body: object) -> bytes:
    return encode_control(wire_pb2.Header(**body))  # type: ignore[arg-type]


def tensor_frame(rows: int, width: int, dtype: int, payload: bytes, topic: str = "embeddings") -> bytes:
    tensor = wire_pb2.Tensor(topic=topic, rows=rows, width=width, dtype=dtype)  # type: ignore[arg-type]
    header = wire_pb2.Header(sequence=7, tensor=tensor)
    return wire_pb2.Frame(header=header, payload=payload).SerializeToString()


def test_the_frames_that_are_damaged_below_are_good() -> None:
    assert framed(HEADER, PAYLOAD) == FRAME
    assert_equal(read(FRAME).message, Embeddings(5, 1, TENSOR))
    assert read(framed(FINISHED)).message == Finished(5)
    assert read(tensor_frame(2, 4, wire_pb2.FLOAT32, bytes(32))).sequence == 7
    assert read(control(sequence=1, stop=wire_pb2.Stop(reason="x" * TEXT_CHARACTERS))).message is not None
    assert read(control(sequence=1, position=wire_pb2.Position(checkpoints=range(LIST_ENTRIES)))).message is not None


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        pytest.param(b"", "0 bytes that do not begin with a header", id="nothing"),
        pytest.param(PAYLOAD + framed(HEADER), "64 bytes that do not begin with a header", id="payload first"),
        pytest.param(b"\x0a\x80\x80\x04" + bytes(1 << 16), "header cannot be read", id="a header of zeros"),
        pytest.param(
            framed(b"\x1a" * (HEADER_BYTES + 1)), r"\d+ bytes that do not begin with a header", id="a huge header"
        ),
        pytest.param(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "do not begin with a header", id="a huge length"),
        pytest.param(framed(b""), "a frame that says nothing", id="an empty header"),
        pytest.param(framed(FINISHED[:2]), "a frame that says nothing", id="no body"),
        pytest.param(framed(FINISHED[:-1]), "header cannot be read", id="a header that breaks off"),
        pytest.param(framed(FINISHED)[:-1], "header cannot be read", id="a header shorter than its length"),
        pytest.param(b"\x0a\x86\x00" + FINISHED, "finished .* not in canonical form", id="a length in two bytes"),
        pytest.param(framed(b"\x08\x87\x00" + FINISHED[2:]), "canonical", id="a number in two bytes"),
        pytest.param(framed(b"\x08\x01" + FINISHED), "canonical", id="a field twice"),
        pytest.param(framed(FINISHED[2:] + FINISHED[:2]), "canonical", id="fields in another order"),
        pytest.param(framed(b"\x08\x07\x10\x00" + FINISHED[2:]), "canonical", id="a zero written out"),
        pytest.param(framed(FINISHED + b"\xa0\x06\x01"), "canonical", id="an unknown field"),
        pytest.param(framed(b"\x08\x07\x7a\x05\x08\x05\xa0\x06\x01"), "canonical", id="an unknown field inside"),
        pytest.param(framed(b"\x08\x07\x82\x01\x00" + FINISHED[2:]), "canonical", id="two bodies"),
        pytest.param(framed(b"\x08\x07\x6a\x04\x10\x01\x10\x02"), "canonical", id="checkpoints one by one"),
        pytest.param(framed(FINISHED) + framed(FINISHED), "canonical", id="two headers"),
        pytest.param(framed(FINISHED, b"\x12\x00"), "canonical", id="a payload without a tensor"),
        pytest.param(framed(FINISHED, b"\x00"), "canonical", id="a byte too many"),
        pytest.param(framed(HEADER), "canonical", id="a tensor without a payload"),
        pytest.param(FRAME[:-1], "canonical", id="a payload too short"),
        pytest.param(FRAME + b"\x00", "canonical", id="a payload too long"),
        pytest.param(FRAME + PAYLOAD, "canonical", id="a payload twice"),
        pytest.param(tensor_frame(2, 4, wire_pb2.FLOAT32, bytes(28)), "canonical", id="fewer numbers than rows"),
        pytest.param(
            tensor_frame(2, 4, wire_pb2.BFLOAT16, bytes(16)),
            "in another type of number than the job's float32",
            id="dtype",
        ),
        pytest.param(
            tensor_frame(2, 4, 0, bytes(32)), "in another type of number than the job's float32", id="no dtype"
        ),
        pytest.param(
            tensor_frame(2, 4, 99, bytes(32)), "in another type of number than the job's float32", id="unknown dtype"
        ),
        pytest.param(tensor_frame(9, 4, wire_pb2.FLOAT32, bytes(144)), "of 9 rows of 4 .*more than 8", id="rows"),
        pytest.param(tensor_frame(2, 5, wire_pb2.FLOAT32, bytes(40)), "of 2 rows of 5 .*more than 8", id="width"),
        pytest.param(
            tensor_frame(2**32 - 1, 2**32 - 1, wire_pb2.FLOAT32, b""), "of 4294967295 rows", id="more than there is"
        ),
        pytest.param(
            tensor_frame(2, 4, wire_pb2.FLOAT32, bytes(32), "labels"),
            "labels, a topic that is not expected here",
            id="a topic that the job does not have",
        ),
        pytest.param(
            tensor_frame(2, 4, wire_pb2.FLOAT32, bytes(32), ""), ", a topic that is not expected", id="no topic"
        ),
        pytest.param(
            tensor_frame(2, 4, wire_pb2.FLOAT32, bytes(32), "\x1b[2J" + "x" * 9000),
            r" \[2Jx{36}, a topic that is not expected here",
            id="a topic that is a terminal's command",
        ),
        pytest.param(framed(HEADER[2:], PAYLOAD), "embeddings under the number 0", id="a message without a number"),
        pytest.param(control(sequence=5, heartbeat=wire_pb2.Heartbeat()), "under the number 5", id="a heartbeat's"),
        pytest.param(control(sequence=5, hello=wire_pb2.Hello()), "hello under the number 5", id="a hello's"),
        pytest.param(
            control(sequence=1, stop=wire_pb2.Stop(reason="x" * (TEXT_CHARACTERS + 1))),
            "whose reason is not a printable text of at most 2000",
            id="a long reason",
        ),
        pytest.param(
            control(refusal=wire_pb2.Refusal(reason="\x1b[2J")), "reason is not a printable", id="a terminal's command"
        ),
        pytest.param(
            control(hello=wire_pb2.Hello(fields=[wire_pb2.Field(name="job", value="a\nb")])), "value is not", id="lines"
        ),
        pytest.param(framed(b"\x08\x07\x8a\x01\x03\x0a\x01\xff"), "header cannot be read", id="no UTF-8"),
        pytest.param(
            control(hello=wire_pb2.Hello(fields=[wire_pb2.Field()] * (LIST_ENTRIES + 1))),
            "whose fields has 513 entries",
            id="many fields",
        ),
        pytest.param(
            control(sequence=1, position=wire_pb2.Position(checkpoints=range(LIST_ENTRIES + 1))),
            "whose checkpoints has 513 entries",
            id="many checkpoints",
        ),
        pytest.param(
            control(proof=wire_pb2.Proof(proof=bytes(SECRET_BYTES + 1))), "whose proof has 65 bytes", id="a long proof"
        ),
        pytest.param(framed(b"\xa3\x06" * 20_000), "cannot be read", id="groups in groups"),
    ],
)
def test_what_no_honest_peer_sends_is_refused_in_a_sentence(data: bytes, complaint: str) -> None:
    with pytest.raises(BadMessage, match=f"^airport sent .*({complaint})"):
        read(data)


def int8_frame(*scales: float) -> bytes:
    rows = b"".join(bytes((1, 2, 129, 127)) + struct.pack("<f", scale) for scale in scales)
    return tensor_frame(len(scales), 4, wire_pb2.INT8, rows)


def test_a_row_of_int8_is_its_numbers_times_the_scale_after_them() -> None:
    message = read(int8_frame(0.5, 0.0), "int8").message
    assert isinstance(message, TensorMessage)
    assert message.tensor.tolist() == [[0.5, 1.0, -63.5, 63.5], [0.0, 0.0, 0.0, 0.0]]
    sent = encode_message(Embeddings(0, 0, message.tensor), 7, 0, "int8")
    assert sent == int8_frame(0.5, 0.0).replace(bytes((1, 2, 129, 127, 0, 0, 0, 0)), bytes(8))


@pytest.mark.parametrize("scale", [-0.0, -1.0, -1e-45, math.inf, -math.inf])
def test_a_scale_that_no_rows_have_is_refused(scale: float) -> None:
    with pytest.raises(BadMessage, match=r"^airport sent embeddings with a scale that is negative or infinite$"):
        read(int8_frame(1.0, scale, 1.0), "int8")


def pieces_of(message: Message, size: int, dtype: WireDtype = "float32") -> list[bytes]:
    frame = frame_of(message, 7, 6, dtype)
    return [frame.cut(start, start + size) for start in range(0, frame.size, size)]


@settings(max_examples=100)
@given(messages, st.integers(90, 250), st.sampled_from(DTYPES))
def test_a_frame_in_pieces_is_the_frame(message: Message, size: int, dtype: WireDtype) -> None:
    pieces = pieces_of(message, size, dtype)
    whole = encode_message(message, 7, 6, dtype)
    assert b"".join(pieces) == whole
    if isinstance(message, TensorMessage):
        reader = FrameReader(LIMITS, dtype, "airport", piece_bytes=size)
        for _ in range(2):  # one frame after the other
            taken = [reader.take(piece) for piece in pieces]
            assert taken[:-1] == [None] * (len(pieces) - 1)
            assert taken[-1] is not None
            assert_equal(taken[-1].message, read(whole, dtype).message or message)


LONG = Embeddings(5, 1, torch.arange(32.0).view(8, 4))
PIECES = pieces_of(LONG, 60)


@pytest.mark.parametrize(
    ("sent", "complaint"),
    [
        pytest.param([PIECES[0], PIECES[1][:-1]], "a piece of 59 bytes of embeddings", id="too short"),
        pytest.param([PIECES[0], PIECES[1] + b"x"], "a piece of 61 bytes of embeddings", id="too long"),
        pytest.param([PIECES[0], b""], "a piece of 0 bytes of embeddings", id="empty"),
        pytest.param([*PIECES[:2], PIECES[2] + bytes(19)], "a piece of 60 bytes of embeddings", id="a longer last one"),
        pytest.param([PIECES[0][:-1]], "not in canonical form", id="a first one that is too short"),
        pytest.param([PIECES[0] + b"x"], "not in canonical form", id="a first one that is too long"),
        pytest.param([PIECES[1]], "60 bytes that do not begin with a header", id="the second one first"),
    ],
)
def test_pieces_that_no_honest_peer_cuts_are_refused(sent: list[bytes], complaint: str) -> None:
    assert [len(piece) for piece in PIECES] == [60, 60, 41]
    reader = FrameReader(LIMITS, "float32", "airport", piece_bytes=60)
    for piece in sent[:-1]:
        assert reader.take(piece) is None
    with pytest.raises(BadMessage, match=f"^airport sent .*{complaint}"):
        reader.take(sent[-1])


def test_a_received_tensor_is_the_receivers_own() -> None:
    before = bytes(bytearray(FRAME))
    first, second = read(FRAME).message, read(FRAME).message
    assert isinstance(first, TensorMessage) and first.topic == "embeddings"
    assert isinstance(second, TensorMessage) and second.topic == "embeddings"
    first.tensor.fill_(9)
    assert before == FRAME
    assert torch.equal(second.tensor, TENSOR)


def test_a_tensor_is_written_row_by_row_and_little_endian() -> None:
    assert FRAME.endswith(np.arange(8, dtype="<f4").tobytes())
    upper_halves = np.arange(8, dtype="<f4").view("<u2")[1::2]
    assert encode_message(Embeddings(5, 1, TENSOR), 7, 6, "bfloat16").endswith(upper_halves.tobytes())
    halves = encode_message(Embeddings(5, 1, TENSOR.t()), 7, 6, "float16")
    assert halves.endswith(np.arange(8, dtype="<f2").reshape(2, 4).T.tobytes())


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_tensor_fits_and_costs_little_more_than_its_numbers(dtype: WireDtype) -> None:
    limits = Limits(rows=8192, width=128, topics=TOPICS)
    data = encode_message(Embeddings(2**40, 63, torch.zeros(8192, 128)), 2**40, 2**40, dtype)
    assert len(data) <= largest_frame(limits, dtype)
    numbers = 8192 * (128 * getattr(torch, dtype).itemsize + (4 if dtype == "int8" else 0))
    assert numbers <= len(data) < numbers + 64
    assert read(data, dtype, limits).message is not None


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
    assert read(encode_message(Stop(text), 1, 0, "float32")).message == Stop(sent)


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
