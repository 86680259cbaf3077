"""Peers that send without end or do not listen: they are held back, memory stays bounded, others are served."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tpsl.transport.channel import run_alone
from tpsl.transport.link import Patience
from tpsl.transport.messages import Finished, TensorMessage

from tpsl.net.credentials import Certificates

Embeddings = partial(TensorMessage, "embeddings")
Gradients = partial(TensorMessage, "gradients")

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
    assert time.monotonic() - begun < 15


def test_a_peer_that_stops_reading_and_speaking_is_lost(scene: Any) -> None:
    raw = scene.raw()
    raw.shake_hands()
    channel = scene.channel("airport")
    for step in range(6):
        run_alone(channel.send(Gradients(step, 0, torch.zeros(512, 256))))
    assert scene.eventually(
        lambda: ("airport", "lost: not heard for 1 s; waiting up to 20 s for its return") in scene.seen
    )


# Opens a thousand connections that say nothing, then a hundred a second that begin with half a greeting.
STRANGERS = """
import resource, socket, sys, time

resource.setrlimit(resource.RLIMIT_NOFILE, [resource.getrlimit(resource.RLIMIT_NOFILE)[1]] * 2)

def connection():
    stranger = socket.socket()
    stranger.setblocking(False)
    stranger.connect_ex(("127.0.0.1", int(sys.argv[1])))
    return stranger

idle = [connection() for _ in range(1000)]
print(flush=True)
begun, half_open = time.monotonic(), []
while True:
    half_open.append(connection())
    time.sleep(max(0, begun + len(half_open) / 100 - time.monotonic()))
    try:
        half_open[-1].send(bytes.fromhex("1603010200010001fc"))
    except OSError:
        pass
"""


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_thousand_silent_and_many_half_open_connections_keep_nobody_out_and_are_closed(scene: Any) -> None:
    # With the usual patience: what is given up after `silence` must not matter here.
    server = scene.serving(Certificates.load(scene.folder / "label").server(), patience=Patience())
    before = open_files()
    strangers = subprocess.Popen([sys.executable, "-c", STRANGERS, str(server.port)], stdout=subprocess.PIPE, text=True)
    try:
        assert strangers.stdout
        strangers.stdout.readline()
        assert scene.eventually(lambda: open_files() - before > 900), "they are connected"
        for _ in range(3):
            begun = time.monotonic()
            airport = scene.client(server.port)
            run_alone(run_alone(airport.gather())["label"].send(Finished(1)))
            assert run_alone(run_alone(server.gather())["airport"].receive()) == Finished(1)
            assert time.monotonic() - begun < 1
            airport.stop(None)
        # What remains are the half-open ones of about three seconds.
        assert scene.eventually(lambda: open_files() - before < 500)
        assert strangers.poll() is None
        time.sleep(3)
        assert open_files() - before < 500
    finally:
        strangers.kill()
        strangers.communicate()
    assert scene.eventually(lambda: open_files() - before < 20)
