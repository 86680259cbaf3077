"""Peers that send without end or do not listen: they are held back, memory stays bounded, others are served."""

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Any

import torch

from tpsl.transport import run_alone
from tpsl.transport.messages import Embeddings, Gradients

MIB = 1 << 20


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_flood_is_held_back_and_memory_stays_bounded(scene: Any, frames: Any) -> None:
    raw = scene.raw()
    raw.shake_hands()
    channel = scene.channel("airport")
    count = 400
    before = resident()
    tensor = torch.zeros(512, 256)  # half a MiB each, 200 MiB in all

    def flood() -> None:
        for sequence in range(1, count + 1):
            while raw.queue.qsize() > 2:
                time.sleep(0.001)
            raw.write(frames.message(sequence, Embeddings(sequence, 0, tensor)))

    flooding = threading.Thread(target=flood, daemon=True)
    flooding.start()
    # Longer than the silence after which a peer counts as lost.
    assert 0 < scene.stands_still(lambda: raw.written, 1.5) < 100
    assert resident() - before < 100 * MIB
    # It is held back, not given up: silence is not counted while nobody listens.
    assert not [state for peer, state in scene.seen if peer == "airport" and state.startswith("lost")]
    steps = [run_alone(channel.receive()).step for _ in range(count)]
    assert steps == list(range(1, count + 1))


def test_a_flood_of_tiny_messages_is_held_back_too(scene: Any, frames: Any) -> None:
    raw = scene.raw()
    raw.shake_hands()
    raw.write(*(frames.message(sequence) for sequence in range(1, 20_001)))
    channel = scene.channel("airport")
    scene.stands_still(lambda: raw.written, 0.5)
    assert channel.received < 5_000


def test_a_peer_that_stops_reading_blocks_its_own_channel_only(scene: Any, frames: Any) -> None:
    raw = scene.raw()
    raw.shake_hands()
    channel = scene.channel("airport")
    sent = 0

    def send() -> None:
        nonlocal sent
        with contextlib.suppress(Exception):
            for step in range(400):
                run_alone(channel.send(Gradients(step, 0, torch.zeros(512, 256))))
                sent += 1

    def beat() -> None:
        while not raw.call.done():
            raw.write(frames.heartbeat())
            time.sleep(0.2)

    sending, beating = (threading.Thread(target=action, daemon=True) for action in (send, beat))
    sending.start()
    beating.start()
    assert scene.eventually(lambda: sent > 0)
    assert scene.stands_still(lambda: sent, 0.5) < 100
    assert scene.serves("bank")
    begun = time.monotonic()
    scene.server.stop("enough")
    assert time.monotonic() - begun < 5


def test_a_peer_that_stops_reading_and_speaking_is_lost(scene: Any) -> None:
    raw = scene.raw()
    raw.shake_hands()
    channel = scene.channel("airport")
    for step in range(6):
        run_alone(channel.send(Gradients(step, 0, torch.zeros(512, 256))))
    assert scene.eventually(
        lambda: ("airport", "lost: not heard for 1 s; waiting up to 20 s for its return") in scene.seen, within=3
    )
