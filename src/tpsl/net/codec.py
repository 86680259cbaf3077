"""Messages as bytes: `Frame` of `wire.proto`, written in the one way protobuf itself writes it.

`decode` believes nothing: whatever the bytes, it returns what an honest peer could have encoded or raises BadMessage,
and the memory it takes is bounded by the frame and the limits.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tpsl.net import wire_pb2
from tpsl.net.checks import require_finite
from tpsl.net.failures import BadMessage
from tpsl.net.messages import Limits, Message, WireType
from tpsl.net.rounding import are_scales, as_received, as_sent, from_wire, in_memory, row_scales, wire_bytes

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
_HEADER_TAG, _PAYLOAD_TAG = b"\x0a", b"\x12"  # fields 1 and 2, each with a length
CPU = torch.device("cpu")


def as_sentence(text: str) -> str:
    """Return the text as a peer accepts it: printable, on one line, not too long."""
    return "".join(character if character.isprintable() else " " for character in text[:TEXT_CHARACTERS])


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
        return _beginning(header, None)
    sent = as_sent(message.tensor, dtype)
    rows, width = message.tensor.shape
    header.tensor.CopyFrom(wire_pb2.Tensor(rows=rows, width=width, dtype=_DTYPES[dtype]))
    # NumPy has no bfloat16, so the numbers pass as plain bytes.
    payload = sent.cpu().view(torch.uint8).view(-1).numpy().data
    return b"".join((_beginning(header, sent.nbytes), payload))


def decode(data: bytes, limits: Limits, dtype: WireType, *, sender: str, device: torch.device = CPU) -> Message:
    """Return what a frame says, its tensor on the device; or raise BadMessage in a sentence that names the sender."""
    header = _parsed_header(data, sender)
    _check_sizes(header, sender)
    payload: int | None = None
    if header.HasField("tensor"):
        payload = _payload_bytes(header.tensor, limits, dtype, sender)
    beginning = _beginning(header, payload)
    # What was understood, encoded again, must give the same bytes: no unknown field, no second way to write it.
    if len(data) != len(beginning) + (payload or 0) or not data.startswith(beginning):
        raise BadMessage(f"{sender} sent a message that is not in canonical form")
    tensor = None
    if payload is not None:
        shape = header.tensor.rows, header.tensor.width
        tensor = _tensor(memoryview(data)[len(beginning) :], shape, dtype, sender).to(device)
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


def _tensor(content: memoryview, shape: tuple[int, int], dtype: WireType, sender: str) -> Tensor:
    """Return the tensor of a payload, in memory that nobody else has; all of its numbers are finite."""
    sent = from_wire(torch.from_numpy(np.frombuffer(content, np.uint8).copy()), shape, dtype)
    if dtype == "int8" and not are_scales(row_scales(sent)):
        raise BadMessage(f"{sender} sent a row with a scale that is negative or infinite")
    received = sent if sent.dtype == in_memory(dtype) else as_received(sent)
    if received.dtype == torch.float32:
        require_finite(received, f"the numbers from {sender}")
    return received


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
        raise BadMessage(f"{sender} sent a message whose header cannot be read") from error
    header.DiscardUnknownFields()
    return header


def _check_sizes(header: wire_pb2.Header, sender: str) -> None:
    """Raise BadMessage unless texts are printable, and texts, secrets and lists as short as honest ones are."""
    texts = [header.text, *(text for field in header.fields for text in (field.name, field.value))]
    if not all(len(text) <= TEXT_CHARACTERS and text.isprintable() for text in texts):
        raise BadMessage(f"{sender} sent a text that is not printable, or longer than {TEXT_CHARACTERS} characters")
    if max(len(header.secret), len(header.session)) > SECRET_BYTES:
        raise BadMessage(f"{sender} sent a secret of more than {SECRET_BYTES} bytes")
    if max(len(header.numbers), len(header.fields)) > LIST_ENTRIES:
        raise BadMessage(f"{sender} sent a list of more than {LIST_ENTRIES} entries")


def _payload_bytes(tensor: wire_pb2.Tensor, limits: Limits, dtype: WireType, sender: str) -> int:
    if tensor.dtype != _DTYPES[dtype]:
        raise BadMessage(f"{sender} sent another type of number than the job's {dtype}")
    if tensor.rows > limits.rows or tensor.width > limits.width:
        raise BadMessage(
            f"{sender} sent {tensor.rows} rows of {tensor.width} numbers, "
            f"more than {limits.rows} rows of {limits.width}"
        )
    return wire_bytes((tensor.rows, tensor.width), dtype)


def _beginning(header: wire_pb2.Header, payload_bytes: int | None) -> bytes:
    """Return all of a frame but the payload."""
    head, found = header.SerializeToString(deterministic=True), bytearray()
    for tag, content, length in ((_HEADER_TAG, head, len(head)), (_PAYLOAD_TAG, b"", payload_bytes)):
        if length is None:
            break
        found += tag
        while length > 0x7F:  # a varint: seven bits a byte, the lowest first; all but the last byte have the eighth bit
            found.append(length & 0x7F | 0x80)
            length >>= 7
        found.append(length)
        found += content
    return bytes(found)
