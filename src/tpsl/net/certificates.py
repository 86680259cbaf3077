"""A private certificate authority for a job: one root, one certificate for each party, nothing else can connect.

Whoever holds the authority's folder can make a certificate in any party's name. A folder is written beside its place
and renamed, so it is whole or absent; a private key is never readable by others, and no file is ever overwritten.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tpsl.files import open_private, sync_folder
from tpsl.net.credentials import (
    AUTHORITY_FILE,
    CERTIFICATE_FILE,
    KEY_FILE,
    LABEL_SERVER_NAME,
    CertificateError,
    Certificates,
)
from tpsl.net.peers import LABEL_PARTY

AUTHORITY = "authority"
"""The name of the authority's folder, beside those of the parties."""

_CLOCK_SKEW = timedelta(minutes=5)
_LONGEST_NAME = 64  # bytes of a common name


def require_party_name(party: str) -> None:
    """Raise if a party of this name cannot have a certificate: a job's names that are not too long can."""
    if not re.fullmatch(r"\w[\w-]*", party):
        raise CertificateError(f"the party {party!r} needs a name of letters, digits, '_' and '-'")
    length = len(party.encode())
    if length > _LONGEST_NAME:
        raise CertificateError(
            f"the name of the party {party!r} takes {length} bytes, a certificate holds {_LONGEST_NAME}"
        )


@dataclass(frozen=True)
class PartyFolder:
    """A party's certificate folder; `new` if it was made just now."""

    party: str
    folder: Path
    expires: datetime
    new: bool


def party_folders(place: Path, parties: Sequence[str], days: int) -> list[PartyFolder]:
    """Make sure that a place has an authority and a folder for each party; what is there already stays as it is."""
    authority = place / AUTHORITY
    for party in parties:
        require_party_name(party)
        if party == AUTHORITY:
            raise CertificateError(f"a party cannot be named {party!r}: {authority} is the folder of the authority")
    if not authority.exists():
        # Not hidden ones: those are what a program that was killed has left.
        orphan = min(place.glob(f"[!.]*/{AUTHORITY_FILE}"), default=None)
        if orphan:
            raise CertificateError(
                f"{authority}: is gone, and a new authority would not fit {orphan.parent}; "
                "bring it back, or make all certificates again with another --out"
            )
        create_authority(authority)
    return [_party_folder(party, authority, place / party, days) for party in parties]


def _party_folder(party: str, authority: Path, folder: Path, days: int) -> PartyFolder:
    new = not folder.exists()
    if new:
        issue(authority, folder, party, label=party == LABEL_PARTY, days=days)
    found = Certificates.load(folder)
    if found.party != party:
        raise CertificateError(f"{folder}: holds the certificate of {found.party!r}, not of {party!r}")
    if (folder / AUTHORITY_FILE).read_bytes() != (authority / AUTHORITY_FILE).read_bytes():
        raise CertificateError(f"{folder / AUTHORITY_FILE}: is another authority than {authority / AUTHORITY_FILE}")
    return PartyFolder(party, folder, found.expires, new)


def create_authority(folder: Path, *, days: int = 3650) -> None:
    """Make a root that can sign certificates of parties (not of other authorities), valid for this number of days."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    # Two authorities never have the same name, so a mix-up of their files shows in every certificate viewer.
    name = _named(f"tpsl authority {secrets.token_hex(4)}")
    builder = _builder(name, name, key, key, (now - _CLOCK_SKEW, now + timedelta(days=days)))
    certificate = builder.sign(key, hashes.SHA256())
    _write_folder(folder, {AUTHORITY_FILE: _pem(certificate), KEY_FILE: _key_pem(key)})


def issue(
    authority: Path, folder: Path, party: str, *, label: bool, days: int = 365, now: datetime | None = None
) -> None:
    """Make a party's certificate folder; the certificate ends with the authority's at the latest.

    The label party's certificate can only be used to listen, a feature party's only to connect.
    """
    require_party_name(party)
    if label and party != LABEL_PARTY:
        raise CertificateError(f"the label party is named {LABEL_PARTY!r}, not {party!r}")
    if not label and party == LABEL_PARTY:
        raise CertificateError(f"a feature party cannot be named {LABEL_PARTY!r}")
    root_path = authority / AUTHORITY_FILE
    root, root_key = _load_authority(authority)
    start = now or datetime.now(UTC)
    if root.not_valid_after_utc <= start:
        raise CertificateError(f"{root_path}: expired on {root.not_valid_after_utc:%Y-%m-%d}; make a new authority")
    end = min(start + timedelta(days=days), root.not_valid_after_utc)
    key = ec.generate_private_key(ec.SECP256R1())
    purpose = ExtendedKeyUsageOID.SERVER_AUTH if label else ExtendedKeyUsageOID.CLIENT_AUTH
    builder = _builder(_named(party), root.subject, key, root_key, (start - _CLOCK_SKEW, end))
    builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    if label:
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(LABEL_SERVER_NAME)]), critical=False)
    certificate = builder.sign(root_key, hashes.SHA256())
    _write_folder(folder, {AUTHORITY_FILE: _pem(root), CERTIFICATE_FILE: _pem(certificate), KEY_FILE: _key_pem(key)})


def _load_authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate_path, key_path = folder / AUTHORITY_FILE, folder / KEY_FILE
    try:
        certificate = x509.load_pem_x509_certificate(certificate_path.read_bytes())
        key = serialization.load_pem_private_key(key_path.read_bytes(), password=None)
    except OSError as error:
        raise CertificateError(f"{error.filename}: cannot be read ({error.strerror})") from error
    except (ValueError, TypeError) as error:
        raise CertificateError(f"{folder}: does not hold the certificate and key of an authority") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise CertificateError(f"{key_path}: is not the key of {certificate_path}")
    return certificate, key


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer_key: ec.EllipticCurvePrivateKey,
    valid: tuple[datetime, datetime],
) -> x509.CertificateBuilder:
    """Begin a certificate: that of an authority, which can sign others, if it is its own issuer."""
    authority = subject == issuer
    usage = x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number(), *valid)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )


def _named(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make a folder (mode 700) with these files (mode 600 from the first byte); one that holds anything is refused."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise CertificateError(f"{folder}: exists already; certificates are never written over anything")
    if folder.is_dir() and (found := sorted(folder.iterdir())):
        raise CertificateError(f"{found[0]}: exists already; certificates are never written over anything")
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))  # mkdtemp makes it mode 700
    try:
        for name, content in files.items():
            with open_private(beside / name, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        sync_folder(beside)
        beside.rename(folder)  # fails if another process has filled the folder
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    sync_folder(folder.parent)
