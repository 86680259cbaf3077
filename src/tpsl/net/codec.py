"""Messages as bytes: the size of a header in four bytes, the header in the one way protobuf writes it, the numbers.

`decode` believes nothing: whatever the bytes, it returns what an honest peer could have encoded or raises BadMessage,
and the memory it takes is bounded by the frame and the limits.
"""

from __future__ import annotations

import struct

import numpy as np
import torch
from torch import Tensor

from tpsl.net import wire_pb2
from tpsl.net.failures import BadMessage
from tpsl.net.messages import Limits, Message, WireType
from tpsl.net.rounding import (
    are_scales,
    as_received,
    as_sent,
    from_wire,
    require_finite,
    row_scales,
    wire_bytes,
)

HEADER_BYTES = 1 << 16
FRAME_BYTES = (1 << 31) - 1
TEXT_CHARACTERS = 2000
LIST_ENTRIES = 512
SECRET_BYTES = 64

_DTYPES: dict[WireType, wire_pb2.Dtype] = {
    "float32": wire_pb2.FLOAT32,
    "bfloat16": wire_pb2.BFLOAT16,
    "float16": wire_pb2.FLOAT16,
    "uint8": wire_pb2.UINT8,
    "int8": wire_pb2.INT8,
}
_SIZE = struct.Struct("<I")
CPU = torch.device("cpu")


def as_sentence(text: str) -> str:
    """Return the text as a peer accepts it: printable, on one line, not too long."""
    return "".join(character if character.isprintable() else " " for character in text[:TEXT_CHARACTERS])


def largest_frame(limits: Limits, dtype: WireType) -> int:
    """Return the size in bytes that no frame within the limits exceeds."""
    tensor = wire_bytes((limits.rows, limits.width), dtype)
    size = _SIZE.size + HEADER_BYTES + tensor
    if size > FRAME_BYTES:
        raise ValueError(
            f"{limits.rows} rows of {limits.width} numbers make a message of {tensor} bytes, "
            f"more than a message may have ({FRAME_BYTES}): send a batch in more parts"
        )
    return size


def tensor_bytes(message: Message, dtype: WireType) -> int:
    """Return how many bytes the numbers of a message take on the wire."""
    return 0 if message.tensor is None else wire_bytes(message.tensor.shape, dtype)


def encode(message: Message, dtype: WireType) -> bytes:
    """Return the frame of a message; what its tensor holds now is in it."""
    header = wire_pb2.Header(
        session=message.session,
        number=message.number,
        step=message.step,
        part=message.part,
        pending=message.pending,
        numbers=message.numbers,
        secret=message.secret,
        fields=[wire_pb2.Field(name=name, value=value) for name, value in message.fields],
        text=as_sentence(message.text) if message.text else "",
    )
    if message.tensor is None:
        return _beginning(header)
    sent = as_sent(message.tensor, dtype)
    rows, width = message.tensor.shape
    header.tensor.CopyFrom(wire_pb2.Tensor(rows=rows, width=width, dtype=_DTYPES[dtype]))
    # NumPy has no bfloat16, so these numbers pass as plain bytes.
    numbers = sent.cpu().view(torch.uint8) if dtype == "bfloat16" else sent.cpu()
    return b"".join((_beginning(header), numbers.numpy().data))


def decode(data: bytes, limits: Limits, dtype: WireType, *, sender: str, device: torch.device = CPU) -> Message:
    """Return what a frame says, its tensor on the device; or raise BadMessage in a sentence that names the sender."""
    header, tensor, payload = _parsed_header(data, sender), None, 0
    shape = header.tensor.rows, header.tensor.width
    if header.HasField("tensor"):
        if header.tensor.dtype != _DTYPES[dtype]:
            raise BadMessage(f"{sender} sent another type of number than the job's {dtype}")
        if shape[0] > limits.rows or shape[1] > limits.width:
            sent, most = (f"{rows} rows of {width}" for rows, width in (shape, (limits.rows, limits.width)))
            raise BadMessage(f"{sender} sent {sent} numbers, more than {most}")
        payload = wire_bytes(shape, dtype)
    beginning = _beginning(header)
    # What was understood, encoded again, must give the same bytes: no unknown field, no second way to write it.
    if len(data) != len(beginning) + payload or not data.startswith(beginning):
        raise BadMessage(f"{sender} sent a message that is not in canonical form")
    if header.HasField("tensor"):
        tensor = _tensor(data, len(beginning), shape, dtype, sender)
        tensor = tensor if device == CPU else tensor.to(device)
    return Message(
        step=header.step,
        part=header.part,
        numbers=tuple(header.numbers),
        tensor=tensor,
        secret=header.secret,
        fields=tuple((field.name, field.value) for field in header.fields),
        text=header.text,
        session=header.session,
        number=header.number,
        pending=header.pending,
    )


def session_of(data: bytes) -> bytes:
    """Return the session that a frame names, even if the frame is refused; empty if it names none."""
    try:
        return _parsed_header(data, "").session
    except BadMessage:
        return b""


def _tensor(data: bytes, begin: int, shape: tuple[int, int], dtype: WireType, sender: str) -> Tensor:
    """Return the tensor of a payload, in memory that nobody else has; all of its numbers are finite."""
    payload = np.ndarray(len(data) - begin, np.uint8, data, begin).copy()
    sent = from_wire(torch.from_numpy(payload), shape, dtype)
    if dtype == "int8" and not are_scales(row_scales(sent)):
        raise BadMessage(f"{sender} sent a row with a scale that is negative or infinite")
    received = as_received(sent)
    require_finite(received, f"the numbers from {sender}")
    return received


def _parsed_header(data: bytes, sender: str) -> wire_pb2.Header:
    """Return the header without the fields that `wire.proto` does not know.

    Its texts are printable; texts, secrets and lists are as short as honest ones are.
    """
    size = _SIZE.unpack_from(data)[0] if len(data) >= _SIZE.size else HEADER_BYTES + 1
    if size > HEADER_BYTES:
        raise BadMessage(f"{sender} sent {len(data)} bytes that do not begin with a header")
    header = wire_pb2.Header()
    try:
        header.ParseFromString(data[_SIZE.size : _SIZE.size + size])
    except Exception as error:  # protobuf's implementations differ in what they raise
        raise BadMessage(f"{sender} sent a message whose header cannot be read") from error
    header.DiscardUnknownFields()
    for text in (header.text, *(text for field in header.fields for text in (field.name, field.value))):
        if len(text) > TEXT_CHARACTERS or not text.isprintable():
            raise BadMessage(f"{sender} sent a text that is not printable, or longer than {TEXT_CHARACTERS} characters")
    if max(len(header.secret), len(header.session)) > SECRET_BYTES:
        raise BadMessage(f"{sender} sent a secret of more than {SECRET_BYTES} bytes")
    if max(len(header.numbers), len(header.fields)) > LIST_ENTRIES:
        raise BadMessage(f"{sender} sent a list of more than {LIST_ENTRIES} entries")
    return header


def _beginning(header: wire_pb2.Header) -> bytes:
    """Return all of a frame but the numbers."""
    content = header.SerializeToString(deterministic=True)
    return _SIZE.pack(len(content)) + content
