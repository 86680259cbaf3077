"""Documents signed with the key of a party's certificate, and their check.

A signed document is `{"content": …, "signature": …, "certificates": …}`: the signature, in base64, is over the content
as canonical JSON after a prefix that nothing else begins with that this key signs; the certificates are the signer's,
in PEM form. The content names its signer and its time, so that both are signed too.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from tpsl.net.credentials import (
    CERTIFICATE_FILE,
    KEY_FILE,
    LABEL_SERVER_NAME,
    CertificateError,
    Certificates,
    common_name,
    read_certificates,
)
from tpsl.net.peers import LABEL_PARTY

_PREFIX = b"tpsl signed document\n"
_KEYS = {"content", "signature", "certificates"}
_SKEW = timedelta(minutes=5)
_PADDING = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)


class SignatureInvalid(ValueError):
    """A signed document that does not hold; the sentence says what is wrong with it."""


@dataclass(frozen=True)
class Checked:
    """A document whose signature holds."""

    content: dict[str, Any]
    signer: dict[str, str]
    time: datetime
    by_authority: bool
    """Whether the certificate was traced to an authority; if not, anybody may have made it."""
    expired_since: bool


def sign(content: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Sign a content as the label party whose certificate folder this is; `signer` and `time` are added to it."""
    certificates = Certificates.load(folder)
    if certificates.party != LABEL_PARTY:
        raise CertificateError(f"{folder}: holds the certificate of {certificates.party!r}, not of {LABEL_PARTY!r}")
    chain = (folder / CERTIFICATE_FILE).read_bytes()
    key = serialization.load_pem_private_key((folder / KEY_FILE).read_bytes(), password=None)
    time = datetime.now(UTC).isoformat(timespec="seconds")
    signed = {**content, "time": time, "signer": _described(x509.load_pem_x509_certificate(chain))}
    message = _message(signed)
    if isinstance(key, ec.EllipticCurvePrivateKey):
        signature = key.sign(message, ec.ECDSA(hashes.SHA256()))
    elif isinstance(key, rsa.RSAPrivateKey):
        signature = key.sign(message, _PADDING, hashes.SHA256())
    else:
        raise CertificateError(f"{folder / KEY_FILE}: is a key that cannot sign documents; use ECDSA or RSA")
    return {"content": signed, "signature": base64.b64encode(signature).decode(), "certificates": chain.decode()}


def read_document(path: Path, what: str, most: int) -> Any:
    """Return what a file says that somebody else has written: of at most `most` bytes, not too deep, and JSON.

    Anything else is a `SignatureInvalid` that says that it is no `what`.
    """
    with path.open("rb") as file:
        text = file.read(most + 1)
    if len(text) > most:
        raise SignatureInvalid(f"is no {what}: it has more than {most:,} bytes")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SignatureInvalid(f"is no {what}: it is not JSON") from error


def check(document: Any, authority: Path | None = None) -> Checked:
    """Return the content of a document that the label party has signed; raise `SignatureInvalid` for any other.

    Checked are the signature, that the certificate is the label party's and was valid at the time of the document and,
    where an `authority` is given, that it has signed the certificate. The time is what the signer wrote.
    """
    content, signature, chain = _parts(document)
    leaf = chain[0]
    _check_signature(leaf, signature, _message(content))
    if content.get("signer") != _described(leaf):
        raise SignatureInvalid("the document names another signer than the certificate in it")
    if common_name(leaf) != LABEL_PARTY:
        raise SignatureInvalid(f"it was signed by {common_name(leaf)!r}, and only the label party can state this")
    time = _time(content.get("time"))
    _check_validity(leaf, time)
    if authority is not None:
        _check_chain(chain, authority, time)
    return Checked(content, _described(leaf), time, authority is not None, leaf.not_valid_after_utc < datetime.now(UTC))


def _message(content: dict[str, Any]) -> bytes:
    try:
        return _PREFIX + json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise SignatureInvalid("its content is no JSON that can be signed") from error


def _described(certificate: x509.Certificate) -> dict[str, str]:
    return {
        "party": common_name(certificate) or "",
        "subject": certificate.subject.rfc4514_string(),
        "certificate": certificate.fingerprint(hashes.SHA256()).hex(),
    }


def _parts(document: Any) -> tuple[dict[str, Any], bytes, list[x509.Certificate]]:
    if not isinstance(document, dict) or document.keys() != _KEYS or not isinstance(document["content"], dict):
        raise SignatureInvalid("this is no signed document")
    try:
        signature = base64.b64decode(document["signature"], validate=True)
        chain = x509.load_pem_x509_certificates(document["certificates"].encode())
    except (ValueError, TypeError, AttributeError) as error:
        raise SignatureInvalid("the signature or the certificate in it cannot be read") from error
    return document["content"], signature, chain


def _check_signature(certificate: x509.Certificate, signature: bytes, message: bytes) -> None:
    try:
        key = certificate.public_key()
        if isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
        elif isinstance(key, rsa.RSAPublicKey):
            key.verify(signature, message, _PADDING, hashes.SHA256())
        else:
            raise SignatureInvalid("the certificate in it has a key of a kind that cannot sign this")
    except (InvalidSignature, UnsupportedAlgorithm) as error:
        raise SignatureInvalid(
            "the signature does not fit: the content was changed, or signed with another key than the certificate's"
        ) from error


def _time(text: Any) -> datetime:
    try:
        time = datetime.fromisoformat(text)
        later = time - datetime.now(UTC) > _SKEW
    except (TypeError, ValueError) as error:
        raise SignatureInvalid(f"its time, {text!r}, cannot be read") from error
    if later:
        raise SignatureInvalid(f"it is dated {text}, which is in the future")
    return time


def _check_validity(certificate: x509.Certificate, time: datetime) -> None:
    if not certificate.not_valid_before_utc <= time <= certificate.not_valid_after_utc:
        raise SignatureInvalid(
            f"its certificate is valid from {certificate.not_valid_before_utc:%Y-%m-%d} to "
            f"{certificate.not_valid_after_utc:%Y-%m-%d}, and it is dated {time:%Y-%m-%d %H:%M}"
        )


def _check_chain(chain: list[x509.Certificate], authority: Path, time: datetime) -> None:
    """The rules by which a feature party trusts the label party's server: purpose, name, and issuers that may issue."""
    _, trusted = read_certificates(authority)
    verifier = PolicyBuilder().store(Store(trusted)).time(time.astimezone(UTC).replace(tzinfo=None))
    try:
        verifier.build_server_verifier(x509.DNSName(LABEL_SERVER_NAME)).verify(chain[0], chain[1:])
    except VerificationError as error:
        raise SignatureInvalid(
            f"its certificate is not one that the authority in {authority} has made for the label party"
        ) from error
