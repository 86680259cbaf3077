"""A feature party that has shaken hands and then does what none does: the job stops with a sentence that names it."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tpsl.transport.channel import Refused, run_alone
from tpsl.transport.checks import BadMessage
from tpsl.transport.frames import encode_message
from tpsl.transport.messages import TensorMessage

Embeddings = partial(TensorMessage, "embeddings")
Gradients = partial(TensorMessage, "gradients")

Recipe = Callable[[Any], list[bytes]]
"""Makes what is sent from the frames of an honest party."""


@pytest.mark.parametrize(
    ("sent", "sentence"),
    [
        (lambda frames: [b"random"], "sent 6 bytes that do not begin with a header"),
        (lambda frames: [frames.message(2)], "sent message 2 where 1 was due"),
        (lambda frames: [frames.message(1), frames.message(1)], "sent message 1 where 2 was due"),
        (lambda frames: [frames.message(1), frames.message(2), frames.message(1)], "sent message 1 where 3 was due"),
        (lambda frames: [frames.heartbeat(1)], "acknowledges message 1, which it was not sent"),
        (lambda frames: [frames.hello()], "sent a hello after the handshake"),
        (lambda frames: [frames.heartbeat()] * 3000, "sends heartbeats without end"),
        (
            lambda frames: [encode_message(Embeddings(0, 0, torch.zeros(4, 4)), 1, 0, "float16")],
            "sent embeddings in another type of number than the job's float32",
        ),
        (
            lambda frames: [frames.message(1, Embeddings(0, 0, torch.zeros(500, 257)))],
            "sent embeddings of 500 rows of 257 numbers",
        ),
    ],
)
def test_a_bad_message_stops_the_job_with_a_sentence(scene: Any, frames: Any, sent: Recipe, sentence: str) -> None:
    raw = scene.raw()
    raw.shake_hands()
    raw.write(*sent(frames))
    with pytest.raises(BadMessage, match=f"^feature party 'airport' {sentence}"):
        channel = scene.channel("airport")
        while True:
            run_alone(channel.receive())
    scene.server.stop(f"airport {sentence}")
    headers = [raw.read()]
    while headers[-1].WhichOneof("body") != "stop":
        headers.append(raw.read())
    assert headers[-1].stop.reason == f"airport {sentence}"


def test_after_a_bad_message_the_party_is_not_let_in_again(scene: Any) -> None:
    raw = scene.raw()
    raw.shake_hands()
    raw.write(b"random")
    with pytest.raises(BadMessage):
        run_alone(scene.channel("airport").receive())
    with pytest.raises(Refused, match="the job was stopped: feature party 'airport' sent 6 bytes"):
        run_alone(scene.client(scene.server.port).gather())


def test_an_oversized_message_ends_the_connection(scene: Any, frames: Any) -> None:
    raw = scene.raw()
    raw.shake_hands()
    raw.write(frames.message(1, Embeddings(0, 0, torch.zeros(4096, 256))))
    assert raw.ending().startswith("RESOURCE_EXHAUSTED")
    assert scene.eventually(
        lambda: ("airport", "lost: the connection ended; waiting up to 20 s for its return") in scene.seen
    )
    assert scene.serves("bank")


@pytest.mark.parametrize("seed", range(3))
def test_random_streams_neither_kill_nor_deafen_the_server(scene: Any, frames: Any, seed: int) -> None:
    chance = random.Random(seed)
    honest = [
        frames.message(1),
        frames.heartbeat(),
        frames.hello(),
        frames.message(1, Gradients(1, 1, torch.zeros(8, 8))),
    ]
    for _ in range(15):
        raw = scene.raw()
        for _ in range(chance.randrange(1, 4)):
            frame = bytearray(chance.choice(honest))
            for _ in range(chance.randrange(4)):
                frame[chance.randrange(len(frame))] = chance.randrange(256)
            raw.write(bytes(frame[: chance.randrange(1, len(frame) + 1)]))
        raw.queue.put(None)
        raw.ending()
        raw.close()
    assert scene.serves("airport")
    assert scene.serves("bank")
