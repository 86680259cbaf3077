"""What no honest feature party says before the handshake is done is refused, and nobody else notices."""

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from tpsl.transport import wire_pb2
from tpsl.transport.channel import Refused, run_alone
from tpsl.transport.frames import encode_control
from tpsl.transport.messages import TensorMessage

from tpsl.net.credentials import Certificates

Embeddings = partial(TensorMessage, "embeddings")

Recipe = Callable[[Any], bytes]
"""Makes a frame from the frames of an honest party."""


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        (lambda frames: b"\x00\xff\x17 random", "sent 10 bytes that do not begin with a header"),
        (lambda frames: b"", "sent 0 bytes"),
        (lambda frames: Random(0).randbytes(100_000), "sent 100000 bytes that do not begin with a header"),
        (lambda frames: frames.message(1, Embeddings(0, 0, torch.zeros(1, 1))), "sent embeddings"),
        (lambda frames: frames.message(1), "sent finished in a handshake where hello was due"),
        (lambda frames: frames.heartbeat(), "sent heartbeat in a handshake where hello was due"),
        (
            lambda frames: encode_control(wire_pb2.Header(proof=wire_pb2.Proof(proof=b"x"))),
            "sent proof in a handshake where hello",
        ),
        (
            lambda frames: encode_control(wire_pb2.Header(welcome=wire_pb2.Welcome(link=b"x"))),
            "sent welcome in a handshake",
        ),
    ],
)
def test_what_is_not_a_hello_is_refused(scene: Any, frames: Any, frame: Recipe, sentence: str) -> None:
    raw = scene.raw()
    raw.write(frame(frames))
    reason = raw.refused()
    assert reason.startswith("feature party 'airport' ")
    assert sentence in reason
    assert scene.refuses("airport", reason)
    assert scene.serves("airport")


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        (lambda frames: frames.hello(), "feature party 'airport' sent hello in a handshake where proof"),
        (
            lambda frames: encode_control(wire_pb2.Header(proof=wire_pb2.Proof(proof=bytes(32)))),
            "the record ids differ",
        ),
        (
            lambda frames: frames.message(1, Embeddings(0, 0, torch.zeros(1, 1))),
            "feature party 'airport' sent embeddings",
        ),
        (lambda frames: b"random", "feature party 'airport' sent 6 bytes"),
    ],
)
def test_what_is_not_a_proof_is_refused(scene: Any, frames: Any, frame: Recipe, sentence: str) -> None:
    raw = scene.raw()
    raw.write(frames.hello())
    assert raw.read().WhichOneof("body") == "challenge"
    raw.write(frame(frames))
    assert raw.refused().startswith(sentence)
    assert scene.serves("airport")


def test_a_recorded_handshake_is_refused(scene: Any) -> None:
    recorded = scene.raw().shake_hands()
    raw = scene.raw()
    raw.write(recorded[0])
    assert raw.read().WhichOneof("body") == "challenge"
    raw.write(recorded[1])
    assert raw.refused().startswith("the record ids differ")


def test_a_party_cannot_come_under_another_s_name(scene: Any, frames: Any) -> None:
    raw = scene.raw("bank")
    raw.write(frames.hello())
    assert raw.refused() == "the certificate is that of 'bank', not of 'airport'"
    with pytest.raises(Refused, match="the certificate is that of 'bank', not of 'airport'"):
        bank = Certificates.load(scene.folder / "bank").channel()
        run_alone(scene.client(scene.server.port, "airport", credentials=bank).gather())
    assert scene.serves("airport")


def test_a_certified_stranger_is_refused(scene: Any, frames: Any, strangers: Path) -> None:
    raw = scene.raw_with(Certificates.load(strangers / "shop").channel())
    raw.write(frames.hello("shop"))
    assert raw.refused() == "'shop' is not a feature party of this job; they are airport, bank"


def test_a_stream_that_says_nothing_is_ended(scene: Any) -> None:
    raw = scene.raw()
    assert raw.ending().startswith("CANCELLED")
    assert scene.refuses("airport", "the handshake was not finished within 1 s")


def test_a_stream_that_stops_in_the_middle_of_the_handshake_is_ended(scene: Any, frames: Any) -> None:
    raw = scene.raw()
    raw.write(frames.hello())
    raw.read()
    assert raw.ending().startswith("CANCELLED")
    assert scene.refuses("airport", "the handshake was not finished within 1 s")
    assert scene.serves("airport")


def test_many_streams_of_one_party_do_not_keep_another_out(scene: Any) -> None:
    before = threading.active_count()
    silent = [scene.raw() for _ in range(40)]
    assert scene.serves("bank")
    assert scene.eventually(lambda: all(raw.call.done() for raw in silent))
    for raw in silent:
        raw.close()
    assert scene.eventually(lambda: threading.active_count() < before + 25)
    assert scene.serves("airport")
