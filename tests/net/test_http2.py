"""HTTP/2 as no gRPC client speaks it, by somebody with a party's certificate."""

import struct
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from ssl import SSLSocket

import grpc
import pytest
from tests.net.http2 import (
    CALL,
    CONTINUATION,
    END_HEADERS,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    call,
    client_with,
    connected,
    frame,
    length,
    literal,
    pour,
    resident,
)
from tests.net.scene import AGREED, MIB, Scene

from tpsl.net.agreement import Introduction
from tpsl.net.certificates import issue
from tpsl.net.codec import encode


def test_headers_without_end_take_no_memory_and_end(scene: Scene) -> None:
    before = resident()
    with connected(scene) as secure:
        secure.sendall(frame(HEADERS, 0, 1, CALL))
        endless = frame(CONTINUATION, 0, 1, literal(b"x-more", b"y" * 16000)) * 8
        assert pour(secure, endless, 15)
    assert resident() - before < 96 * MIB
    assert scene.serves("bank")


def test_a_header_that_unpacks_to_far_more_takes_no_memory(scene: Scene) -> None:
    """A table entry of 4 KB, referred to by one byte each; gRPC reads on, and keeps none of it."""
    before = resident()
    with connected(scene) as secure:
        entry = b"\x40" + length(b"x-bomb") + b"x-bomb" + length(b"y" * 3900) + b"y" * 3900
        secure.sendall(frame(HEADERS, 0, 1, CALL + entry))
        pour(secure, frame(CONTINUATION, 0, 1, b"\xbe" * 16000), 3)  # 60 MB each, unpacked
        assert scene.serves("bank")
    assert resident() - before < 96 * MIB


def test_large_metadata_is_refused(scene: Scene) -> None:
    raw = scene.raw()
    refusal = raw.refused("Hello", b"", metadata=[("x-large", "y" * MIB)])
    assert refusal.status in (grpc.StatusCode.RESOURCE_EXHAUSTED.name, grpc.StatusCode.UNAVAILABLE.name)
    assert scene.serves("airport")


def test_calls_that_are_reset_at_once_keep_nobody_out(scene: Scene) -> None:
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
def test_frames_without_end_and_without_a_call_keep_nobody_out(scene: Scene, piece: bytes) -> None:
    before = resident()
    with connected(scene) as secure:
        pour(secure, piece * 1000, 0.3)
        assert scene.serves("bank")
        assert pour(secure, piece * 1000, 15), "it has begun no call"
    assert resident() - before < 64 * MIB


def test_a_certificate_that_has_expired_is_not_accepted_in_a_session_of_yesterday(scene: Scene, tmp_path: Path) -> None:
    """TLS lets a client resume a session for two days and does not look at its certificate again; we do."""
    ends = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=4)
    issue(scene.folder / "authority", tmp_path / "old", "airport", days=1, now=ends - timedelta(days=1))
    client = client_with(tmp_path / "old")
    hello = call(1, encode(Introduction("airport", "airport", AGREED).fields(), "float32"))

    def answer(secure: SSLSocket) -> bytes:
        """What comes until a sentence or the label party's fields have come."""
        received = secure.recv(1 << 16)
        while b"digest of the job" not in received and b"expired" not in received:
            received += (more := secure.recv(1 << 16))
            assert more, received
        return received

    with connected(scene, client) as secure:
        secure.sendall(hello)
        assert b"digest of the job" in answer(secure), "it is let in while it is valid"
        session = secure.session
    assert session is not None
    assert session.has_ticket
    time.sleep((ends - datetime.now(UTC)).total_seconds() + 1)
    with connected(scene, client, session) as secure:
        assert secure.session_reused
        secure.sendall(hello)
        assert f"the certificate of 'airport': expired on {ends:%Y-%m-%d}".encode() in answer(secure)
