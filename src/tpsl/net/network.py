"""What both ends of a gRPC connection have in common: name, options, addresses, errors as status codes.

Also why the label party cannot be reached, found with a plain TLS connection: its errors have types and codes.
"""

from __future__ import annotations

import re
import socket
import ssl

import grpc

from tpsl.net.certificates import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE, LABEL_SERVER_NAME, Certificates
from tpsl.net.codec import as_sentence, largest_frame
from tpsl.net.connection import Terms
from tpsl.net.failures import BadMessage, Busy, JobStopped, NetError, NotYet, PeerRestarted, Refused

SERVICE = "tpsl.net.LabelParty"
CODE = "tpsl-code"
"""The metadata that hold the code of an error."""

SHORT_GRACE = 2.0
"""How many seconds the other side may take to hear why a job ends."""

SLOWEST = 1 << 17
"""Bytes a second that a network carries at least: what a message may take grows with its size."""
_DETAILS_BYTES = 2_000
_HANDSHAKE_MS = 3_000
# A connection that carries no call for so long is closed; an old one when its calls are answered.
_IDLE_MS, _AGE_MS = 5_000, 600_000
_LOOPBACK = ("127.0.0.1", "[::1]", "localhost")
_CONNECT_SECONDS = 3.0
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
"""What an HTTP/2 client says first."""
_NO_TLS = {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL", "HTTP_REQUEST"}

Options = list[tuple[str, int | str]]

_STATUS: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (PeerRestarted, grpc.StatusCode.ABORTED),
    (NotYet, grpc.StatusCode.UNAVAILABLE),
    (Refused, grpc.StatusCode.PERMISSION_DENIED),
    (JobStopped, grpc.StatusCode.FAILED_PRECONDITION),
    (BadMessage, grpc.StatusCode.INVALID_ARGUMENT),
    (Busy, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (NetError, grpc.StatusCode.FAILED_PRECONDITION),
)
"""As what an error of the label party reaches a feature party; the first that fits."""


def status_of(error: Exception) -> grpc.StatusCode:
    """Return the status code of an error."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), grpc.StatusCode.INTERNAL)


def as_details(sentence: str) -> str:
    """Return a sentence as the details of a status: so short that HTTP/2 headers hold it in any script."""
    return as_sentence(sentence).encode()[:_DETAILS_BYTES].decode(errors="ignore")


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
        ("grpc.http2.max_frame_size", (1 << 24) - 1),  # the most that HTTP/2 allows: messages are megabytes
    ]


def server_options(calls_of_a_connection: int, longest_call: float = 60.0) -> Options:
    """Return the gRPC options of a server apart from those of its messages.

    A connection that has not finished TLS within three seconds is closed, so clients without a certificate hold a
    bounded number of file descriptors; one that is ten minutes old is closed, too, `longest_call` seconds later at the
    latest. A port belongs to one process.
    """
    return [
        ("grpc.max_concurrent_streams", calls_of_a_connection),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
        ("grpc.max_connection_idle_ms", _IDLE_MS),
        ("grpc.max_connection_age_ms", _AGE_MS),
        ("grpc.max_connection_age_grace_ms", round(1000 * longest_call)),
        ("grpc.so_reuseport", 0),
    ]


def frame_options(terms: Terms) -> Options:
    """Return the gRPC options of either end for the messages of a job."""
    return message_options(largest_frame(terms.limits, terms.dtype))


def bind(server: grpc.Server | grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None) -> int:
    """Have a server listen at an address and return the port; without credentials it speaks with this machine only."""
    local = grpc.local_server_credentials(grpc.LocalConnectionType.LOCAL_TCP)
    try:
        return server.add_secure_port(address, credentials or local)
    except RuntimeError:
        reason = "another program has the port, or the address is none of this machine"
        raise ValueError(f"cannot listen at {address}: {reason}") from None


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


class ClosedAfterTls(Exception):
    """The other side has closed the connection when TLS was done."""


def why_unreachable(address: str, certificates: Certificates | None) -> str:
    """Try to reach an address; return why it cannot be reached now, or raise Refused where waiting will not help.

    Raises ClosedAfterTls where the other side does not say why it has closed the connection.
    """
    host, port = split_address(address)
    try:
        with socket.create_connection((host.strip("[]"), port), timeout=_CONNECT_SECONDS) as plain:
            if certificates is not None:
                _try_tls(plain, certificates)
    except ssl.SSLCertVerificationError as error:
        sentence = f"the certificate of what listens at {address} cannot be trusted: {error.verify_message}"
        raise Refused(sentence) from None
    except ssl.SSLError as error:
        if error.reason in _NO_TLS:
            raise Refused(f"what listens at {address} does not speak TLS") from None
        if error.reason is not None and "ALERT" in error.reason:
            raise Refused(f"the label party at {address} does not accept this party's certificate") from None
    except socket.gaierror:
        return f"the host name in {address} is not known"
    except ConnectionRefusedError:
        return f"nobody listens at {address} yet: connection refused"
    except TimeoutError:
        return f"nothing answers at {address}: is there a firewall between?"
    except (ConnectionResetError, BrokenPipeError):
        pass
    except OSError as error:
        return f"no network leads to {address}: {error.strerror}"
    return f"the connection to {address} was closed"


def _try_tls(plain: socket.socket, certificates: Certificates) -> None:
    folder = certificates.folder
    context = ssl.create_default_context(cafile=str(folder / AUTHORITY_FILE))
    context.load_cert_chain(folder / CERTIFICATE_FILE, folder / KEY_FILE)
    context.set_alpn_protocols(["h2"])
    with context.wrap_socket(plain, server_hostname=LABEL_SERVER_NAME) as secure:
        secure.sendall(_HTTP2)
        try:
            answer = secure.recv(1)
        except ssl.SSLEOFError:
            answer = b""
        if not answer:
            raise ClosedAfterTls
