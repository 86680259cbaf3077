"""Why the label party cannot be reached, found with a plain TLS connection: its errors have types and codes."""

from __future__ import annotations

import socket
import ssl

from tpsl.net.credentials import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE, LABEL_SERVER_NAME, Certificates
from tpsl.net.failures import Refused
from tpsl.net.network import split_address

_PATIENCE = 3.0
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
"""What an HTTP/2 client says first."""
_NO_TLS = {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL", "HTTP_REQUEST"}
_HOSTNAME_MISMATCH = 62
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH."""


class ClosedAfterTls(Exception):
    """The other side has closed the connection when TLS was done."""


def why_unreachable(address: str, certificates: Certificates | None) -> str:
    """Try to reach an address; return why it cannot be reached now, or raise Refused where waiting will not help.

    Raises ClosedAfterTls where the other side does not say why it has closed the connection.
    """
    host, port = split_address(address)
    try:
        with socket.create_connection((host.strip("[]"), port), timeout=_PATIENCE) as plain:
            if certificates is not None:
                _try_tls(plain, certificates)
        return f"the connection to {address} was closed"
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == _HOSTNAME_MISMATCH:
            raise Refused(f"what listens at {address} does not have the certificate of a label party") from None
        raise Refused(
            f"the certificate of what listens at {address} cannot be trusted: {error.verify_message}"
        ) from None
    except ssl.SSLError as error:
        if error.reason in _NO_TLS:
            raise Refused(f"what listens at {address} does not speak TLS") from None
        if error.reason is not None and "ALERT" in error.reason:
            raise Refused(f"the label party at {address} does not accept this party's certificate") from None
        return f"the connection to {address} was closed"
    except socket.gaierror:
        return f"the host name in {address} is not known"
    except ConnectionRefusedError:
        return f"nobody listens at {address} yet: connection refused"
    except TimeoutError:
        return f"nothing answers at {address}: is there a firewall between?"
    except (ConnectionResetError, BrokenPipeError):
        return f"the connection to {address} was closed"
    except OSError as error:
        return f"no network leads to {address}: {error.strerror}"


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
