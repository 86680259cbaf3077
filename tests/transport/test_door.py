"""The door before gRPC, with a plain socket in gRPC's place."""

import contextlib
import errno
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from tpsl.transport.door import VISITOR_BYTES, VISITORS, VISITORS_PER_ADDRESS, Door, _address_and_network
from tpsl.transport.refusal_log import RefusalLog
from tpsl.transport.relay import _Lane

SECONDS = 0.4
GREETING = b"\x16\x03\x01\x00\x04\x01\x00\x00\x00"
"""A whole TLS record; what is in it is gRPC's business."""


class House:
    """A door whose visitors have all the time in the world, and what stands behind it."""

    def __init__(self, *, tls: bool = True, address: str = "127.0.0.1:0") -> None:
        self.seen: list[tuple[str, str]] = []
        self.open = contextlib.ExitStack()
        refusals = RefusalLog(lambda who, what: self.seen.append((who, what)))
        self.door = Door(address, tls=tls, seconds=60, refusals=refusals)
        self.inner_path = Path(unquote(self.door.inner_address.removeprefix("unix:")))
        self.inner = self.open.enter_context(socket.socket(socket.AF_UNIX))
        self.inner.bind(str(self.inner_path))
        self.inner.listen(64)
        self.inner.settimeout(10)
        self.door.open()
        self.open.callback(self.door.close)

    def connect(self, source: str = "127.0.0.1", first: bytes = b"") -> socket.socket:
        outer = self.open.enter_context(socket.socket())
        outer.settimeout(10)
        outer.bind((source, 0))
        outer.connect(("127.0.0.1", self.door.port))
        if first:
            outer.sendall(first)
        return outer

    def introduced(self) -> socket.socket:
        """What gRPC gets when the next visitor has sent a whole greeting."""
        inner, _ = self.inner.accept()
        inner.settimeout(10)
        return self.open.enter_context(inner)

    def both(self, *, admitted: bool) -> tuple[socket.socket, socket.socket]:
        outer = self.connect(first=GREETING)
        inner = self.introduced()
        assert read(inner, len(GREETING)) == GREETING
        if admitted:
            self.door.visit(f"unix:{inner.getpeername()}").admit()
        return outer, inner

    def lose_patience(self) -> None:
        """From now on a visitor may stay for `SECONDS`: what a test does before that may take longer."""
        self.door._seconds = SECONDS


@pytest.fixture
def house() -> Iterator[House]:
    house = House()
    with house.open:
        yield house
    assert not [thread for thread in threading.enumerate() if thread.name == "tpsl door"]
    assert not house.inner_path.parent.exists()


def read(sock: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size and (more := sock.recv(1 << 16)):
        received += more
    return bytes(received)


def gone(sock: socket.socket) -> bool:
    """Wait until the other side has ended or reset the connection."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def is_there(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return sock.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False
    finally:
        sock.settimeout(10)


def eventually(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + 10
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    return condition()


@pytest.mark.parametrize("way", ["kernel", "no splice", "no pipe"])
@pytest.mark.parametrize("admitted", [True, False])
def test_bytes_pass_both_ways_at_once_through_slow_readers(
    house: House, monkeypatch: pytest.MonkeyPatch, admitted: bool, way: str
) -> None:
    def no_more_files() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    if way == "no splice":
        monkeypatch.delattr(os, "splice", raising=False)
    elif way == "no pipe":
        monkeypatch.setattr(os, "pipe", no_more_files)
    outer, inner = house.both(admitted=admitted)
    size = 3_000_000 if admitted else VISITOR_BYTES - 100_000
    sent = [os.urandom(size + 1), os.urandom(size + 17)]
    writers = [
        threading.Thread(target=end.sendall, args=(content,)) for end, content in zip((outer, inner), sent, strict=True)
    ]
    for writer in writers:
        writer.start()
    time.sleep(0.2)  # nobody reads: everything on the way is full
    assert read(inner, len(sent[0])) == sent[0]
    assert read(outer, len(sent[1])) == sent[1]
    for writer in writers:
        writer.join()


@pytest.mark.parametrize("admitted", [True, False])
def test_a_visitor_that_sends_without_end_goes_and_a_party_stays(house: House, admitted: bool) -> None:
    outer, inner = house.both(admitted=admitted)
    size = 3 * VISITOR_BYTES

    def sends() -> None:
        with contextlib.suppress(OSError):
            outer.sendall(bytes(size))

    writer = threading.Thread(target=sends)
    writer.start()
    with contextlib.suppress(OSError):
        assert (len(read(inner, size)) == size) is admitted
    writer.join()
    assert is_there(outer) is admitted


def test_what_was_sent_before_an_end_arrives_and_then_the_end(house: House) -> None:
    outer, inner = house.both(admitted=True)
    outer.sendall(b"never read")
    last_words = os.urandom(500_000)
    inner.sendall(last_words)
    inner.close()
    assert read(outer, len(last_words) + 1) == last_words
    outer, inner = house.both(admitted=True)
    outer.sendall(b"bye")
    outer.close()
    assert read(inner, 4) == b"bye"


def test_a_greeting_in_pieces_is_passed_on_when_it_is_whole(house: House) -> None:
    outer = house.connect(first=GREETING[:1])
    house.inner.settimeout(0.1)
    for begin in range(1, len(GREETING)):
        with pytest.raises(TimeoutError):
            house.inner.accept()
        outer.sendall(GREETING[begin : begin + 1])
        house.inner.settimeout(0.01)
    house.inner.settimeout(10)
    assert read(house.introduced(), len(GREETING)) == GREETING


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x02\x01\x00\x04", b"\x16\x03\x01\xff\xff", b"P"])
def test_what_is_not_tls_is_sent_away_at_once(house: House, first: bytes) -> None:
    assert gone(house.connect("127.0.0.2", first))
    assert eventually(lambda: house.seen == [("127.0.0.2", "refused: it does not speak TLS")])


def test_one_address_has_so_many_visitors_and_no_more(house: House) -> None:
    other = house.connect("127.0.0.3")
    idle = [house.connect("127.0.0.2") for _ in range(VISITORS_PER_ADDRESS + 3)]
    # The oldest have gone, with a reset: a plain end would tell our client that its certificate is not accepted.
    for outer in idle[:3]:
        with pytest.raises(ConnectionResetError):
            outer.recv(1)
    assert all(map(is_there, [*idle[3:], other]))
    assert eventually(lambda: len(house.seen) == 1)
    assert house.seen == [("127.0.0.2", f"refused: {VISITORS_PER_ADDRESS} connections at once without a certificate")]


def test_who_has_done_least_goes_first(house: House) -> None:
    greeted = house.connect("127.0.0.2", GREETING)
    inner = house.introduced()
    for _ in range(3 * VISITORS_PER_ADDRESS):
        house.connect("127.0.0.2", GREETING[:3])
    greeted.sendall(b"still here")
    assert read(inner, len(GREETING) + 10) == GREETING + b"still here"


def test_many_addresses_together_have_so_many_visitors_and_the_fullest_loses(house: House) -> None:
    alone = house.connect("127.0.1.1")
    crowd = [house.connect(f"127.0.0.{2 + number // 12}") for number in range(VISITORS + 40)]
    assert is_there(alone)
    assert eventually(lambda: sum(map(is_there, crowd)) == VISITORS - 1)
    assert is_there(alone)


def test_a_party_stays_and_a_visitor_does_not(house: House) -> None:
    outer, inner = house.both(admitted=True)
    house.lose_patience()
    begun = time.monotonic()
    silent, half, greeted = house.connect(), house.connect(first=GREETING[:4]), house.connect(first=GREETING)
    for visitor in (silent, half, greeted):
        with pytest.raises(ConnectionResetError):
            visitor.recv(1)
        assert time.monotonic() - begun > SECONDS
    assert ("127.0.0.1", f"refused: it has shown no certificate within {SECONDS} s") in house.seen
    outer.sendall(b"here")
    assert read(inner, 4) == b"here"


def test_a_connection_whose_streams_have_ended_is_a_visitor_again(house: House) -> None:
    outer, inner = house.both(admitted=False)
    name = f"unix:{inner.getpeername()}"
    streams = [house.door.visit(name) for _ in range(2)]
    assert streams[0].address == "127.0.0.1"
    for stream in streams:
        stream.admit()
    streams[0].end()
    house.lose_patience()
    time.sleep(SECONDS + 0.5)
    assert is_there(outer)
    streams[1].end()
    assert gone(outer)
    assert house.seen == [], "it had a certificate"
    late = house.door.visit(name)
    late.admit()
    late.end()


def test_who_is_told_that_a_stream_is_over_before_it_was_admitted(house: House) -> None:
    outer, inner = house.both(admitted=False)
    stream = house.door.visit(f"unix:{inner.getpeername()}")
    stream.end()
    stream.admit()
    house.lose_patience()
    assert gone(outer)


def test_a_refused_handshake_leaves_a_line_and_says_who_ended_it(house: House) -> None:
    outer, inner = house.both(admitted=False)
    inner.close()
    assert gone(outer)
    outer.close()
    assert eventually(lambda: len(house.seen) == 1)
    assert house.seen[0][1].startswith("refused: TLS failed: ")
    house.connect("127.0.0.2", GREETING).close()
    with house.introduced() as inner:
        assert read(inner, len(GREETING) + 1) == GREETING
    assert eventually(lambda: len(house.seen) == 2)
    assert house.seen[1] == ("127.0.0.2", "refused: it left before it had shown a certificate")


def test_a_peer_that_does_not_end_is_ended(house: House) -> None:
    outer, inner = house.both(admitted=True)
    inner.close()
    assert outer.recv(1) == b""
    with pytest.raises(OSError, match=r"reset|Broken pipe"):
        for _ in range(50):
            outer.sendall(b"more")
            time.sleep(0.1)


def test_the_port_closes_first_and_parties_stay(house: House) -> None:
    outer, inner = house.both(admitted=True)
    idle = house.connect()
    house.door.close_port()
    with pytest.raises(ConnectionRefusedError):
        house.connect()
    assert gone(idle)
    inner.sendall(b"last words")
    assert read(outer, 10) == b"last words"
    begun = time.monotonic()
    house.door.close()
    assert time.monotonic() - begun < 3
    assert gone(outer)
    house.open.pop_all()
    inner.close()


def test_connections_that_end_leave_no_open_files(house: House) -> None:
    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = open_files()
    for number in range(60):
        outer, inner = house.both(admitted=number % 2 == 0)
        outer.sendall(b"x" * 1000)
        assert read(inner, 1000) == b"x" * 1000
        for end in (outer, inner) if number % 3 else (inner, outer):
            end.close()
    assert eventually(lambda: open_files() <= before)


def test_only_this_user_can_reach_what_is_behind_the_door(house: House) -> None:
    folder = house.inner_path.parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    house.both(admitted=False)
    assert [path.name for path in folder.iterdir()] == ["inner"]


@pytest.mark.parametrize("name", ["a folder with spaces & ümlauts%20", "long" * 40])
def test_the_folder_for_temporary_files_may_have_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / name))
    house = House()
    with house.open:
        outer, inner = house.both(admitted=True)
        outer.sendall(b"hello")
        assert read(inner, 5) == b"hello"
        assert house.door.visit(f"unix:{inner.getpeername()}").address == "127.0.0.1"


def test_a_process_without_free_files_sends_visitors_away_and_lives(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = house.connect("127.0.0.2")
    assert eventually(lambda: len(house.door._connections) == 1)
    accept, full = socket.socket.accept, [OSError(errno.EMFILE, "Too many open files")]

    def failing(listener: socket.socket) -> tuple[socket.socket, object]:
        if full and listener.family == socket.AF_INET:
            raise full.pop()
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", failing)
    second = house.connect("127.0.0.3", GREETING)
    assert gone(first)
    assert read(house.introduced(), len(GREETING)) == GREETING
    assert is_there(second)


def test_a_name_that_stands_for_two_addresses_is_listened_at_on_one_port() -> None:
    house = House(tls=False, address="localhost:0")
    with house.open:
        for family, address in {(found[0], found[4]) for found in socket.getaddrinfo("localhost", house.door.port)}:
            with contextlib.suppress(OSError), socket.socket(family) as probe:
                probe.bind((address[0], 0))
                probe.close()
                with socket.create_connection(address[:2], timeout=5) as outer:
                    outer.sendall(b"x")
                    assert read(house.introduced(), 1) == b"x"


@pytest.mark.parametrize("address", ["no.such.host.invalid:7443", "a..b:7443", f"{'x' * 70}.example:7443"])
def test_an_address_that_cannot_be_found_is_one_sentence(address: str) -> None:
    with pytest.raises(ValueError, match=f"^cannot listen at {address}: "):
        House(address=address)


def test_whoever_has_one_ipv6_address_has_many() -> None:
    assert _address_and_network("127.0.0.2") == ("127.0.0.2", "127.0.0.2")
    assert _address_and_network("::ffff:10.1.2.3") == ("10.1.2.3", "10.1.2.3")
    assert _address_and_network("2001:db8:1:2:3::4") == ("2001:db8:1:2:3::4", "2001:db8:1:2::/64")
    assert _address_and_network("fe80::1%eth0") == ("fe80::1", "fe80::/64")


def test_lanes_go_through_the_kernel_where_it_can() -> None:
    ends = [socket.socketpair() for _ in range(2)]
    lane = _Lane(ends[0][1], ends[1][0])
    assert not hasattr(lane._store, "_entrance")
    lane.widen()
    assert hasattr(lane._store, "_entrance") == hasattr(os, "splice")
    lane.close()
    for pair in ends:
        for end in pair:
            end.close()
