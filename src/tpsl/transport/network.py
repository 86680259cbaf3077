"""What both ends of the gRPC stream have in common: its name, its options, and when it may do without TLS."""

from __future__ import annotations

import re

from tpsl.transport.frames import Limits, largest_frame
from tpsl.transport.messages import WireDtype

SERVICE, METHOD = "tpsl.wire.Split", "Connect"

_KEEP_ALIVE_MS = 10_000
_KEEP_ALIVE_TIMEOUT_MS = 5_000
_LOOPBACK = ("127.0.0.1", "[::1]", "localhost")

Options = list[tuple[str, int | str]]


def stream_options(limits: Limits, dtype: WireDtype) -> Options:
    """Return the gRPC options of either end; no message is larger than the job's largest.

    Larger HTTP/2 windows, frames and buffers made no difference that could be measured, near or far.
    """
    size = largest_frame(limits, dtype)
    return [
        ("grpc.max_receive_message_length", size),
        ("grpc.max_send_message_length", size),
        ("grpc.keepalive_time_ms", _KEEP_ALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEP_ALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.default_compression_algorithm", 0),
        ("grpc.compression_enabled_algorithms_bitset", 1),  # none: nothing grows while it is unpacked
        ("grpc.enable_retries", 0),
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
