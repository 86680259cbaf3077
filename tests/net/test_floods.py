"""Who sends without end, does not listen or comes a thousand times: memory stays bounded, others are served."""

import contextlib
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.net.http2 import call, client_with, connected, open_files, resident
from tests.net.scene import AGREED, LIMITS, MIB, Raw, Refusal, Scene, eventually, share

from tpsl.net.agreement import Introduction
from tpsl.net.codec import encode
from tpsl.net.failures import JobStopped
from tpsl.net.messages import Message

Make = Callable[..., Scene]
MOST_OPEN = LIMITS.calls + 4


def seconds(serves: Callable[[str], bool], party: str) -> float:
    begun = time.monotonic()
    assert serves(party)
    return time.monotonic() - begun


def test_calls_whose_messages_do_not_come_are_few_for_each_certificate_and_end(make_scene: Make) -> None:
    scene = make_scene("airport", "bank", silence=1)
    longest = scene.server._longest
    before, client = resident(), client_with(scene.folder / "airport")
    with contextlib.ExitStack() as closing:
        for _ in range(100):  # 600 MiB, if as much were kept as each connection may send before it is heard
            secure = closing.enter_context(connected(scene, client))
            with contextlib.suppress(OSError):
                secure.sendall(
                    b"".join(call(stream, bytes(7000), 500_000) for stream in range(1, 1 + 2 * MOST_OPEN, 2))
                )
        assert eventually(lambda: scene.server._open["airport"] == MOST_OPEN)
        assert min(seconds(scene.serves, "bank") for _ in range(3)) < 1
        assert scene.server._open["airport"] <= MOST_OPEN
        assert resident() - before < 64 * MIB
        assert eventually(lambda: scene.server._open["airport"] == 0, within=longest + 5)
        assert scene.serves("airport")


def test_answers_that_nobody_reads_are_few_for_each_certificate_and_end(make_scene: Make) -> None:
    scene = make_scene("airport", "bank", silence=1)
    hello = encode(Introduction("airport", "airport", AGREED).fields(), "float32")
    no_window = struct.pack(">HI", 4, 0)
    client = client_with(scene.folder / "airport")
    with contextlib.ExitStack() as closing:
        for _ in range(20):
            secure = closing.enter_context(connected(scene, client, settings=no_window))
            secure.sendall(b"".join(call(stream, hello) for stream in range(1, 1 + 2 * MOST_OPEN, 2)))
        assert scene.serves("bank")
        assert eventually(lambda: scene.server._open["airport"] == 0, within=scene.server._longest + 5)
        assert scene.serves("airport")


def test_large_questions_again_and_again_take_no_memory_and_the_honest_party_is_answered(
    make_scene: Make, capfd: Any
) -> None:
    scene = make_scene("airport", "bank", silence=2)
    label, raws = scene.label(2, rows=512, width=256), [scene.raw() for _ in range(4)]
    agreeing = scene.pool.submit(raws[0].agree)
    bank = scene.asking("bank")
    agreeing.result()
    question, ends = raws[0].question(0, share(1, 512, 256)), threading.Event()

    def pour(raw: Raw) -> int:
        count = 0
        while not ends.is_set():
            call = raw.begin("Step", question)
            time.sleep(0.002)
            call.cancel()
            count += 1
        return count

    pouring = [scene.pool.submit(pour, raw) for raw in raws]
    time.sleep(0.5)
    before = resident()
    time.sleep(2)
    assert resident() - before < 64 * MIB
    ticket = scene.desk._callers["airport"].due
    assert ticket is not None and len(ticket.answer._done_callbacks) <= 1
    begun = time.monotonic()
    waiting = scene.pool.submit(bank.ask, "Step", 0, 0, {"bank": share(1, 512, 256)})
    assert bool((waiting.result()["bank"].tensor == 4).all())
    assert time.monotonic() - begun < 2
    ends.set()
    assert sum(each.result() for each in pouring) > 200
    bank.stop("enough")
    with pytest.raises(JobStopped):
        label.result()


def test_what_is_asked_ahead_is_bounded_by_the_calls_of_the_job(make_scene: Make) -> None:
    scene = make_scene("airport", "bank")
    label, raw = scene.label(2), scene.raw()
    agreeing = scene.pool.submit(raw.agree)
    scene.asking("bank")
    agreeing.result()
    ahead = [raw.begin("Step", raw.question(number)) for number in range(LIMITS.calls)]
    assert eventually(lambda: len(scene.desk._callers["airport"].tickets) == LIMITS.calls)
    assert raw.refused("Step", raw.question(LIMITS.calls)).code == "bad-message"
    assert all(call.exception() is not None for call in ahead)
    with pytest.raises(ValueError, match="out of turn"):
        label.result()


def test_handshakes_without_end_leave_nothing_behind_and_keep_nobody_out(scene: Scene) -> None:
    label, raw = scene.label(1, without=("bank",)), scene.raw()
    for number in range(200):
        raw.process = b"process %d" % number
        raw.agree()
        raw.proof()
    caller = scene.desk._callers["airport"]
    assert scene.restarts > 100
    assert len(caller.retired) <= 64 and len(caller.introductions) <= 4
    assert len(scene.desk._sessions) <= 2
    assert raw.answer("Step", raw.question(0)).tensor is not None
    label.result()
    assert scene.serves("bank")


@pytest.mark.parametrize("method", ["Hello", "Agree", "Step"])
def test_small_calls_without_end_keep_nobody_out(scene: Scene, method: str) -> None:
    ends = threading.Event()

    def pour() -> int:
        raw, refused = scene.raw(), 0
        while not ends.is_set():
            try:
                raw.call(method, encode(Message(text="airport", session=b"p"), "float32"))
            except Refusal:
                refused += 1
        return refused

    pouring = [scene.pool.submit(pour) for _ in range(2)]
    time.sleep(0.2)
    for _ in range(3):
        assert scene.serves("bank")
    ends.set()
    assert sum(each.result() for each in pouring) > 20


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


def test_a_thousand_silent_and_many_half_open_connections_keep_nobody_out_and_are_closed(make_scene: Make) -> None:
    # With the usual patience: what is given up after `silence` must not matter here.
    scene = make_scene("airport", "bank", silence=15, wait=3600)
    before = open_files()
    strangers = subprocess.Popen([sys.executable, "-c", STRANGERS, str(scene.port)], stdout=subprocess.PIPE, text=True)
    try:
        assert strangers.stdout
        strangers.stdout.readline()
        assert eventually(lambda: open_files() - before > 900), "they are connected"
        assert all(seconds(scene.serves, "airport") < 1 for _ in range(3))
        # What remains are the half-open ones of about three seconds.
        assert eventually(lambda: open_files() - before < 500)
        assert strangers.poll() is None
        time.sleep(3)
        assert open_files() - before < 500
    finally:
        strangers.kill()
        strangers.communicate()
    assert eventually(lambda: open_files() - before < 20)


def test_connections_of_a_certified_party_that_carry_no_call_are_closed(scene: Scene) -> None:
    before, client = open_files(), client_with(scene.folder / "airport")
    with contextlib.ExitStack() as closing:
        for _ in range(200):
            closing.enter_context(connected(scene, client))
        assert min(seconds(scene.serves, "bank") for _ in range(3)) < 1
        assert eventually(lambda: open_files() - before < 200 + 50, within=10), "only their own ends are left"
