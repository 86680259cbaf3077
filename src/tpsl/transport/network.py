"""What both ends of the gRPC stream have in common: its name, its options, and when it may do without TLS."""

from __future__ import annotations

import re
import socket
import threading
from abc import ABC, abstractmethod
from typing import Self

import grpc

from tpsl.transport.frames import PIECE_BYTES, Limits, largest_frame
from tpsl.transport.handshake import Agreement
from tpsl.transport.link import Terms
from tpsl.transport.messages import WireType

SERVICE, METHOD = "tpsl.wire.Split", "Connect"

SHORT_GRACE = 2.0
"""How many seconds last words may take where something went wrong."""

_HANDSHAKE_MS = 3_000
# A connection that carries no call for so long is closed.
_IDLE_MS = 5_000
_LOOPBACK = ("127.0.0.1", "[::1]", "localhost")

Options = list[tuple[str, int | str]]


def message_options(most_bytes: int) -> Options:
    """Return the gRPC options of either end: messages up to a size, nothing compressed, dead peers noticed."""
    return [
        ("grpc.max_receive_message_length", most_bytes),
        ("grpc.max_send_message_length", most_bytes),
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.default_compression_algorithm", 0),
        ("grpc.compression_enabled_algorithms_bitset", 1),  # none: nothing grows while it is unpacked
        ("grpc.enable_retries", 0),
    ]


def server_options(streams_of_a_connection: int) -> Options:
    """Return the gRPC options of a server beside those of its messages.

    A connection that has not finished TLS within three seconds is closed, so clients without a certificate hold a
    bounded number of file descriptors. A port belongs to one process.
    """
    return [
        ("grpc.max_concurrent_streams", streams_of_a_connection),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
        ("grpc.max_connection_idle_ms", _IDLE_MS),
        ("grpc.so_reuseport", 0),
    ]


def bind(server: grpc.Server | grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None) -> int:
    """Have a server listen at an address and return the port; without credentials it speaks with this machine only."""
    local = grpc.local_server_credentials(grpc.LocalConnectionType.LOCAL_TCP)
    try:
        return server.add_secure_port(address, credentials or local)
    except RuntimeError:
        raise ValueError(f"cannot listen at {address}: {_why_not(address)}") from None


def _why_not(address: str) -> str:
    """Return why nobody can listen at an address: gRPC does not say it, a plain socket does."""
    host, port = split_address(address)
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, target in found:
            socket.create_server(target[:2], family=family).close()
    except (OSError, UnicodeError) as error:
        return str(getattr(error, "strerror", None) or error).partition(" (while attempting")[0].lower()
    return "gRPC cannot use it"


def stream_options(limits: Limits, dtype: WireType) -> Options:
    """Return the gRPC options of either end of a stream; no message is larger than a piece, or the largest frame.

    Larger HTTP/2 windows, frames and buffers made no difference that could be measured, near or far.
    """
    return [
        *message_options(min(largest_frame(limits, dtype), PIECE_BYTES)),
        ("grpc.http2.max_frame_size", (1 << 24) - 1),  # the most that HTTP/2 allows: messages are megabytes
        ("grpc.optimization_target", "throughput"),
    ]


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of "host:port"; an IPv6 host keeps its brackets."""
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.%\w]+\]|[^:\s/]+):(\d{1,5})", address)
    if match is None or int(match[2]) > 65535:
        raise ValueError(f"{address!r} is not an address HOST:PORT")
    return match[1], int(match[2])


def require_loopback(address: str) -> None:
    """Raise unless the address is on this machine: without TLS nothing may leave it."""
    host, _ = split_address(address)
    if host not in _LOOPBACK:
        raise ValueError(f"{address}: without certificates only a loopback address will do ({', '.join(_LOOPBACK)})")


class Endpoint(ABC):
    """One party's end of the network; a context manager. Without credentials only a loopback address is accepted."""

    def __init__(self, address: str, agreement: Agreement, terms: Terms, *, certified: bool) -> None:
        split_address(address)
        if not certified:
            require_loopback(address)
        self._agreement, self._terms = agreement, terms
        self._changed = threading.Condition()
        self._stopped = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        # Last words are worth a wait when all went well: without them the others would wait for our return.
        self._close(None, SHORT_GRACE if kind else max(SHORT_GRACE, self._terms.patience.silence))

    def stop(self, reason: str | None) -> None:
        """Tell every peer why the job stops, if a reason is given, and close when that has arrived, or soon."""
        self._close(reason, SHORT_GRACE)

    def _close(self, reason: str | None, grace: float) -> None:
        with self._changed:
            stopped, self._stopped = self._stopped, True
        if not stopped:
            self._end(reason, grace)

    @abstractmethod
    def _end(self, reason: str | None, grace: float) -> None:
        """Send the reason, wait up to `grace` seconds for what is under way, and close; called once."""
