"""The proxy that the tests of connections rely on does to real sockets what it says."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[1] / "benchmarks" / "tcp_proxy.py"
SOON = 60.0
A_WHILE = 0.3

Pair = tuple[socket.socket, socket.socket]


class Target:
    """A listening socket; `pair` connects to it through the proxy and returns both ends."""

    def __init__(self, start_proxy: Callable[[str], Any]) -> None:
        self.open = contextlib.ExitStack()
        self.listener = self.open.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.listener.settimeout(SOON)
        self.proxy = start_proxy(f"127.0.0.1:{self.listener.getsockname()[1]}")

    def connect(self) -> socket.socket:
        near = socket.create_connection(("127.0.0.1", self.proxy.port), timeout=SOON)
        return self.open.enter_context(near)

    def pair(self) -> Pair:
        near = self.connect()
        far, _ = self.listener.accept()
        far.settimeout(SOON)
        return near, self.open.enter_context(far)


@pytest.fixture
def target(tcp_proxy: Callable[[str], Any]) -> Iterator[Target]:
    target = Target(tcp_proxy)
    with target.open:
        yield target


def exactly(end: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        chunk = end.recv(1 << 20)
        assert chunk, f"the connection ended after {len(received)} of {size} bytes"
        received += chunk
    return bytes(received)


def silent(end: socket.socket, seconds: float = A_WHILE) -> bool:
    """Neither data nor an end nor a reset comes for a while."""
    end.settimeout(seconds)
    try:
        end.recv(1)
        return False
    except TimeoutError:
        return True
    except OSError:
        return False
    finally:
        end.settimeout(SOON)


def is_reset(end: socket.socket) -> bool:
    try:
        while end.recv(1 << 20):
            pass
        return False
    except ConnectionResetError:
        return True


def passes(pair: Pair) -> bool:
    pair[0].sendall(b"there")
    pair[1].sendall(b"back")
    return exactly(pair[1], 5) == b"there" and exactly(pair[0], 4) == b"back"


def both_ways_at_once(pair: Pair, data: bytes) -> tuple[bytes, bytes]:
    """Send the data from both ends while both read; return what arrived at each."""
    senders = [threading.Thread(target=end.sendall, args=(data,)) for end in pair]
    arrived: list[bytes] = [b"", b""]

    def read(number: int) -> None:
        arrived[number] = exactly(pair[number], len(data))

    readers = [threading.Thread(target=read, args=(number,)) for number in (0, 1)]
    for thread in (*senders, *readers):
        thread.start()
    for thread in (*senders, *readers):
        thread.join(30)
    return arrived[0], arrived[1]


@pytest.mark.parametrize("delay", [0, 20])
def test_megabytes_pass_both_ways_at_once_unchanged_and_are_counted(target: Target, delay: int) -> None:
    data = os.urandom(1 << 24)
    target.proxy.delay(delay)
    assert both_ways_at_once(target.pair(), data) == (data, data)
    assert target.proxy.count() == {"forward": 1 << 24, "back": 1 << 24, "accepted": 1, "alive": 1}


def test_each_connection_gets_its_own_bytes(target: Target) -> None:
    pairs = [target.pair() for _ in range(5)]
    for number, (near, far) in enumerate(pairs):
        near.sendall(b"%d" % number)
        far.sendall(b"%d" % (number + 5))
    assert [exactly(far, 1) for _, far in pairs] == [b"0", b"1", b"2", b"3", b"4"]
    assert [exactly(near, 1) for near, _ in pairs] == [b"5", b"6", b"7", b"8", b"9"]
    assert target.proxy.count()["alive"] == 5


def test_an_end_is_passed_on_and_the_other_way_stays_open(target: Target) -> None:
    near, far = target.pair()
    near.sendall(b"last words")
    near.shutdown(socket.SHUT_WR)
    assert exactly(far, 10) == b"last words"
    assert far.recv(1) == b""
    far.sendall(b"answer")
    assert exactly(near, 6) == b"answer"
    far.close()
    assert near.recv(1) == b""
    deadline = time.monotonic() + SOON
    while target.proxy.count()["alive"] and time.monotonic() < deadline:
        time.sleep(0.001)
    assert target.proxy.count()["alive"] == 0


def test_a_reset_is_passed_on(target: Target) -> None:
    near, far = target.pair()
    far.sendall(b"never read, so closing resets")
    assert near.recv(1, socket.MSG_PEEK)
    near.close()
    assert is_reset(far)


def test_without_a_listener_behind_it_a_connection_is_reset(target: Target) -> None:
    target.listener.close()
    with pytest.raises(ConnectionResetError):  # Under load even before `connect` returns.
        target.connect().recv(1)


def test_cut_resets_both_ends_and_lets_new_connections_through(target: Target) -> None:
    pairs = [target.pair(), target.pair()]
    assert all(passes(pair) for pair in pairs)
    target.proxy.cut()
    assert target.proxy.count()["alive"] == 0
    assert all(is_reset(end) for pair in pairs for end in pair)
    assert passes(target.pair())


def test_cut_drops_what_is_under_way(target: Target) -> None:
    near, far = target.pair()
    target.proxy.delay(60_000)
    near.sendall(b"on its way")
    while target.proxy.count()["forward"] < 10:
        time.sleep(0.001)
    target.proxy.cut()
    with pytest.raises(ConnectionResetError):
        far.recv(1)


def test_a_frozen_connection_takes_everything_and_passes_nothing(target: Target) -> None:
    near, far = target.pair()
    assert passes((near, far))
    before = target.proxy.count()
    target.proxy.freeze()
    for end in (near, far):
        end.sendall(bytes(1 << 24))  # More than the buffers of two sockets hold: it is read, then dropped.
        assert silent(far if end is near else near)
    assert target.proxy.count() == {**before, "alive": 0}


def test_freeze_drops_what_is_under_way(target: Target) -> None:
    near, far = target.pair()
    target.proxy.delay(2000)
    near.sendall(b"on its way")
    while target.proxy.count()["forward"] < 10:
        time.sleep(0.001)
    target.proxy.freeze()
    assert silent(far, 2 + A_WHILE)


def test_freeze_stops_in_the_middle_of_what_the_receiver_has_not_read(target: Target) -> None:
    near, far = target.pair()
    near.setblocking(False)
    sent = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            sent += near.send(bytes(1 << 20))
            time.sleep(0.002)
    assert far.recv(1, socket.MSG_PEEK)
    target.proxy.freeze()
    received = 0
    far.settimeout(A_WHILE)
    with contextlib.suppress(TimeoutError):
        while True:
            received += len(far.recv(1 << 20))
    assert 0 < received < sent


def test_the_end_of_one_side_of_a_frozen_connection_is_not_told(target: Target) -> None:
    near, far = target.pair()
    target.proxy.freeze()
    near.close()
    assert silent(far)
    far.sendall(bytes(1 << 22))
    assert silent(far)


def test_frozen_connections_stay_dead_after_thaw_and_new_ones_live(target: Target) -> None:
    old = target.pair()
    target.proxy.freeze()
    made_while_frozen = target.connect()
    made_while_frozen.sendall(b"anybody?")
    target.listener.settimeout(A_WHILE)
    with pytest.raises(TimeoutError):
        target.listener.accept()
    target.listener.settimeout(SOON)
    target.proxy.thaw()
    assert passes(target.pair())
    old[0].sendall(b"hello")
    assert silent(old[1])
    assert silent(made_while_frozen)
    target.proxy.cut()
    assert is_reset(old[0])
    assert is_reset(old[1])
    assert is_reset(made_while_frozen)


def test_refuse_keeps_what_is_there_and_refuses_what_comes(target: Target) -> None:
    pair = target.pair()
    target.proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        target.connect()
    assert passes(pair)
    target.proxy.refuse()
    target.proxy.thaw()
    assert passes(target.pair())
    assert passes(pair)
    assert target.proxy.count()["accepted"] == 2


def test_delay_holds_for_each_way_and_for_the_end(target: Target) -> None:
    near, far = target.pair()
    assert passes((near, far))
    target.proxy.delay(1000)
    begun = time.monotonic()
    near.sendall(b"x")
    exactly(far, 1)
    there = time.monotonic() - begun
    far.sendall(b"y")
    exactly(near, 1)
    back = time.monotonic() - begun - there
    begun = time.monotonic()
    near.shutdown(socket.SHUT_WR)
    assert far.recv(1) == b""
    end = time.monotonic() - begun
    assert 0.999 <= there < 2
    assert 0.999 <= back < 2
    assert 0.999 <= end < 2


def test_delay_does_not_limit_bandwidth(target: Target) -> None:
    near, far = target.pair()
    target.proxy.delay(1000)
    begun = time.monotonic()
    sender = threading.Thread(target=near.sendall, args=(bytes(1 << 26),))
    sender.start()
    exactly(far, 1 << 26)
    sender.join()
    # Stop and wait with the 1 MiB that is under way without a delay would take 64 s.
    assert 1.0 <= time.monotonic() - begun < 20


def test_order_is_kept_when_the_delay_shrinks(target: Target) -> None:
    near, far = target.pair()
    target.proxy.delay(200)
    near.sendall(b"first ")
    while target.proxy.count()["forward"] < 6:
        time.sleep(0.001)
    target.proxy.delay(0)
    near.sendall(b"second")
    assert exactly(far, 12) == b"first second"


def test_a_receiver_that_does_not_read_is_felt_by_the_sender(target: Target) -> None:
    near, _ = target.pair()
    near.settimeout(A_WHILE)
    with pytest.raises(TimeoutError):
        near.sendall(bytes(1 << 28))


def test_it_ends_with_its_stdin(target: Target) -> None:
    near, _ = target.pair()
    target.proxy.close()
    assert target.proxy.process.returncode == 0
    with contextlib.suppress(ConnectionResetError):
        assert near.recv(1) == b""


@pytest.mark.parametrize("line", ["explode", "delay", "delay soon", "delay -1", "cut now"])
def test_a_command_it_does_not_know_ends_it_loudly(line: str) -> None:
    done = subprocess.run(
        [sys.executable, PROGRAM, "--to", "127.0.0.1:1"], input=line + "\n", capture_output=True, text=True, timeout=20
    )
    assert done.returncode == 1
    assert done.stderr == f"tcp_proxy: there is no command {line!r}\n"
