"""Messages as bytes: a frame is `Frame` of `wire.proto`, written in the one way protobuf itself writes it.

`decode` believes nothing: whatever the bytes, it returns what an honest peer could have encoded or raises BadMessage,
and the memory it takes is bounded by the frame and the limits. What a tensor holds is for `checked_tensor`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields
from typing import Any, get_args

import torch
from google.protobuf.message import Message as Protobuf
from torch import Tensor

from tpsl.transport import wire_pb2
from tpsl.transport.channel import WINDOW
from tpsl.transport.checks import BadMessage
from tpsl.transport.messages import Message, PlainMessage, Stop, TensorMessage, WireType

HEADER_BYTES = 1 << 16
FRAME_BYTES = (1 << 31) - 1
TEXT_CHARACTERS = 2000
LIST_ENTRIES = 512
SECRET_BYTES = 64  # of a nonce, a proof or the name of a link

_PLAIN: dict[str, type[PlainMessage]] = {kind.__name__.lower(): kind for kind in get_args(PlainMessage)}
"""The messages without a tensor: each has the name and the fields of its body in `wire.proto`."""

_TORCH: dict[WireType, torch.dtype] = {name: getattr(torch, name) for name in get_args(WireType)}
_IN_MEMORY: dict[WireType, torch.dtype] = dict.fromkeys(_TORCH, torch.float32) | {"uint8": torch.uint8}
_NUMBER: dict[WireType, wire_pb2.Dtype] = {name: getattr(wire_pb2, name.upper()) for name in get_args(WireType)}
_HEADER_TAG, _PAYLOAD_TAG = b"\x0a", b"\x12"  # fields 1 and 2, each with a length
_SHOWN_TOPIC = 40  # characters
_FLOAT16_MAX = torch.finfo(torch.float16).max

# A tensor over received bytes is only read, to copy it; PyTorch warns once in a process that it could be written to.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch.frombuffer(b"\0", dtype=torch.uint8)


@dataclass(frozen=True)
class Limits:
    """The tensors that are accepted, and how much may be under way."""

    rows: int
    """The most rows."""
    width: int
    """The most numbers in a row."""
    topics: tuple[str, ...] = ()
    """What the numbers may be."""
    window: int = WINDOW
    """Bytes that may be under way in one direction; two of the largest messages fit in any case."""


@dataclass(frozen=True)
class Decoded:
    """One frame: `message` is None for a heartbeat or a part of the handshake, which is in the header."""

    sequence: int
    acknowledged: int
    message: Message | None
    header: wire_pb2.Header


def as_sent(tensor: Tensor, dtype: WireType) -> Tensor:
    """Return rows as they cross the border: on the CPU, row by row, float32 rounded to nearest; float16 saturates.

    The result may share the memory of the argument.
    """
    if tensor.dtype != _IN_MEMORY[dtype] or tensor.dim() != 2:
        kind, wanted = (str(each).removeprefix("torch.") for each in (tensor.dtype, _IN_MEMORY[dtype]))
        raise ValueError(f"a tensor crosses as rows of {wanted}, not as {kind} of shape {tuple(tensor.shape)}")
    tensor = tensor.detach()
    if dtype == "float16":
        limited = tensor.clamp(-_FLOAT16_MAX, _FLOAT16_MAX)
        # An infinity stays one: it is an error that the receiver has to see.
        if not math.isfinite(float(tensor.sum())):
            limited = torch.where(tensor.isinf(), tensor, limited)
        tensor = limited
    return tensor.to("cpu", _TORCH[dtype]).contiguous()


def as_received(tensor: Tensor) -> Tensor:
    """Return what the receiver computes with: the same numbers as float32, or the same bytes."""
    return tensor if tensor.dtype == torch.uint8 else tensor.to(torch.float32)


def as_sentence(text: str) -> str:
    """Return the text as a peer accepts it as a reason: printable, on one line, not too long."""
    return "".join(character if character.isprintable() else " " for character in text[:TEXT_CHARACTERS])


def tensor_bytes(message: Message, dtype: WireType) -> int:
    """Return how many bytes the numbers of a message take on the wire."""
    return message.tensor.numel() * _TORCH[dtype].itemsize if isinstance(message, TensorMessage) else 0


def largest_frame(limits: Limits, dtype: WireType) -> int:
    """Return the size in bytes that no frame within the limits exceeds."""
    tensor = limits.rows * limits.width * _TORCH[dtype].itemsize
    size = tensor + HEADER_BYTES + 16  # tags and lengths
    if size > FRAME_BYTES:
        raise ValueError(
            f"{limits.rows} rows of {limits.width} numbers make a message of {tensor} bytes, "
            f"more than a message may have ({FRAME_BYTES}): send a batch in more parts"
        )
    return size


def encode_message(message: Message, sequence: int, acknowledged: int, dtype: WireType) -> bytes:
    """Return the frame of a message; its tensor is copied once."""
    if isinstance(message, TensorMessage):
        return _encode_tensor(message, sequence, acknowledged, dtype)
    if isinstance(message, Stop):
        message = Stop(as_sentence(message.reason))
    body: dict[str, Any] = {type(message).__name__.lower(): vars(message)}
    return encode_control(wire_pb2.Header(sequence=sequence, acknowledged=acknowledged, **body))


def encode_control(header: wire_pb2.Header) -> bytes:
    """Return the frame of a header that comes without a tensor: a heartbeat or a part of the handshake."""
    return _beginning(header, None)


def _encode_tensor(message: TensorMessage, sequence: int, acknowledged: int, dtype: WireType) -> bytes:
    sent = as_sent(message.tensor, dtype)
    rows, width = sent.shape
    body = wire_pb2.Tensor(
        topic=message.topic, step=message.step, part=message.part, rows=rows, width=width, dtype=_NUMBER[dtype]
    )
    header = wire_pb2.Header(sequence=sequence, acknowledged=acknowledged, tensor=body)
    # NumPy has no bfloat16, so the numbers pass as plain bytes.
    return b"".join((_beginning(header, sent.nbytes), sent.view(torch.uint8).numpy().data))


def decode(data: bytes, limits: Limits, dtype: WireType, *, sender: str) -> Decoded:
    """Return what a frame says, or raise BadMessage, and nothing else, in a sentence that names the sender."""
    header = _parsed_header(data, sender)
    kind = header.WhichOneof("body")
    if kind is None:
        raise BadMessage(f"{sender} sent a frame that says nothing")
    payload: int | None = None
    if kind == "tensor":
        payload = _payload_bytes(header.tensor, limits, dtype, sender)
        kind = header.tensor.topic
    else:
        _check_sizes(header, sender)
    beginning = _beginning(header, payload)
    # What was understood, encoded again, must give the same bytes: no unknown field, no second way to write a thing.
    if len(data) != len(beginning) + (payload or 0) or not data.startswith(beginning):
        raise BadMessage(f"{sender} sent a frame with {kind} that is not in canonical form")
    message = _plain_message(kind, header) if payload is None else _tensor_message(data, len(beginning), header, dtype)
    if (message is None) != (header.sequence == 0):
        raise BadMessage(f"{sender} sent a frame with {kind} under the number {header.sequence}")
    return Decoded(header.sequence, header.acknowledged, message, header)


def _parsed_header(data: bytes, sender: str) -> wire_pb2.Header:
    """Return the header without the fields that `wire.proto` does not know."""
    begin, size = 1, 0
    # Three bytes hold any length up to the limit; a longer one is cut here and found not to be canonical.
    for shift in (0, 7, 14):
        byte = data[begin] if begin < len(data) else 0
        size |= (byte & 0x7F) << shift
        begin += 1
        if byte < 0x80:
            break
    if not data.startswith(_HEADER_TAG) or size > HEADER_BYTES:
        raise BadMessage(f"{sender} sent {len(data)} bytes that do not begin with a header")
    header = wire_pb2.Header()
    try:
        header.ParseFromString(data[begin : begin + size])
    except Exception as error:  # protobuf's implementations differ in what they raise
        raise BadMessage(f"{sender} sent a frame whose header cannot be read") from error
    header.DiscardUnknownFields()
    return header


def _check_sizes(message: Protobuf, sender: str) -> None:
    for field, value in message.ListFields():
        for part in _parts(value, f"{sender} sent a frame whose {field.name}"):
            _check_sizes(part, sender)


def _parts(value: object, origin: str) -> Iterable[Protobuf]:
    """Check one field and return the messages inside it."""
    if isinstance(value, Protobuf):
        return (value,)
    if isinstance(value, str):
        if len(value) > TEXT_CHARACTERS or not value.isprintable():
            raise BadMessage(f"{origin} is not a printable text of at most {TEXT_CHARACTERS} characters")
    elif isinstance(value, bytes):
        if len(value) > SECRET_BYTES:
            raise BadMessage(f"{origin} has {len(value)} bytes, more than {SECRET_BYTES}")
    elif isinstance(value, Collection):
        if len(value) > LIST_ENTRIES:
            raise BadMessage(f"{origin} has {len(value)} entries, more than {LIST_ENTRIES}")
        return [entry for entry in value if isinstance(entry, Protobuf)]
    return ()


def _payload_bytes(tensor: wire_pb2.Tensor, limits: Limits, dtype: WireType, sender: str) -> int:
    if tensor.topic not in limits.topics:
        topic = as_sentence(tensor.topic)[:_SHOWN_TOPIC]
        raise BadMessage(f"{sender} sent {topic}, a topic that is not expected here")
    origin = f"{sender} sent {tensor.topic}"
    if tensor.dtype != _NUMBER[dtype]:
        raise BadMessage(f"{origin} in another type of number than the job's {dtype}")
    if tensor.rows > limits.rows or tensor.width > limits.width:
        raise BadMessage(
            f"{origin} of {tensor.rows} rows of {tensor.width} numbers, more than {limits.rows} rows of {limits.width}"
        )
    return tensor.rows * tensor.width * _TORCH[dtype].itemsize


def _tensor_message(data: bytes, begin: int, header: wire_pb2.Header, dtype: WireType) -> TensorMessage:
    """Copy the payload, once, into memory of PyTorch's own, aligned as any other tensor."""
    body, numbers = header.tensor, torch.empty(0, dtype=_IN_MEMORY[dtype])
    if begin < len(data):
        numbers = torch.frombuffer(data, dtype=_TORCH[dtype], offset=begin).to(_IN_MEMORY[dtype], copy=True)
    return TensorMessage(body.topic, body.step, body.part, numbers.view(body.rows, body.width))


def _plain_message(kind: str, header: wire_pb2.Header) -> Message | None:
    if kind not in _PLAIN:
        return None
    make: type[Any] = _PLAIN[kind]
    values = (getattr(getattr(header, kind), field.name) for field in fields(make))
    message: Message = make(*(value if isinstance(value, int | str | bytes) else tuple(value) for value in values))
    return message


def _beginning(header: wire_pb2.Header, payload_bytes: int | None) -> bytes:
    """Return all of a frame but the payload itself."""
    head = header.SerializeToString(deterministic=True)
    begin = _HEADER_TAG + _varint(len(head)) + head
    return begin if payload_bytes is None else begin + _PAYLOAD_TAG + _varint(payload_bytes)


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*digits, number))
