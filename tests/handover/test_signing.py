"""Documents signed with a certificate's key: nothing that was changed, borrowed or expired passes."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tpsl.handover import signing
from tpsl.handover.signing import SignatureInvalid, check, sign
from tpsl.net.certificates import CertificateError, create_authority, issue


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    for name in ("authority", "other-authority"):
        create_authority(folder / name)
    issue(folder / "authority", folder / "label", "label")
    issue(folder / "authority", folder / "feature", "feature")
    issue(folder / "other-authority", folder / "impostor", "label")
    return folder


@pytest.fixture
def document(certs: Path) -> dict[str, Any]:
    return sign({"epsilon": 1.0, "nested": {"b": [1, 2], "a": "é"}}, certs / "label")


def test_what_was_signed_is_returned_with_who_and_when(certs: Path, document: dict[str, Any]) -> None:
    for authority in (None, certs / "feature" / "ca.pem"):
        checked = check(document, authority)
        assert checked.content["nested"] == {"b": [1, 2], "a": "é"}
        assert checked.content["signer"]["party"] == "label"
        assert checked.by_authority is (authority is not None)
        assert abs(datetime.fromisoformat(checked.content["time"]) - datetime.now(UTC)) < timedelta(minutes=1)
    certificate = x509.load_pem_x509_certificate((certs / "label" / "cert.pem").read_bytes())
    assert checked.content["signer"]["certificate"] == certificate.fingerprint(hashes.SHA256()).hex()


def _set(*path: Any) -> Callable[[dict[str, Any]], None]:
    *keys, last, value = path

    def change(document: dict[str, Any]) -> None:
        part = document
        for key in keys:
            part = part[key]
        part[last] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        _set("content", "epsilon", 0.5),
        _set("content", "nested", "b", [1, 2, 3]),
        _set("content", "new", None),
        _set("content", "time", "2020-01-01T00:00:00+00:00"),
        _set("content", "signer", "party", "somebody"),
        _set("signature", base64.b64encode(b"nothing").decode()),
    ],
)
def test_a_tampered_document_does_not_hold(document: dict[str, Any], change: Callable[[dict[str, Any]], None]) -> None:
    change(document)
    with pytest.raises(SignatureInvalid, match="the signature does not fit"):
        check(document)


def test_another_certificate_under_the_same_signature_does_not_hold(certs: Path, document: dict[str, Any]) -> None:
    document["certificates"] = (certs / "impostor" / "cert.pem").read_text()
    with pytest.raises(SignatureInvalid, match="signed with another key than the certificate's"):
        check(document)


def test_another_authority_does_not_speak_for_the_label_party(certs: Path) -> None:
    document = sign({}, certs / "impostor")
    assert check(document).by_authority is False
    with pytest.raises(SignatureInvalid, match=r"not one that the authority in .*ca\.pem has made for the label party"):
        check(document, certs / "label" / "ca.pem")


def test_a_feature_party_cannot_sign_as_the_label_party(certs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CertificateError, match="holds the certificate of 'feature', not of 'label'"):
        sign({}, certs / "feature")
    monkeypatch.setattr(signing, "LABEL_PARTY", "feature")  # a program of its own does not ask
    document = sign({}, certs / "feature")
    monkeypatch.undo()
    for authority in (None, certs / "label" / "ca.pem"):
        with pytest.raises(
            SignatureInvalid, match="it was signed by 'feature', and only the label party can state this"
        ):
            check(document, authority)


def folder_of(key: Any, certificate: x509.Certificate, *issuers: x509.Certificate, path: Path, authority: Path) -> Path:
    path.mkdir()
    pem = serialization.Encoding.PEM
    own = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (path / "key.pem").touch(0o600)
    (path / "key.pem").write_bytes(own)
    (path / "cert.pem").write_bytes(b"".join(one.public_bytes(pem) for one in (certificate, *issuers)))
    (path / "ca.pem").write_bytes(authority.read_bytes())
    return path


def made(key: Any, issuer: x509.Certificate, issuer_key: Any, purpose: x509.ObjectIdentifier) -> x509.Certificate:
    """A certificate in the label party's name, as `tpsl certs` makes it but for what is given."""
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "label")]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=9))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("label.tpsl")]), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )


def held(folder: Path) -> tuple[x509.Certificate, Any]:
    name = "cert.pem" if (folder / "cert.pem").exists() else "ca.pem"
    key = serialization.load_pem_private_key((folder / "key.pem").read_bytes(), password=None)
    return x509.load_pem_x509_certificate((folder / name).read_bytes()), key


def test_a_feature_party_cannot_issue_a_certificate_in_the_label_partys_name(certs: Path, tmp_path: Path) -> None:
    """The signatures from the false label to the feature party and on to the authority are all right."""
    feature, feature_key = held(certs / "feature")
    key, ca = ec.generate_private_key(ec.SECP256R1()), certs / "label" / "ca.pem"
    false = made(key, feature, feature_key, ExtendedKeyUsageOID.SERVER_AUTH)
    document = sign({}, folder_of(key, false, feature, path=tmp_path / "false", authority=ca))
    with pytest.raises(SignatureInvalid, match="has made for the label party"):
        check(document, ca)


def test_a_certificate_that_was_made_to_connect_cannot_state_anything(certs: Path, tmp_path: Path) -> None:
    root, root_key = held(certs / "authority")
    key, ca = ec.generate_private_key(ec.SECP256R1()), certs / "label" / "ca.pem"
    client = made(key, root, root_key, ExtendedKeyUsageOID.CLIENT_AUTH)
    with pytest.raises(SignatureInvalid, match="has made for the label party"):
        check(sign({}, folder_of(key, client, path=tmp_path / "client", authority=ca)), ca)


def test_a_key_of_rsa_signs_too(certs: Path, tmp_path: Path) -> None:
    root, root_key = held(certs / "authority")
    key, ca = rsa.generate_private_key(65537, 2048), certs / "label" / "ca.pem"
    server = made(key, root, root_key, ExtendedKeyUsageOID.SERVER_AUTH)
    document = sign({"epsilon": 1.0}, folder_of(key, server, path=tmp_path / "rsa", authority=ca))
    assert check(document, ca).by_authority
    document["content"]["epsilon"] = 0.5
    with pytest.raises(SignatureInvalid, match="the signature does not fit"):
        check(document, ca)


class Clock(datetime):
    """A clock that is as many days ahead as `ahead` says."""

    ahead = timedelta()

    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        return datetime.now(tz) + cls.ahead


def test_the_certificate_must_be_valid_when_the_document_was_signed(
    certs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca = certs / "label" / "ca.pem"
    issue(certs / "authority", tmp_path / "label", "label", days=1)
    document = sign({}, tmp_path / "label")
    monkeypatch.setattr(signing, "datetime", Clock)
    monkeypatch.setattr(Clock, "ahead", timedelta(days=30))
    assert check(document, ca).expired_since is True  # it was valid then
    with_expired = sign({}, tmp_path / "label")  # by a clock that says otherwise than when the folder was read
    with pytest.raises(SignatureInvalid, match=r"its certificate is valid from .* to .*, and it is dated"):
        check(with_expired, ca)
    monkeypatch.undo()
    with pytest.raises(SignatureInvalid, match="which is in the future"):
        check(with_expired, ca)


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {"content": {}, "signature": "AA=="},
        {"content": [], "signature": "AA==", "certificates": ""},
        {"content": {}, "signature": "?", "certificates": ""},
        {"content": {}, "signature": 5, "certificates": ""},
        {"content": {}, "signature": "AA==", "certificates": "no certificate"},
        {"content": {}, "signature": "AA==", "certificates": None},
        {"content": {"a": float("nan")}, "signature": "AA==", "certificates": "PEM"},
    ],
)
def test_what_is_no_signed_document_is_a_sentence(document: Any, certs: Path) -> None:
    if isinstance(document, dict) and document.get("certificates") == "PEM":
        document["certificates"] = (certs / "label" / "cert.pem").read_text()
    with pytest.raises(SignatureInvalid, match=r"no signed document|cannot be read|no JSON"):
        check(document)


def test_an_authority_that_cannot_be_read_is_named(certs: Path, document: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match=r"ca\.pem: cannot be read"):
        check(document, tmp_path / "ca.pem")
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(CertificateError, match="is not a certificate in PEM form"):
        check(document, tmp_path / "ca.pem")
