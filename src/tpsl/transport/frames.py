"""Messages as bytes: a frame is `Frame` of `wire.proto`, written in the one way protobuf itself writes it.

`decode` believes nothing: whatever the bytes, it returns what an honest peer could have encoded or raises BadMessage,
and the memory it takes is bounded by the frame and the limits. What a tensor holds is for `checked_tensor`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, fields
from typing import Any, get_args

import torch
from google.protobuf.message import Message as Protobuf
from torch import Tensor

from tpsl.transport import wire_pb2
from tpsl.transport.channel import WINDOW
from tpsl.transport.checks import BadMessage
from tpsl.transport.device_copies import CPU, Payload, arrived, leaving
from tpsl.transport.messages import Message, PlainMessage, Stop, TensorMessage, WireType
from tpsl.transport.rounding import are_scales, as_sent, from_wire, row_scales, wire_bytes

PIECE_BYTES = 1 << 20
"""The most bytes that cross at once: a longer frame crosses in pieces, so that its way begins before it is complete."""
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


class Frame:
    """The bytes of one message, always the same. Only those of a tensor on a GPU have to be waited for, by who cuts."""

    def __init__(self, beginning: bytes, numbers: Callable[[], Tensor] | None = None, payload_bytes: int = 0) -> None:
        self._beginning, self._numbers = beginning, numbers
        self.size = len(beginning) + payload_bytes

    def cut(self, start: int, stop: int) -> bytes:
        """Return the bytes from `start` to `stop`, or to the end."""
        begin, offset = self._beginning[start:stop], len(self._beginning)
        if self._numbers is None or stop <= offset:
            return begin
        # NumPy has no bfloat16, so the numbers pass as plain bytes.
        payload = self._numbers().view(torch.uint8).view(-1).numpy().data
        return b"".join((begin, payload[max(0, start - offset) : stop - offset]))


def encode_message(message: Message, sequence: int, acknowledged: int, dtype: WireType) -> bytes:
    """Return the frame of a message as bytes."""
    frame = frame_of(message, sequence, acknowledged, dtype)
    return frame.cut(0, frame.size)


def frame_of(message: Message, sequence: int, acknowledged: int, dtype: WireType) -> Frame:
    """Return the frame of a message; what the message holds now is in it."""
    if isinstance(message, TensorMessage):
        return _tensor_frame(message, sequence, acknowledged, dtype)
    if isinstance(message, Stop):
        message = Stop(as_sentence(message.reason))
    body: dict[str, Any] = {type(message).__name__.lower(): vars(message)}
    return Frame(encode_control(wire_pb2.Header(sequence=sequence, acknowledged=acknowledged, **body)))


def encode_control(header: wire_pb2.Header) -> bytes:
    """Return the frame of a header that comes without a tensor: a heartbeat or a part of the handshake."""
    return _beginning(header, None)


def _tensor_frame(message: TensorMessage, sequence: int, acknowledged: int, dtype: WireType) -> Frame:
    rows, width = message.tensor.shape
    sent = as_sent(message.tensor, dtype)
    body = wire_pb2.Tensor(
        topic=message.topic, step=message.step, part=message.part, rows=rows, width=width, dtype=_NUMBER[dtype]
    )
    header = wire_pb2.Header(sequence=sequence, acknowledged=acknowledged, tensor=body)
    return Frame(_beginning(header, sent.nbytes), leaving(sent), sent.nbytes)


def decode(data: bytes, limits: Limits, dtype: WireType, *, sender: str) -> Decoded:
    """Return what a frame says, or raise BadMessage, and nothing else, in a sentence that names the sender."""
    decoded = FrameReader(limits, dtype, sender, piece_bytes=FRAME_BYTES).take(data)
    assert decoded is not None  # a frame is not longer than such a piece
    return decoded


class FrameReader:
    """Reads frames whose pieces come one after the other; each piece but the last of a frame has `piece_bytes` bytes.

    A piece that is not what an honest peer could have sent at this point is a BadMessage, and nothing else. Memory is
    taken for one tensor within the limits. Tensors are put on the device.
    """

    def __init__(
        self, limits: Limits, dtype: WireType, sender: str, device: torch.device = CPU, piece_bytes: int = PIECE_BYTES
    ) -> None:
        self._limits, self._dtype, self._sender, self._device = limits, dtype, sender, device
        self._piece_bytes = piece_bytes
        self._header = wire_pb2.Header()
        self._payload: Payload | None = None

    def take(self, piece: bytes) -> Decoded | None:
        """Return what the frame says that ends with this piece; None if more pieces of it are due."""
        begin = 0
        if self._payload is None:
            begin = self._begun(piece)
            if self._payload is None:
                return self._decoded(_plain_message(self._header))
        elif len(piece) != min(self._payload.due, self._piece_bytes):
            raise BadMessage(f"{self._sender} sent a piece of {len(piece)} bytes of {self._header.tensor.topic}")
        self._payload.append(memoryview(piece)[begin:])
        if self._payload.due:
            return None
        payload, self._payload = self._payload, None
        return self._decoded(self._tensor_message(payload))

    def _begun(self, piece: bytes) -> int:
        """Read and check the first piece of a frame but for its payload; return where that begins."""
        header, sender = _parsed_header(piece, self._sender), self._sender
        kind = header.WhichOneof("body")
        if kind is None:
            raise BadMessage(f"{sender} sent a frame that says nothing")
        payload: int | None = None
        if kind == "tensor":
            payload = _payload_bytes(header.tensor, self._limits, self._dtype, sender)
            kind = header.tensor.topic
        else:
            _check_sizes(header, sender)
        beginning = _beginning(header, payload)
        # What was understood, encoded again, must give the same bytes: no unknown field, no second way to write it.
        due = min(len(beginning) + (payload or 0), self._piece_bytes)
        if len(piece) != due or not piece.startswith(beginning):
            raise BadMessage(f"{sender} sent a frame with {kind} that is not in canonical form")
        if (payload is None and kind not in _PLAIN) != (header.sequence == 0):
            raise BadMessage(f"{sender} sent a frame with {kind} under the number {header.sequence}")
        self._header = header
        self._payload = None if payload is None else Payload(payload, self._device)
        return len(beginning)

    def _decoded(self, message: Message | None) -> Decoded:
        return Decoded(self._header.sequence, self._header.acknowledged, message, self._header)

    def _tensor_message(self, payload: Payload) -> TensorMessage:
        body = self._header.tensor
        sent = from_wire(payload.numbers, (body.rows, body.width), self._dtype)
        if self._dtype == "int8" and not are_scales(row_scales(sent)):
            raise BadMessage(f"{self._sender} sent {body.topic} with a scale that is negative or infinite")
        return TensorMessage(body.topic, body.step, body.part, arrived(sent, self._device))


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


def _plain_message(header: wire_pb2.Header) -> Message | None:
    kind = header.WhichOneof("body")
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
