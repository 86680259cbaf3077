"""Documents signed with the key of a party's certificate, and their check: cards of labels, statements about vaults.

A signed document is `{"content": …, "signature": …, "certificates": …}`: the signature, in base64, is over the content
as canonical JSON after a prefix that nothing else begins with that this key signs; the certificates are the signer's,
in PEM form. The content names its signer and its time, so that both are signed too.
"""

from __future__ import annotations

import base64
import errno
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from tpsl.files import read_plain
from tpsl.net.certificates import (
    KEY_FILE,
    LABEL_SERVER_NAME,
    CertificateError,
    Certificates,
    common_name,
    read_certificates,
)
from tpsl.net.messages import LABEL_PARTY

_PREFIX = b"tpsl signed document\n"
_SKEW = timedelta(minutes=5)
_ECDSA = ec.ECDSA(hashes.SHA256())
_PADDING = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)


class SignatureInvalid(ValueError):
    """A signed document that does not hold; the sentence says what is wrong with it."""


@dataclass(frozen=True)
class Checked:
    """A document whose signature holds."""

    content: dict[str, Any]
    by_authority: bool
    """Whether the certificate was traced to an authority; if not, anybody may have made it."""
    expired_since: bool


def sign(content: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Sign a content as the label party whose certificate folder this is; `signer` and `time` are added to it."""
    certificates = Certificates.load(folder)
    if certificates.party != LABEL_PARTY:
        raise CertificateError(f"{folder}: holds the certificate of {certificates.party!r}, not of {LABEL_PARTY!r}")
    time, key = datetime.now(UTC).isoformat(timespec="seconds"), certificates.key
    signed = {**content, "time": time, "signer": _described(certificates.own)}
    if isinstance(key, ec.EllipticCurvePrivateKey):
        signature = key.sign(_message(signed), _ECDSA)
    elif isinstance(key, rsa.RSAPrivateKey):
        signature = key.sign(_message(signed), _PADDING, hashes.SHA256())
    else:
        raise CertificateError(f"{folder / KEY_FILE}: is a key that cannot sign documents; use ECDSA or RSA")
    chain = certificates.chain_pem.decode()
    return {"content": signed, "signature": base64.b64encode(signature).decode(), "certificates": chain}


def read_document(path: Path, what: str, most: int) -> Any:
    """Return the JSON of a file of at most `most` bytes that somebody else has written; `what` it is for sentences."""
    try:
        return json.loads(read_plain(path, most))
    except (ValueError, RecursionError) as error:
        raise SignatureInvalid(f"is no {what}: it is not JSON") from error
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        raise SignatureInvalid(f"is no {what}: {error.strerror}") from error


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
    time, start, end = _time(content.get("time")), leaf.not_valid_before_utc, leaf.not_valid_after_utc
    if not start <= time <= end:
        raise SignatureInvalid(f"its certificate is valid from {start} to {end}, and it is dated {time}")
    if authority is not None:
        _check_chain(chain, authority, time)
    return Checked(content, authority is not None, end < datetime.now(UTC))


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
    keys = ("content", "signature", "certificates")
    if not isinstance(document, dict) or document.keys() != {*keys} or not isinstance(document["content"], dict):
        raise SignatureInvalid("this is no signed document")
    content, signature, chain = (document[key] for key in keys)
    try:
        return content, base64.b64decode(signature, validate=True), x509.load_pem_x509_certificates(chain.encode())
    except (ValueError, TypeError, AttributeError) as error:
        raise SignatureInvalid("the signature or the certificate in it cannot be read") from error


def _check_signature(certificate: x509.Certificate, signature: bytes, message: bytes) -> None:
    try:
        key = certificate.public_key()
        if isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, message, _ECDSA)
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
        time, latest = datetime.fromisoformat(text), datetime.now(UTC) + _SKEW
        is_future = time > latest  # a TypeError where the time has no offset
    except (TypeError, ValueError) as error:
        raise SignatureInvalid(f"its time, {text!r}, cannot be read") from error
    if is_future:
        raise SignatureInvalid(f"it is dated {text}, which is in the future")
    return time


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
