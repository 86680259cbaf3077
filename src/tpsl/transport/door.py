"""The label party's public port: strangers cannot use up its connections, its memory or its files.

gRPC does not ask before it starts TLS with somebody. So it listens on a socket in a private folder, where nobody else
gets, and the door listens at the public address and passes bytes on unread. A connection is a *visitor* until it has
shown the certificate of a party. It has `ADMISSION_SECONDS` to do so, and gRPC hears of it when its TLS greeting is
complete. No address has more than `VISITORS_PER_ADDRESS` visitors, all together are at most `VISITORS`: for a new
one the visitor that has done least goes, of the address that has most. So neither silent nor half-open connections
keep a party out.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import itertools
import selectors
import socket
import struct
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from urllib.parse import quote, unquote

from tpsl.transport.network import split_address
from tpsl.transport.refusal_log import RefusalLog
from tpsl.transport.relay import Relay

VISITORS_PER_ADDRESS = 16
"""Connections of one address (of one /64 network in IPv6) that have not shown a party's certificate."""
VISITORS = 128
"""The same for all addresses."""
ADMISSION_SECONDS = 5.0
"""How long a connection may be a visitor."""
VISITOR_BYTES = 1 << 20
"""What may come from one that never was more than a visitor: more than TLS and a handshake take, and far less than
what gRPC would keep of endless headers."""

_TICK_SECONDS = 0.25
# How long a connection that gRPC has ended may take to deliver what is under way.
_LAST_WORDS_SECONDS = 1.0
_BACKLOG = 1024
_ACCEPTED_A_TURN = 64
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_NOT_ON_THIS_MACHINE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_LONGEST_FOLDER = 80  # the path of a socket has about a hundred characters at most
# TLS begins with a record of a kind, a version, two bytes of length and as many bytes of greeting.
_HANDSHAKE_RECORD, _LONGEST_RECORD = b"\x16\x03", 1 << 14


class Door:
    """Listens at the public address, lets visitors in from `open` on, and passes parties on to `inner_address`."""

    def __init__(self, address: str, *, tls: bool, seconds: float, refusals: RefusalLog) -> None:
        """Listen at once. A visitor may stay for `seconds`."""
        self._listeners = _listening(address)
        self.port: int = self._listeners[0].getsockname()[1]
        self._tls, self._seconds, self._refusals = tls, seconds, refusals
        self._folder = _private_folder()
        self._inner_path = str(Path(self._folder.name) / "inner")
        self.inner_address = f"unix:{quote(self._inner_path)}"
        self._numbers = itertools.count()
        self._connections: set[_Connection] = set()
        self._by_name: dict[str, _Connection] = {}
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._closing_port, self._port_closed, self._closing = (threading.Event() for _ in range(3))
        self._thread = threading.Thread(target=self._run, name="tpsl door", daemon=True)

    def open(self) -> None:
        """Let visitors in from now on."""
        for ready in (self._woken, *self._listeners):
            ready.setblocking(False)
            self._selector.register(ready, selectors.EVENT_READ)
        self._thread.start()

    def visit(self, name: str) -> Visit:
        """Return the visit of a new stream; `name` is what gRPC calls its connection, whose TLS handshake is done."""
        connection = self._by_name.get(unquote(name).removeprefix("unix:"))
        if connection is not None:
            connection.certified = True
        return Visit(connection)

    def close_port(self) -> None:
        """Nobody can connect any more when this returns; connections stay."""
        self._closing_port.set()
        self._wake.send(b"\0")
        self._port_closed.wait()

    def close(self) -> None:
        """Deliver what gRPC had sent before it ended its connections, for a second at most, and end them."""
        self.close_port()
        self._closing.set()
        self._wake.send(b"\0")
        self._thread.join()
        self._selector.close()
        self._wake.close()
        self._woken.close()
        self._folder.cleanup()

    # What follows runs in the door's thread.

    def _run(self) -> None:
        try:
            self._attend()
        finally:
            # Also if this is a defect: a port that nobody attends to must not stay open.
            self._shut_port()
            for connection in list(self._connections):
                self._end(connection)
            self._refusals.tell(all_of_them=True)

    def _attend(self) -> None:
        looked, until = time.monotonic(), float("inf")
        while looked < until and not (self._closing.is_set() and not self._connections):
            for key, _ in self._selector.select(_TICK_SECONDS):
                if isinstance(key.data, _Connection):
                    self._go_on(key.data)
                elif key.fileobj is self._woken:
                    self._woken.recv(16)
                elif isinstance(key.fileobj, socket.socket):
                    self._accept(key.fileobj)
            if self._closing_port.is_set():
                self._shut_port()
            if self._closing.is_set():
                until = min(until, time.monotonic() + _LAST_WORDS_SECONDS)
            if time.monotonic() - looked >= _TICK_SECONDS:
                looked = time.monotonic()
                self._look_at_the_clock(looked)

    def _shut_port(self) -> None:
        while self._listeners:
            listener = self._listeners.pop()
            self._selector.unregister(listener)
            listener.close()
        for visitor in [connection for connection in self._connections if connection.relay is None]:
            self._end(visitor)
        self._port_closed.set()

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTED_A_TURN):
            try:
                outer, address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _NO_ROOM and not self._send_one_away(self._connections, "too many files are open"):
                    time.sleep(_TICK_SECONDS / 10)  # nobody can be sent away, and the listener stays ready
                return
            connection = _Connection(outer, address[0])
            self._make_room(connection.network)
            self._connections.add(connection)
            self._go_on(connection)

    def _make_room(self, network: str) -> None:
        """Send a visitor away if there are too many for one more of this network."""
        visitors = [connection for connection in self._connections if not connection.admitted]
        numbers = Counter(visitor.network for visitor in visitors)
        if numbers[network] >= VISITORS_PER_ADDRESS:
            crowd = {visitor for visitor in visitors if visitor.network == network}
        elif len(visitors) >= VISITORS:
            most = max(numbers.values())
            crowd = {visitor for visitor in visitors if numbers[visitor.network] == most}
        else:
            return
        self._send_one_away(crowd, f"{len(crowd)} connections at once without a certificate")

    def _send_one_away(self, connections: set[_Connection], why: str) -> bool:
        """End the visitor among them that has done least, the oldest of these; False if there is none."""
        visitors = [connection for connection in connections if not connection.admitted]
        if not visitors:
            return False
        least = min(visitors, key=lambda visitor: (visitor.certified, visitor.relay is not None, visitor.since))
        self._end(least, why)
        return True

    def _go_on(self, connection: _Connection) -> None:
        if connection not in self._connections:
            return  # it has ended in this very turn
        try:
            if connection.relay is None:
                self._greet(connection)
            if connection.relay is not None:
                connection.relay.move(wide=connection.admitted)
        except OSError as error:
            self._end(connection, f"the connection broke ({error.strerror})")
            return
        relay = connection.relay
        if relay is not None and relay.is_over:
            self._end(connection, connection.why_over)
        elif relay is not None and not connection.ever_admitted and relay.received > VISITOR_BYTES:
            self._end(connection, f"it sent {VISITOR_BYTES:,} bytes and began no stream of a party")
        elif connection in self._connections:
            connection.register(self._selector)

    def _greet(self, visitor: _Connection) -> None:
        """Read the beginning of TLS; when it is complete, gRPC gets it."""
        try:
            received = visitor.outer.recv(_LONGEST_RECORD)
        except BlockingIOError:
            return
        visitor.greeting += received
        if not received:
            self._end(visitor, "it left before TLS began")
        elif self._tls and not _begins_tls(visitor.greeting):
            self._end(visitor, "it does not speak TLS")
        elif not self._tls or _is_whole_record(visitor.greeting):
            self._introduce(visitor)

    def _introduce(self, visitor: _Connection) -> None:
        """Connect it to gRPC, from a path of its own, which gRPC takes for its name."""
        path = Path(self._folder.name) / str(next(self._numbers))
        visitor.name = str(path)
        self._by_name[visitor.name] = visitor
        inner = socket.socket(socket.AF_UNIX)
        visitor.relay = Relay(visitor.outer, inner, visitor.greeting)
        inner.bind(visitor.name)
        path.unlink()
        inner.connect(self._inner_path)
        inner.setblocking(False)

    def _look_at_the_clock(self, now: float) -> None:
        for connection in list(self._connections):
            ended_at = connection.relay.ended_at if connection.relay is not None else None
            if ended_at is not None:
                if now - ended_at > _LAST_WORDS_SECONDS:
                    self._end(connection, connection.why_over)
            elif not connection.admitted and now - connection.since > self._seconds:
                self._end(connection, f"it has shown no certificate within {self._seconds:g} s")
        self._refusals.tell()

    def _end(self, connection: _Connection, why: str | None = None) -> None:
        if why is not None and not connection.certified:
            self._refusals.note(connection.address, why)
        self._connections.discard(connection)
        self._by_name.pop(connection.name, None)
        connection.close(self._selector)


class Visit:
    """One stream, as the door sees it."""

    def __init__(self, connection: _Connection | None) -> None:
        self._connection = connection
        self._over = False
        self.address = connection.address if connection is not None else "a connection that has ended"
        """Where it comes from."""

    def admit(self) -> None:
        """It is a party's: its connection is no visitor any more."""
        if self._connection is not None:
            self._connection.ever_admitted = True
            self._connection.parties.add(self)
            if self._over:  # the stream has ended in another thread meanwhile
                self._connection.parties.discard(self)

    def end(self) -> None:
        """Without a party's stream its connection is a visitor again, whose time begins now."""
        self._over = True
        if self._connection is not None:
            self._connection.since = time.monotonic()
            self._connection.parties.discard(self)


class _Connection:
    """One connection from outside and, when its greeting is complete, its way to gRPC."""

    def __init__(self, outer: socket.socket, address: str) -> None:
        outer.setblocking(False)
        with contextlib.suppress(OSError):  # it may have been cut off already, which is not noticed here
            outer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.outer = outer
        self.address, self.network = _address_and_network(address)
        self.since = time.monotonic()
        self.greeting = b""
        self.relay: Relay | None = None
        self.name = ""
        self.certified = False
        self.ever_admitted = False
        self.parties: set[Visit] = set()
        self._registered: dict[socket.socket, int] = {}

    @property
    def admitted(self) -> bool:
        """It carries the stream of a party."""
        return bool(self.parties)

    @property
    def why_over(self) -> str:
        """Why it has ended, if it has shown no certificate."""
        if self.relay is not None and self.relay.ended_by_inner:
            return "TLS failed: it has no valid certificate of this job's authority, or does not accept ours"
        return "it left before it had shown a certificate"

    def register(self, selector: selectors.BaseSelector) -> None:
        """Have the selector watch for what can go on."""
        wanted = self.relay.wanted() if self.relay is not None else {self.outer: selectors.EVENT_READ}
        for sock, events in wanted.items():
            before = self._registered.get(sock, 0)
            if events == before:
                continue
            if not events:
                selector.unregister(sock)
            elif before:
                selector.modify(sock, events, self)
            else:
                selector.register(sock, events, self)
            self._registered[sock] = events

    def close(self, selector: selectors.BaseSelector) -> None:
        """Close both sides; nothing more is said to one that has to go."""
        for sock, events in self._registered.items():
            if events:
                selector.unregister(sock)
        self._registered = {}
        if self.relay is None or self.relay.ended_at is None:
            # A reset: our own client takes a plain end, which is gRPC's, for a certificate that is not accepted.
            with contextlib.suppress(OSError):
                self.outer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if self.relay is not None:
            self.relay.close()
        self.outer.close()


def _begins_tls(greeting: bytes) -> bool:
    length = int.from_bytes(greeting[3:5]) if len(greeting) >= 5 else 1
    return greeting[:2] == _HANDSHAKE_RECORD[: len(greeting)] and 0 < length <= _LONGEST_RECORD


def _is_whole_record(greeting: bytes) -> bool:
    return len(greeting) >= 5 and len(greeting) >= 5 + int.from_bytes(greeting[3:5])


def _address_and_network(address: str) -> tuple[str, str]:
    """Return an address as it is shown, and what belongs to one owner: whoever has one IPv6 address has 2**64."""
    host = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(host, ipaddress.IPv4Address):
        return str(host), str(host)
    if host.ipv4_mapped is not None:
        return str(host.ipv4_mapped), str(host.ipv4_mapped)
    return str(host), str(ipaddress.ip_network((host, 64), strict=False))


def _private_folder() -> tempfile.TemporaryDirectory[str]:
    """Make a folder that only this user can enter, with a path that leaves room for the name of a socket."""
    usual = tempfile.gettempdir()
    parent = usual if len(usual.encode()) <= _LONGEST_FOLDER else "/tmp"  # noqa: S108  (the folder in it is private)
    return tempfile.TemporaryDirectory(prefix="tpsl-", dir=parent, ignore_cleanup_errors=True)


def _listening(address: str) -> list[socket.socket]:
    """Listen at every address that the host's name stands for, on one port."""
    host, port = split_address(address)
    listeners: list[socket.socket] = []
    failure: OSError | None = None
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, target in dict.fromkeys(found):
            chosen = listeners[0].getsockname()[1] if listeners else port
            try:
                at, both = (target[0], chosen, *target[2:]), target[0] == "::" and socket.has_dualstack_ipv6()
                listeners.append(socket.create_server(at, family=family, backlog=_BACKLOG, dualstack_ipv6=both))
            except OSError as error:
                failure = error
                if error.errno not in _NOT_ON_THIS_MACHINE:
                    raise
        if failure is not None and not listeners:
            raise failure
    except (OSError, UnicodeError) as error:
        for listener in listeners:
            listener.close()
        reason = str(getattr(error, "strerror", None) or error).partition(" (while attempting")[0]
        raise ValueError(f"cannot listen at {address}: {reason.lower()}") from error
    return listeners
