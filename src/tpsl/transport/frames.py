"""Messages as bytes: a frame is `Frame` of `wire.proto`, written in the one way protobuf itself writes it.

`decode` believes nothing: whatever the bytes, it returns what an honest peer could have encoded or raises BadMessage,
and the memory it takes is bounded by the frame and the limits. What a tensor holds is for `checked_tensor`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, get_args

import torch
from google.protobuf.message import Message as Protobuf

from tpsl.transport import wire_pb2
from tpsl.transport.channel import WINDOW
from tpsl.transport.checks import BadMessage
from tpsl.transport.device_copies import CPU, arrived, leaving
from tpsl.transport.messages import Message, PlainMessage, Stop, TensorMessage, WireType
from tpsl.transport.rounding import are_scales, as_sent, from_wire, row_scales, wire_bytes

HEADER_BYTES = 1 << 16
FRAME_BYTES = (1 << 31) - 1
TEXT_CHARACTERS = 2000
LIST_ENTRIES = 512
SECRET_BYTES = 64  # of a nonce, a proof or the name of a link

_PLAIN: dict[str, type[PlainMessage]] = {kind.__name__.lower(): kind for kind in get_args(PlainMessage)}
"""The messages without a tensor: each has the name and the fields of its body in `wire.proto`."""

_NUMBER: dict[WireType, wire_pb2.Dtype] = {name: getattr(wire_pb2, name.upper()) for name in get_args(WireType)}
_HEADER_TAG, _PAYLOAD_TAG = b"\x0a", b"\x12"  # fields 1 and 2, each with a length
_SHOWN_TOPIC = 40  # characters

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


def as_sentence(text: str) -> str:
    """Return the text as a peer accepts it as a reason: printable, on one line, not too long."""
    return "".join(character if character.isprintable() else " " for character in text[:TEXT_CHARACTERS])


def tensor_bytes(message: Message, dtype: WireType) -> int:
    """Return how many bytes the numbers of a message take on the wire."""
    return wire_bytes(message.tensor.shape, dtype) if isinstance(message, TensorMessage) else 0


def largest_frame(limits: Limits, dtype: WireType) -> int:
    """Return the size in bytes that no frame within the limits exceeds."""
    tensor = wire_bytes((limits.rows, limits.width), dtype)
    size = tensor + HEADER_BYTES + 16  # tags and lengths
    if size > FRAME_BYTES:
        raise ValueError(
            f"{limits.rows} rows of {limits.width} numbers make a message of {tensor} bytes, "
            f"more than a message may have ({FRAME_BYTES}): send a batch in more parts"
        )
    return size


def encode_message(message: Message, sequence: int, acknowledged: int, dtype: WireType) -> bytes:
    """Return the frame of a message; its tensor is copied once."""
    return encode_soon(message, sequence, acknowledged, dtype)()


def encode_soon(message: Message, sequence: int, acknowledged: int, dtype: WireType) -> Callable[[], bytes]:
    """Return what returns the frame of a message, always the same bytes; what the message holds now is in it.

    Only the tensor of a GPU has to be waited for, by who asks for the frame.
    """
    if isinstance(message, TensorMessage):
        return _encode_tensor(message, sequence, acknowledged, dtype)
    if isinstance(message, Stop):
        message = Stop(as_sentence(message.reason))
    body: dict[str, Any] = {type(message).__name__.lower(): vars(message)}
    frame = encode_control(wire_pb2.Header(sequence=sequence, acknowledged=acknowledged, **body))
    return lambda: frame


def encode_control(header: wire_pb2.Header) -> bytes:
    """Return the frame of a header that comes without a tensor: a heartbeat or a part of the handshake."""
    return _beginning(header, None)


def _encode_tensor(message: TensorMessage, sequence: int, acknowledged: int, dtype: WireType) -> Callable[[], bytes]:
    rows, width = message.tensor.shape
    sent = as_sent(message.tensor, dtype)
    body = wire_pb2.Tensor(
        topic=message.topic, step=message.step, part=message.part, rows=rows, width=width, dtype=_NUMBER[dtype]
    )
    header = wire_pb2.Header(sequence=sequence, acknowledged=acknowledged, tensor=body)
    beginning, copied = _beginning(header, sent.nbytes), leaving(sent)

    @cache
    def frame() -> bytes:
        # NumPy has no bfloat16, so the numbers pass as plain bytes.
        return b"".join((beginning, copied().view(torch.uint8).numpy().data))

    if not sent.is_cuda:
        frame()  # before the sender changes what it has sent
    return frame


def decode(data: bytes, limits: Limits, dtype: WireType, *, sender: str, device: torch.device = CPU) -> Decoded:
    """Return what a frame says, or raise BadMessage, and nothing else, in a sentence that names the sender.

    A tensor is put on the device.
    """
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
    message = _plain_message(kind, header) if payload is None else None
    if payload is not None:
        numbers = memoryview(data)[len(beginning) :]
        message = _tensor_message(numbers, header.tensor, dtype, sender, device)
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
    return wire_bytes((tensor.rows, tensor.width), dtype)


def _tensor_message(
    payload: memoryview, body: wire_pb2.Tensor, dtype: WireType, sender: str, device: torch.device
) -> TensorMessage:
    """Copy the payload, once, into memory of PyTorch's own, aligned as any other tensor."""
    numbers = torch.frombuffer(payload, dtype=torch.uint8) if payload else torch.empty(0, dtype=torch.uint8)
    sent = from_wire(numbers, (body.rows, body.width), dtype)
    if dtype == "int8" and not are_scales(row_scales(sent)):
        raise BadMessage(f"{sender} sent {body.topic} with a scale that is negative or infinite")
    return TensorMessage(body.topic, body.step, body.part, arrived(sent, device))


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
