"""Certificates of a job: made by a private authority, kept in a folder for each party, checked before use.

A party's folder holds `ca.pem` (whom to trust), `cert.pem` (who this party is) and `key.pem` (the proof, for its owner
only). The common name of a certificate identifies its party. The folder of an authority holds `ca.pem` and
`key.pem`: whoever has it can make a certificate in any party's name. A folder is whole or absent, and no file is ever
overwritten.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tpsl.files import is_kept_secret, sync_folder, write_durably
from tpsl.net.messages import LABEL_PARTY

LABEL_SERVER_NAME = "label.tpsl"
"""The name that the label party's certificate is made for, wherever the label party listens."""
AUTHORITY = "authority"
"""The name of the authority's folder, beside those of the parties."""
AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE = "ca.pem", "cert.pem", "key.pem"

_CLOCK_SKEW = timedelta(minutes=5)
_LONGEST_NAME = 64  # bytes of a common name, in X.509


class CertificateError(ValueError):
    """A certificate or key that cannot be used; the sentence names the file and the reason."""


class PartyFolder(NamedTuple):
    """A party's certificate folder; `new` if it was made just now."""

    party: str
    folder: Path
    expires: datetime
    new: bool


def party_folders(place: Path, parties: Sequence[str], days: int) -> list[PartyFolder]:
    """Make sure that a place has an authority and a folder for each party; what is there already stays as it is."""
    authority = place / AUTHORITY
    for party in parties:
        _require_party_name(party)
    if not authority.exists():
        # Not hidden ones: those are what a program that was killed has left.
        orphan = min(place.glob(f"[!.]*/{AUTHORITY_FILE}"), default=None)
        if orphan:
            raise CertificateError(
                f"{authority}: is gone, and a new authority would not fit {orphan.parent}; "
                "bring it back, or make all certificates again with another --out"
            )
        create_authority(authority)
    made = []
    for party in parties:
        folder = place / party
        new = not folder.exists()
        if new:
            issue(authority, folder, party, days=days)
        found = Certificates.load(folder)
        if found.party != party:
            raise CertificateError(f"{folder}: holds the certificate of {found.party!r}, not of {party!r}")
        if found.authority_pem != (authority / AUTHORITY_FILE).read_bytes():
            raise CertificateError(f"{folder / AUTHORITY_FILE}: is another authority than {authority / AUTHORITY_FILE}")
        made.append(PartyFolder(party, folder, found.expires, new))
    return made


def create_authority(folder: Path, *, days: int = 3650) -> None:
    """Make a root that can sign certificates of parties (not of other authorities), valid for this number of days."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    # Two authorities never have the same name, so a mix-up of their files shows in every certificate viewer.
    name = _named(f"tpsl authority {secrets.token_hex(4)}")
    _write_folder(folder, key, _signed(name, key, name, key, (now, now + timedelta(days=days))))


def issue(authority: Path, folder: Path, party: str, *, days: int = 365, now: datetime | None = None) -> None:
    """Make a party's certificate folder; the certificate ends with the authority's at the latest.

    The label party's certificate can only be used to listen, a feature party's only to connect.
    """
    _require_party_name(party)
    root_path, start = authority / AUTHORITY_FILE, now or datetime.now(UTC)
    root = read_certificates(root_path)[1][0]
    root_key = _read_key(authority, root)[1]
    if not isinstance(root_key, ec.EllipticCurvePrivateKey):
        raise CertificateError(f"{authority / KEY_FILE}: is not the key of an authority that tpsl has made")
    if root.not_valid_after_utc <= start:
        raise CertificateError(f"{root_path}: expired on {root.not_valid_after_utc:%Y-%m-%d}; make a new authority")
    key, end = ec.generate_private_key(ec.SECP256R1()), min(start + timedelta(days=days), root.not_valid_after_utc)
    uses: list[x509.ExtensionType] = [x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])]
    if party == LABEL_PARTY:
        names = x509.SubjectAlternativeName([x509.DNSName(LABEL_SERVER_NAME)])
        uses = [x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), names]
    _write_folder(folder, key, root, _signed(_named(party), key, root.subject, root_key, (start, end), *uses))


def _require_party_name(party: str) -> None:
    if not re.fullmatch(r"\w[\w-]*", party) or len(party.encode()) > _LONGEST_NAME or party == AUTHORITY:
        raise CertificateError(
            f"a party cannot be named {party!r}: names are letters, digits, '_' and '-' in at most {_LONGEST_NAME} "
            f"bytes, and {AUTHORITY!r} is the authority"
        )


def _signed(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    valid: tuple[datetime, datetime],
    *uses: x509.ExtensionType,
) -> x509.Certificate:
    """Return a certificate: that of an authority, which can sign others, if it is its own issuer."""
    signs, public = subject == issuer, key.public_key()
    other_uses = "content_commitment key_encipherment data_encipherment key_agreement encipher_only decipher_only"
    usage = x509.KeyUsage(
        digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, **dict.fromkeys(other_uses.split(), False)
    )
    start, end = valid
    builder = (
        x509.CertificateBuilder(issuer, subject, public, x509.random_serial_number(), start - _CLOCK_SKEW, end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.BasicConstraints(ca=signs, path_length=0 if signs else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    for use in uses:
        builder = builder.add_extension(use, critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def _named(party: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, party)])


def _write_folder(
    folder: Path, key: ec.EllipticCurvePrivateKey, authority: x509.Certificate, own: x509.Certificate | None = None
) -> None:
    """Make a folder (mode 700) of files (mode 600 from the first byte), in place of nothing or an empty folder."""
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    files = {KEY_FILE: secret, AUTHORITY_FILE: authority.public_bytes(pem)}
    if own is not None:
        files[CERTIFICATE_FILE] = own.public_bytes(pem)
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))  # mkdtemp makes it mode 700
    try:
        for name, content in files.items():
            write_durably(beside / name, content)
        sync_folder(beside)
        beside.rename(folder)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise
        raise CertificateError(f"{folder}: exists already; certificates are never written over anything") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    sync_folder(folder.parent)


@dataclass(frozen=True)
class Certificates:
    """One party's certificate and key with the authority it trusts; they belong together and are valid today."""

    folder: Path
    party: str
    expires: datetime
    own: x509.Certificate = field(repr=False)
    key: PrivateKeyTypes = field(repr=False)
    authority_pem: bytes = field(repr=False)
    chain_pem: bytes = field(repr=False)
    _key_pem: bytes = field(repr=False)

    @classmethod
    def load(cls, folder: Path) -> Certificates:
        """Read a certificate folder; whatever would make a peer or a thief happy later is an error now."""
        authority_path, chain_path = folder / AUTHORITY_FILE, folder / CERTIFICATE_FILE
        authority_pem, trusted = read_certificates(authority_path)
        chain_pem, chain = read_certificates(chain_path)
        key_pem, key = _read_key(folder, chain[0])
        party = common_name(chain[0])
        if party is None:
            raise CertificateError(f"{chain_path}: does not name exactly one party (common name)")
        for path, certificates in ((chain_path, chain), (authority_path, trusted)):
            for certificate in certificates:
                _require_valid_now(path, certificate)
        # Each certificate of the chain is signed by the next one, the last by one of the authorities.
        for certificate, issuers in zip(chain, [*([each] for each in chain[1:]), trusted], strict=True):
            if not any(_is_signed_by(certificate, issuer) for issuer in issuers):
                raise CertificateError(f"{chain_path}: is not signed by the authority in {authority_path}")
        expires = min(each.not_valid_after_utc for each in (*chain, *trusted))
        return cls(folder, party, expires, chain[0], key, authority_pem, chain_pem, key_pem)

    def server(self) -> grpc.ServerCredentials:
        """Return what the label party listens with: a client without a certificate of the authority is refused."""
        pair = self._key_pem, self.chain_pem
        return grpc.ssl_server_credentials([pair], self.authority_pem, require_client_auth=True)

    def channel(self) -> grpc.ChannelCredentials:
        """Return what a feature party connects with: only a server with a certificate of the authority is trusted.

        The caller sets the channel option `grpc.ssl_target_name_override` to LABEL_SERVER_NAME.
        """
        return grpc.ssl_channel_credentials(self.authority_pem, self._key_pem, self.chain_pem)


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
    presented = list(cast("dict[str, Iterable[bytes]]", context.auth_context()).get("x509_pem_cert", ()))
    if len(presented) != 1:
        return None
    try:
        certificate, name, start, end = _parsed(presented[0])
    except ValueError:
        return None
    if name is not None and not start <= datetime.now(UTC) <= end:
        _require_valid_now(f"the certificate of {name!r}", certificate)
    return name


@lru_cache(maxsize=64)  # a service sees the same few certificates in every call
def _parsed(pem: bytes) -> tuple[x509.Certificate, str | None, datetime, datetime]:
    """Return a certificate, whom it names, and from when to when it is valid."""
    certificate = x509.load_pem_x509_certificate(pem)
    return certificate, common_name(certificate), certificate.not_valid_before_utc, certificate.not_valid_after_utc


def read_certificates(path: Path) -> tuple[bytes, list[x509.Certificate]]:
    """Return a file of certificates in PEM form as it is, and what is in it."""
    content = _read(path)
    try:
        return content, x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise CertificateError(f"{path}: is not a certificate in PEM form") from error


def _read_key(folder: Path, certificate: x509.Certificate) -> tuple[bytes, PrivateKeyTypes]:
    """Return the key of a folder, as it is in the file and read, if it is that of this certificate."""
    path = folder / KEY_FILE
    content = _read(path, secret=True)
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except TypeError as error:
        raise CertificateError(f"{path}: is locked with a password; keep the key without one, mode 600") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise CertificateError(f"{path}: is not a private key in PEM form") from error
    if key.public_key() != certificate.public_key():
        raise CertificateError(f"{path}: is not the key of the certificate beside it")
    return content, key


def _read(path: Path, *, secret: bool = False) -> bytes:
    try:
        with path.open("rb") as file:
            if secret and not is_kept_secret(os.fstat(file.fileno()), os.geteuid()):
                raise CertificateError(f"{path}: others on this machine can read this key; run: chmod 600 {path}")
            return file.read()
    except OSError as error:
        hint = "; `tpsl certs` makes certificates for a first try" if isinstance(error, FileNotFoundError) else ""
        raise CertificateError(f"{path}: cannot be read ({error.strerror}){hint}") from error


def _require_valid_now(what: Path | str, certificate: x509.Certificate) -> None:
    now, start, end = datetime.now(UTC), certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if end < now:
        raise CertificateError(f"{what}: expired on {end:%Y-%m-%d}; make a new one")
    if start > now:
        raise CertificateError(
            f"{what}: is not valid before {start:%Y-%m-%d %H:%M} UTC; is this machine's clock right?"
        )


def _is_signed_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
