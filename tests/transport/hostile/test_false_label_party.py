"""What a feature party does when the label party, with the right certificate, does not keep to the rules."""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc
import pytest
import torch
from tpsl.transport.channel import run_alone
from tpsl.transport.checks import BadMessage
from tpsl.transport.handshake import LabelHandshake, LinkPosition
from tpsl.transport.messages import TensorMessage

from tpsl.net.credentials import Certificates

Gradients = partial(TensorMessage, "gradients")

Recipe = Callable[[Any], list[bytes]]
"""Makes what the label party says from the frames of an honest party."""


class FalseLabelParty:
    """Has the label party's certificate, and after an honest handshake says whatever it is told to."""

    def __init__(self, scene: Any, frames: list[bytes], *, honest: bool = True) -> None:
        self.terms, self.frames, self.honest = scene.terms, frames, honest
        self.pool = ThreadPoolExecutor(4)
        self.server = grpc.server(self.pool)
        handler = grpc.stream_stream_rpc_method_handler(self._serve)
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("tpsl.wire.Split", {"Connect": handler}),)
        )
        self.port = self.server.add_secure_port("127.0.0.1:0", Certificates.load(scene.folder / "label").server())
        self.server.start()
        scene.open.callback(self.close)

    def _serve(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        handshake = LabelHandshake(self.terms, ("airport",))
        challenge = handshake.challenge(next(requests), "airport")
        if self.honest:
            yield challenge
            handshake.proven(next(requests))
            yield handshake.welcome(LinkPosition(b"a link", 0))
        yield from self.frames
        with contextlib.suppress(grpc.RpcError):
            for _ in requests:
                pass

    def close(self) -> None:
        self.server.stop(None)
        self.pool.shutdown()


@pytest.mark.parametrize(
    ("sent", "sentence"),
    [
        (lambda frames: [b"random"], "the label party sent 6 bytes that do not begin with a header"),
        (lambda frames: [frames.message(5)], "the label party sent message 5 where 1 was due"),
        (lambda frames: [frames.heartbeat()] * 3000, "the label party sends heartbeats without end"),
        (lambda frames: [frames.message(1, Gradients(0, 0, torch.zeros(4096, 256)))], "too large for this job"),
    ],
)
def test_a_bad_message_of_the_label_party_stops_the_feature_party(
    scene: Any, frames: Any, sent: Recipe, sentence: str
) -> None:
    false = FalseLabelParty(scene, sent(frames))
    client = scene.client(false.port)
    with pytest.raises(BadMessage, match=sentence):
        run_alone(run_alone(client.gather())["label"].receive())
    client.stop("the label party sent nonsense")


@pytest.mark.parametrize(
    "sent",
    [
        lambda frames: [b"random"],
        lambda frames: [frames.heartbeat()],
        lambda frames: [frames.message(1)],
        lambda frames: [frames.hello()],
    ],
)
def test_a_label_party_that_does_not_know_the_handshake_is_not_trusted(scene: Any, frames: Any, sent: Recipe) -> None:
    false = FalseLabelParty(scene, sent(frames), honest=False)
    with pytest.raises(BadMessage, match=r"^the label party sent "):
        run_alone(scene.client(false.port).gather())
