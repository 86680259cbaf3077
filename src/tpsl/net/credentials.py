"""A party's certificate folder, checked before anybody connects, and what gRPC makes of it: mutual TLS.

A folder holds `ca.pem` (whom to trust), `cert.pem` (who this party is) and `key.pem` (the proof, readable by its owner
only). The common name of a certificate is the name of its party; the peer's certificate decides who the peer is.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tpsl.files import is_kept_secret

LABEL_SERVER_NAME = "label.tpsl"
"""The name that the label party's certificate is made for, wherever the label party listens."""

AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE = "ca.pem", "cert.pem", "key.pem"


class CertificateError(ValueError):
    """A certificate or key that cannot be used; the sentence names the file and the reason."""


@dataclass(frozen=True)
class Certificates:
    """One party's certificate and key with the authority it trusts; they belong together and are valid today."""

    folder: Path
    party: str
    expires: datetime
    _authority: bytes = field(repr=False)
    _chain: bytes = field(repr=False)
    _key: bytes = field(repr=False)

    @classmethod
    def load(cls, folder: Path) -> Certificates:
        """Read a certificate folder; whatever would make a peer or a thief happy later is an error now."""
        authority_path, chain_path, key_path = (folder / n for n in (AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE))
        key = _read(key_path, secret=True)
        authority, trusted = read_certificates(authority_path)
        chain, own = read_certificates(chain_path)
        party = common_name(own[0])
        if party is None:
            raise CertificateError(f"{chain_path}: does not name exactly one party (common name)")
        _require_own_key(key_path, key, own[0])
        for path, certificate in [*((chain_path, c) for c in own), *((authority_path, c) for c in trusted)]:
            _require_valid_now(path, certificate)
        _require_signed(chain_path, own, trusted, authority_path)
        expires = min(certificate.not_valid_after_utc for certificate in (*own, *trusted))
        return cls(folder, party, expires, authority, chain, key)

    def server(self) -> grpc.ServerCredentials:
        """Return what the label party listens with: a client without a certificate of the authority is refused."""
        self._require_purpose(ExtendedKeyUsageOID.SERVER_AUTH, "listen as the label party")
        return grpc.ssl_server_credentials([(self._key, self._chain)], self._authority, require_client_auth=True)

    def channel(self) -> grpc.ChannelCredentials:
        """Return what a feature party connects with: only a server with a certificate of the authority is trusted.

        The caller sets the channel option `grpc.ssl_target_name_override` to LABEL_SERVER_NAME.
        """
        self._require_purpose(ExtendedKeyUsageOID.CLIENT_AUTH, "connect as a feature party")
        return grpc.ssl_channel_credentials(self._authority, self._key, self._chain)

    def _require_purpose(self, purpose: x509.ObjectIdentifier, what: str) -> None:
        """The peer would refuse the certificate too, but with a sentence about TLS."""
        try:
            usage = x509.load_pem_x509_certificate(self._chain).extensions.get_extension_for_class(
                x509.ExtendedKeyUsage
            )
        except x509.ExtensionNotFound:
            return
        if purpose not in usage.value:
            path = self.folder / CERTIFICATE_FILE
            raise CertificateError(f"{path}: is the certificate of {self.party!r} and not made to {what}")


def common_name(certificate: x509.Certificate) -> str | None:
    """Return the party that a certificate names; None if it names none or several."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return names[0].value if len(names) == 1 and isinstance(names[0].value, str) else None


def peer_name(context: grpc.ServicerContext | grpc.aio.ServicerContext[Any, Any]) -> str | None:
    """Return the party at the other end, by its certificate that TLS has verified; None without one.

    A certificate that is not valid now raises CertificateError: a client that resumes a TLS session of an earlier day
    does not show its certificate again, and TLS does not look at the day then.
    """
    # The stubs say bytes, gRPC gives a sequence of them.
    properties = cast("dict[str, Iterable[bytes]]", context.auth_context())
    presented = list(properties.get("x509_pem_cert", ()))
    if len(presented) != 1:
        return None
    certificate = _parsed(presented[0])
    name = common_name(certificate) if certificate is not None else None
    if certificate is not None and name is not None:
        _require_valid_now(f"the certificate of {name!r}", certificate)
    return name


@lru_cache(maxsize=16)  # of a service that looks at the same few certificates in every call
def _parsed(content: bytes) -> x509.Certificate | None:
    try:
        return x509.load_pem_x509_certificate(content)
    except ValueError:
        return None


def read_certificates(path: Path) -> tuple[bytes, list[x509.Certificate]]:
    """Return a file of certificates in PEM form as it is, and what is in it."""
    content = _read(path)
    try:
        return content, x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise CertificateError(f"{path}: is not a certificate in PEM form") from error


def _read(path: Path, *, secret: bool = False) -> bytes:
    try:
        with path.open("rb") as file:
            if secret and not is_kept_secret(os.fstat(file.fileno()), os.geteuid()):
                raise CertificateError(f"{path}: others on this machine can read this key; run: chmod 600 {path}")
            return file.read()
    except FileNotFoundError as error:
        hint = "`tpsl certs` makes certificates for a first try"
        raise CertificateError(f"{path}: cannot be read ({error.strerror}); {hint}") from error
    except OSError as error:
        raise CertificateError(f"{path}: cannot be read ({error.strerror})") from error


def _require_own_key(path: Path, content: bytes, certificate: x509.Certificate) -> None:
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except TypeError as error:
        raise CertificateError(f"{path}: is locked with a password; keep the key without one, mode 600") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise CertificateError(f"{path}: is not a private key in PEM form") from error
    if key.public_key() != certificate.public_key():
        raise CertificateError(f"{path}: is not the key of {CERTIFICATE_FILE} beside it")


def _require_valid_now(what: Path | str, certificate: x509.Certificate) -> None:
    now = datetime.now(UTC)
    if certificate.not_valid_after_utc < now:
        raise CertificateError(f"{what}: expired on {certificate.not_valid_after_utc:%Y-%m-%d}; make a new one")
    if certificate.not_valid_before_utc > now:
        start = certificate.not_valid_before_utc
        raise CertificateError(
            f"{what}: is not valid before {start:%Y-%m-%d %H:%M} UTC; is this machine's clock right?"
        )


def _require_signed(
    path: Path, chain: list[x509.Certificate], trusted: list[x509.Certificate], authority_path: Path
) -> None:
    """Each certificate of the chain is signed by the next one, the last by one of the authorities."""
    for position, certificate in enumerate(chain):
        issuers = chain[position + 1 : position + 2] or trusted
        if not any(_signed_by(certificate, issuer) for issuer in issuers):
            raise CertificateError(f"{path}: is not signed by the authority in {authority_path}")


def _signed_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
