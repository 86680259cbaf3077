"""HTTP/2 as no gRPC client speaks it, by somebody with a party's certificate; and gRPC as ours never does."""

import contextlib
import os
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from tpsl.transport import wire_pb2
from tpsl.transport.frames import encode_control
from tpsl.transport.link import Patience

from tpsl.net.certificates import issue
from tpsl.net.credentials import LABEL_SERVER_NAME, Certificates

MIB = 1 << 20
METHOD = "/tpsl.wire.Split/Connect"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, CONTINUATION = 0, 1, 3, 4, 6, 9
END_HEADERS = 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A header that is not indexed, without Huffman's code."""
    return b"\x00" + _length(name) + name + _length(value) + value


def _length(text: bytes) -> bytes:
    if len(text) < 127:
        return bytes((len(text),))
    rest, digits = len(text) - 127, bytearray()
    while rest > 127:
        digits.append(rest % 128 + 128)
        rest //= 128
    return bytes((127, *digits, rest))


CALL = b"".join(
    literal(name, value)
    for name, value in (
        (b":method", b"POST"),
        (b":scheme", b"https"),
        (b":path", METHOD.encode()),
        (b":authority", b"label.tpsl"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    )
)


def client_with(folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    context.set_alpn_protocols(["h2"])
    return context


@contextlib.contextmanager
def connected(
    scene: Any, client: ssl.SSLContext | None = None, session: ssl.SSLSession | None = None
) -> Iterator[ssl.SSLSocket]:
    """A TLS connection with the certificate of airport, on which HTTP/2 has begun."""
    client = client or client_with(scene.folder / "airport")
    with (
        socket.create_connection(("127.0.0.1", scene.server.port), timeout=60) as plain,
        client.wrap_socket(plain, server_hostname=LABEL_SERVER_NAME, session=session) as secure,
    ):
        secure.sendall(PREFACE + frame(SETTINGS))
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


def test_headers_without_end_take_no_memory_and_end(scene: Any) -> None:
    before = resident()
    with connected(scene) as secure:
        secure.sendall(frame(HEADERS, 0, 1, CALL))
        endless = frame(CONTINUATION, 0, 1, literal(b"x-more", b"y" * 16000)) * 8
        assert pour(secure, endless, 15)
    assert resident() - before < 96 * MIB
    assert scene.serves("bank")


def test_a_header_that_unpacks_to_far_more_takes_no_memory(scene: Any) -> None:
    """A table entry of 4 KB, referred to by one byte each; gRPC reads on, and keeps none of it."""
    before = resident()
    with connected(scene) as secure:
        entry = b"\x40" + _length(b"x-bomb") + b"x-bomb" + _length(b"y" * 3900) + b"y" * 3900
        secure.sendall(frame(HEADERS, 0, 1, CALL + entry))
        pour(secure, frame(CONTINUATION, 0, 1, b"\xbe" * 16000), 3)  # 60 MB each, unpacked
        assert scene.serves("bank")
    assert resident() - before < 96 * MIB


def test_large_metadata_is_refused(scene: Any) -> None:
    credentials = Certificates.load(scene.folder / "airport").channel()
    options = [("grpc.ssl_target_name_override", LABEL_SERVER_NAME), ("grpc.max_metadata_size", 64 * MIB)]
    with grpc.secure_channel(f"127.0.0.1:{scene.server.port}", credentials, options=options) as channel:
        call = channel.stream_stream(METHOD, None, None)(iter(()), metadata=[("x-large", "y" * (1 << 20))], timeout=60)
        with pytest.raises(grpc.RpcError) as refused:
            next(iter(call))
    assert refused.value.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
    assert scene.serves("airport")


def test_streams_that_are_reset_at_once_keep_nobody_out(scene: Any) -> None:
    before = resident()
    with connected(scene) as secure:
        # Nobody reads the answers: what the server keeps for them must not grow without end either.
        for first in range(1, 20_000, 200):
            burst = b"".join(
                frame(HEADERS, END_HEADERS, stream, CALL) + frame(RST_STREAM, 0, stream, struct.pack(">I", 8))
                for stream in range(first, first + 200, 2)
            )
            try:
                secure.sendall(burst)
            except OSError:
                break
    assert scene.serves("bank")
    assert resident() - before < 64 * MIB


@pytest.mark.parametrize("piece", [frame(PING, 0, 0, bytes(8)), frame(SETTINGS)], ids=["pings", "settings"])
def test_questions_without_end_keep_nobody_out(scene: Any, piece: bytes) -> None:
    before = resident()
    with connected(scene) as secure:
        pour(secure, piece * 1000, 0.3)
        assert scene.serves("bank")
        assert pour(secure, piece * 1000, 15), "it has begun no stream"
    assert resident() - before < 64 * MIB


def test_a_certificate_that_has_expired_is_not_accepted_in_a_session_of_yesterday(
    scene: Any, frames: Any, tmp_path: Path
) -> None:
    """TLS lets a client resume a session for two days and does not look at its certificate again; we do."""
    ends = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=4)
    issue(scene.folder / "authority", tmp_path / "old", "airport", label=False, days=1, now=ends - timedelta(days=1))
    client = client_with(tmp_path / "old")
    hello = frames.hello()
    call = frame(HEADERS, END_HEADERS, 1, CALL) + frame(DATA, 0, 1, b"\0" + struct.pack(">I", len(hello)) + hello)

    def answer(secure: ssl.SSLSocket) -> bytes:
        """What comes until a sentence or the nonce of a challenge has come."""
        received = secure.recv(1 << 16)
        while b"digest of the job" not in received and b"expired" not in received:
            received += (more := secure.recv(1 << 16))
            assert more, received
        return received

    with connected(scene, client) as secure:
        secure.sendall(call)
        assert b"digest of the job" in answer(secure), "it is let in while it is valid"
        session = secure.session
    assert session is not None
    assert session.has_ticket
    time.sleep((ends - datetime.now(UTC)).total_seconds() + 1)
    with connected(scene, client, session) as secure:
        assert secure.session_reused
        secure.sendall(call)
        assert f"the certificate of 'airport': expired on {ends:%Y-%m-%d}".encode() in answer(secure)


@pytest.mark.parametrize("kind", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_frames_are_not_unpacked(scene: Any, kind: grpc.Compression) -> None:
    server = scene.serving(Certificates.load(scene.folder / "label").server(), patience=Patience())
    credentials = Certificates.load(scene.folder / "airport").channel()
    options = [("grpc.ssl_target_name_override", LABEL_SERVER_NAME), ("grpc.max_send_message_length", -1)]
    with grpc.secure_channel(f"127.0.0.1:{server.port}", credentials, options=options, compression=kind) as channel:
        bomb = bytes(64 * MIB)
        before = resident()
        call = channel.stream_stream(METHOD, None, None)(iter([bomb]), timeout=60)
        with pytest.raises(grpc.RpcError) as refused:
            list(call)
        assert refused.value.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.RESOURCE_EXHAUSTED)
        # The client, which is in this process too, may hold its own copy; unpacked it would be there once more.
        assert resident() - before < len(bomb) + 48 * MIB


@pytest.mark.parametrize(
    ("hello", "sentence"),
    [
        (wire_pb2.Hello(party="x" * 2001), "whose party is not a printable text of at most 2000 characters"),
        (wire_pb2.Hello(party="airport\x1b[2J"), "whose party is not a printable text"),
        (wire_pb2.Hello(party="airport", nonce=bytes(65)), "whose nonce has 65 bytes, more than 64"),
        (wire_pb2.Hello(fields=[wire_pb2.Field(name=str(n)) for n in range(513)]), "has 513 entries, more than 512"),
        (wire_pb2.Hello(fields=[wire_pb2.Field(name="a", value="v" * 2001)]), "whose value is not a printable text"),
        (wire_pb2.Hello(fields=[wire_pb2.Field(name="a" * 1900, value="v" * 1900)] * 20), "do not begin with a header"),
        (wire_pb2.Hello(party="airport", fields=[wire_pb2.Field(name="n" * 2000)]), "sent a nonce of 0 bytes"),
    ],
)
def test_a_handshake_with_huge_fields_is_refused(scene: Any, hello: wire_pb2.Hello, sentence: str) -> None:
    raw = scene.raw()
    raw.write(encode_control(wire_pb2.Header(hello=hello)))
    assert sentence in raw.refused()
    assert scene.serves("airport")


def test_a_field_that_only_the_other_side_has_is_named_and_cut(scene: Any) -> None:
    raw = scene.raw()
    fields = [wire_pb2.Field(name=name, value=value) for name, value in scene.terms.fields.items()]
    hello = wire_pb2.Hello(
        party="airport", nonce=bytes(32), fields=[*fields, wire_pb2.Field(name="n" * 2000, value="v" * 2000)]
    )
    raw.write(encode_control(wire_pb2.Header(hello=hello)))
    reason = raw.refused()
    assert reason.startswith("nnn")
    assert len(reason) <= 2000
    assert scene.serves("airport")
