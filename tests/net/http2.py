"""HTTP/2 by hand, over TLS with a party's certificate: for what no gRPC client says."""

import contextlib
import os
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from tests.net.scene import Scene

from tpsl.net.certificates import LABEL_SERVER_NAME

DATA, HEADERS, RST_STREAM, SETTINGS, PING, CONTINUATION = 0, 1, 3, 4, 6, 9
END_STREAM, END_HEADERS = 1, 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def length(text: bytes) -> bytes:
    if len(text) < 127:
        return bytes((len(text),))
    rest, digits = len(text) - 127, bytearray()
    while rest > 127:
        digits.append(rest % 128 + 128)
        rest //= 128
    return bytes((127, *digits, rest))


def literal(name: bytes, value: bytes) -> bytes:
    """A header that is not indexed, without Huffman's code."""
    return b"\x00" + length(name) + name + length(value) + value


CALL = b"".join(
    literal(name, value)
    for name, value in (
        (b":method", b"POST"),
        (b":scheme", b"https"),
        (b":path", b"/tpsl.net.LabelParty/Hello"),
        (b":authority", b"label.tpsl"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    )
)


def call(stream: int, message: bytes = b"", announced: int | None = None) -> bytes:
    """A whole call; or, if more bytes are announced than there are, its beginning."""
    size = len(message) if announced is None else announced
    prefix = b"\0" + struct.pack(">I", size)
    flags = END_STREAM if size == len(message) else 0
    pieces = [message[start : start + 16000] for start in range(0, len(message), 16000)] or [b""]
    pieces[0] = prefix + pieces[0]
    data = [frame(DATA, flags if piece is pieces[-1] else 0, stream, piece) for piece in pieces]
    return frame(HEADERS, END_HEADERS, stream, CALL) + b"".join(data)


def client_with(folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    context.set_alpn_protocols(["h2"])
    return context


@contextlib.contextmanager
def connected(
    scene: Scene,
    client: ssl.SSLContext | None = None,
    session: ssl.SSLSession | None = None,
    settings: bytes = b"",
) -> Iterator[ssl.SSLSocket]:
    """A TLS connection with the certificate of airport, on which HTTP/2 has begun."""
    client = client or client_with(scene.folder / "airport")
    with (
        socket.create_connection(("127.0.0.1", scene.port), timeout=60) as plain,
        client.wrap_socket(plain, server_hostname=LABEL_SERVER_NAME, session=session) as secure,
    ):
        secure.sendall(PREFACE + frame(SETTINGS, payload=settings))
        yield secure


def pour(secure: ssl.SSLSocket, piece: bytes, seconds: float) -> bool:
    """Send the piece again and again for so many seconds; return whether the other side has had enough by then."""
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            secure.sendall(piece)
    except OSError:
        return True
    return False
