"""Certificates: who may do what, for how long, who can read the keys; real TLS handshakes on loopback."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tpsl.net.certificates import (
    LABEL_SERVER_NAME,
    CertificateError,
    Certificates,
    create_authority,
    issue,
    peer_name,
)

LONG_AGO = datetime.now(UTC) - timedelta(days=30)


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    create_authority(tmp_path / "authority")
    return tmp_path / "authority"


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def purposes(of: x509.Certificate) -> list[x509.ObjectIdentifier]:
    return list(of.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)


def test_the_authority_signs_parties_and_nothing_else(authority: Path, tmp_path: Path) -> None:
    root = certificate(authority / "ca.pem")
    constraints = root.extensions.get_extension_for_class(x509.BasicConstraints)
    usage = root.extensions.get_extension_for_class(x509.KeyUsage)
    assert constraints.critical and constraints.value == x509.BasicConstraints(ca=True, path_length=0)
    assert usage.critical and usage.value.key_cert_sign and not usage.value.digital_signature
    root.verify_directly_issued_by(root)

    issue(authority, tmp_path / "airport", "airport")
    leaf = certificate(tmp_path / "airport" / "cert.pem")
    leaf.verify_directly_issued_by(root)
    constraints = leaf.extensions.get_extension_for_class(x509.BasicConstraints)
    usage = leaf.extensions.get_extension_for_class(x509.KeyUsage)
    assert constraints.critical and not constraints.value.ca
    assert usage.critical and usage.value.digital_signature and not usage.value.key_cert_sign
    assert (tmp_path / "airport" / "ca.pem").read_bytes() == (authority / "ca.pem").read_bytes()


def test_the_label_party_listens_and_a_feature_party_connects(authority: Path, tmp_path: Path) -> None:
    issue(authority, tmp_path / "label", "label")
    issue(authority, tmp_path / "airport", "airport")
    label, airport = (certificate(tmp_path / party / "cert.pem") for party in ("label", "airport"))
    assert purposes(label) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert purposes(airport) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    names = label.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["label.tpsl"]
    with pytest.raises(x509.ExtensionNotFound):
        airport.extensions.get_extension_for_class(x509.SubjectAlternativeName)


def test_certificates_can_be_told_apart_and_traced_to_their_authority(authority: Path, tmp_path: Path) -> None:
    create_authority(tmp_path / "other")
    roots = [certificate(folder / "ca.pem") for folder in (authority, tmp_path / "other")]
    assert roots[0].subject != roots[1].subject
    for party in ("a", "b"):
        issue(authority, tmp_path / party, party)
    leaves = [certificate(tmp_path / party / "cert.pem") for party in ("a", "b")]
    assert len({c.serial_number for c in (*roots, *leaves)}) == 4
    own = roots[0].extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
    for leaf in leaves:
        assert leaf.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier == own


def test_a_clock_that_is_a_little_late_does_no_harm_and_nothing_outlives_the_authority(tmp_path: Path) -> None:
    create_authority(tmp_path / "authority", days=10)
    before = datetime.now(UTC)
    issue(tmp_path / "authority", tmp_path / "short", "short", days=3)
    issue(tmp_path / "authority", tmp_path / "long", "long", days=365)
    root = certificate(tmp_path / "authority" / "ca.pem")
    short, long = (certificate(tmp_path / party / "cert.pem") for party in ("short", "long"))
    for made in (root, short, long):
        assert made.not_valid_before_utc <= before - timedelta(minutes=4)
    assert abs(short.not_valid_after_utc - before - timedelta(days=3)) < timedelta(minutes=1)
    assert long.not_valid_after_utc == root.not_valid_after_utc
    with pytest.raises(ValueError, match=r"ca\.pem: expired on .*make a new authority"):
        issue(tmp_path / "authority", tmp_path / "late", "late", now=before + timedelta(days=11))


def test_keys_are_their_owners_from_the_first_byte(
    authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes_when_opened: dict[str, int] = {}
    open_file = os.open

    def opening(path: str | Path, flags: int, mode: int = 0o777, **more: int) -> int:
        descriptor = open_file(path, flags, mode, **more)
        if flags & os.O_CREAT:
            modes_when_opened[Path(path).name] = stat.S_IMODE(os.fstat(descriptor).st_mode)
        return descriptor

    old = os.umask(0)
    try:
        monkeypatch.setattr(os, "open", opening)
        issue(authority, tmp_path / "deep" / "airport", "airport")
    finally:
        os.umask(old)
    assert modes_when_opened["key.pem"] == 0o600
    for folder in (authority, tmp_path / "deep" / "airport"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / "key.pem").stat().st_mode) == 0o600


@pytest.mark.parametrize("existing", ["ca.pem", "cert.pem", "key.pem", "notes.txt"])
def test_nothing_is_overwritten(authority: Path, tmp_path: Path, existing: str) -> None:
    folder = tmp_path / "airport"
    folder.mkdir()
    (folder / existing).write_text("mine")
    with pytest.raises(CertificateError, match="airport: exists already"):
        issue(authority, folder, "airport")
    assert [(file.name, file.read_text()) for file in folder.iterdir()] == [(existing, "mine")]
    with pytest.raises(CertificateError, match="authority: exists already"):
        create_authority(authority)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["airport", "authority"], "nothing half-made is left"


def test_a_failure_in_the_middle_leaves_nothing(
    authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError) as failure:
        issue(authority, tmp_path / "airport", "airport")
    assert failure.value.errno == errno.ENOSPC
    assert [entry.name for entry in tmp_path.iterdir()] == ["authority"]


@pytest.mark.parametrize("party", ["airport", "Österreich", "机场-1", "_x", "a" * 64, "é" * 32])
def test_a_party_may_have_any_name_a_job_allows(authority: Path, tmp_path: Path, party: str) -> None:
    issue(authority, tmp_path / "party", party)
    made = certificate(tmp_path / "party" / "cert.pem")
    assert [name.value for name in made.subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == [party]
    assert Certificates.load(tmp_path / "party").party == party


@pytest.mark.parametrize(
    "party", ["a" * 65, "é" * 33, "", "air port", "../label", "label.tpsl", "airport\n", "authority"]
)
def test_other_names_are_refused(authority: Path, tmp_path: Path, party: str) -> None:
    with pytest.raises(CertificateError):
        issue(authority, tmp_path / "party", party)
    assert not (tmp_path / "party").exists()


def test_a_damaged_authority_is_named(authority: Path, tmp_path: Path) -> None:
    create_authority(tmp_path / "other")
    key = (authority / "key.pem").read_bytes()
    (authority / "key.pem").write_bytes((tmp_path / "other" / "key.pem").read_bytes())
    with pytest.raises(ValueError, match=r"authority/key\.pem: is not the key of"):
        issue(authority, tmp_path / "airport", "airport")
    (authority / "key.pem").write_bytes(key[:40])
    with pytest.raises(ValueError, match=r"authority/key\.pem: is not a private key in PEM form"):
        issue(authority, tmp_path / "airport", "airport")
    (authority / "key.pem").unlink()
    with pytest.raises(ValueError, match=r"authority/key\.pem: cannot be read \(No such file"):
        issue(authority, tmp_path / "airport", "airport")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of two authorities; `expired` and `early` are parties whose certificates are not valid today."""
    folder = tmp_path_factory.mktemp("certificates")
    create_authority(folder / "authority")
    issue(folder / "authority", folder / "label", "label")
    issue(folder / "authority", folder / "bank", "Bänk-2")
    issue(folder / "authority", folder / "airport", "airport")
    issue(folder / "authority", folder / "expired", "expired", days=10, now=LONG_AGO)
    later = datetime.now(UTC) + timedelta(days=2)
    issue(folder / "authority", folder / "early", "early", now=later)
    issue(folder / "authority", folder / "expired_label", "label", days=10, now=LONG_AGO)
    create_authority(folder / "other_authority")
    issue(folder / "other_authority", folder / "other_label", "label")
    issue(folder / "other_authority", folder / "stranger", "stranger")
    return folder


@pytest.fixture
def bank(made: Path, tmp_path: Path) -> Path:
    """A copy of one party's folder, to be damaged."""
    shutil.copytree(made / "bank", tmp_path / "bank")
    return tmp_path / "bank"


def raw_server(folder: Path) -> grpc.ServerCredentials:
    """What somebody would listen with who does not use our checks."""
    pair = ((folder / "key.pem").read_bytes(), (folder / "cert.pem").read_bytes())
    return grpc.ssl_server_credentials([pair], (folder / "ca.pem").read_bytes(), require_client_auth=True)


def raw_channel(trusted: Path, own: Path | None) -> grpc.ChannelCredentials:
    """What somebody would connect with who does not use our checks."""
    mine = [(own / name).read_bytes() for name in ("key.pem", "cert.pem")] if own else [None, None]
    return grpc.ssl_channel_credentials((trusted / "ca.pem").read_bytes(), mine[0], mine[1])


class WhoAmI(grpc.GenericRpcHandler):
    """Answers every call with the caller's name as the server sees it."""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            return repr(peer_name(context)).encode()

        return grpc.unary_unary_rpc_method_handler(answer)


@contextmanager
def listening(credentials: grpc.ServerCredentials) -> Iterator[int]:
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool, handlers=[WhoAmI()])
        port = server.add_secure_port("127.0.0.1:0", credentials)
        server.start()
        try:
            yield port
        finally:
            server.stop(0).wait()


def ask(port: int, credentials: grpc.ChannelCredentials | None, name: str = LABEL_SERVER_NAME) -> str:
    address = f"127.0.0.1:{port}"
    options = [("grpc.ssl_target_name_override", name)]
    opened = grpc.secure_channel(address, credentials, options) if credentials else grpc.insecure_channel(address)
    with opened as channel:
        return channel.unary_unary("/any/Call")(b"", timeout=5).decode()


def refused(port: int, credentials: grpc.ChannelCredentials | None) -> bool:
    with pytest.raises(grpc.RpcError) as failure:
        ask(port, credentials)
    return failure.value.code() == grpc.StatusCode.UNAVAILABLE


@pytest.fixture(scope="module")
def label_port(made: Path) -> Iterator[int]:
    with listening(Certificates.load(made / "label").server()) as port:
        yield port


def test_the_certificate_names_the_peer(made: Path, label_port: int) -> None:
    assert ask(label_port, Certificates.load(made / "bank").channel()) == "'Bänk-2'"


@pytest.mark.parametrize("who", ["nobody", "stranger", "expired", "early", "label"])
def test_a_client_without_a_good_certificate_is_refused(made: Path, label_port: int, who: str) -> None:
    assert refused(label_port, raw_channel(made / "label", None if who == "nobody" else made / who))
    assert ask(label_port, Certificates.load(made / "bank").channel()) == "'Bänk-2'", "the server goes on"


def test_a_plaintext_client_is_refused(label_port: int) -> None:
    assert refused(label_port, None)


@pytest.mark.parametrize(
    ("poser", "name", "reason"),
    [
        # Asked for by its own name, so that nothing but the purpose of its certificate stands in the way.
        ("airport", "airport", "unsupported certificate purpose"),
        ("airport", LABEL_SERVER_NAME, "CERTIFICATE_VERIFY_FAILED"),
        ("other_label", LABEL_SERVER_NAME, "unable to get local issuer certificate"),
        ("expired_label", LABEL_SERVER_NAME, "certificate has expired"),
    ],
)
def test_nobody_else_can_pose_as_the_label_party(made: Path, poser: str, name: str, reason: str) -> None:
    with listening(raw_server(made / poser)) as port, pytest.raises(grpc.RpcError, match=reason):
        ask(port, raw_channel(made / "bank", made / "bank"), name)


def test_a_server_without_tls_has_no_names() -> None:
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool, handlers=[WhoAmI()])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        assert ask(port, None) == "None"
        server.stop(0).wait()


def test_two_common_names_are_no_name(made: Path, tmp_path: Path) -> None:
    folder = two_names(made / "authority", tmp_path / "two")
    with listening(Certificates.load(made / "label").server()) as port:
        assert ask(port, raw_channel(made / "label", folder)) == "None"
    with pytest.raises(ValueError, match=r"two/cert\.pem: does not name exactly one party"):
        Certificates.load(folder)


def two_names(authority: Path, folder: Path) -> Path:
    """A certificate of the authority with two common names."""
    root = x509.load_pem_x509_certificate((authority / "ca.pem").read_bytes())
    root_key = serialization.load_pem_private_key((authority / "key.pem").read_bytes(), None)
    key = ec.generate_private_key(ec.SECP256R1())
    assert isinstance(root_key, ec.EllipticCurvePrivateKey)
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in ("bank", "airport")]))
        .issuer_name(root.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(root_key, hashes.SHA256())
    )
    folder.mkdir()
    (folder / "ca.pem").write_bytes((authority / "ca.pem").read_bytes())
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").touch(0o600)
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder


def test_a_folder_says_who_and_until_when_and_keeps_the_key_to_itself(made: Path) -> None:
    loaded = Certificates.load(made / "bank")
    leaf = x509.load_pem_x509_certificate((made / "bank" / "cert.pem").read_bytes())
    assert (loaded.party, loaded.expires) == ("Bänk-2", leaf.not_valid_after_utc)
    assert "PRIVATE" not in repr(loaded)


def _remove(name: str) -> Callable[[Path, Path], object]:
    return lambda folder, made: (folder / name).unlink()


def _replace(name: str, source: str) -> Callable[[Path, Path], object]:
    return lambda folder, made: shutil.copy(made / source, folder / name)


def _write(name: str, content: bytes) -> Callable[[Path, Path], object]:
    return lambda folder, made: (folder / name).write_bytes(content)


def _lock(folder: Path, made: Path) -> None:
    key = serialization.load_pem_private_key((folder / "key.pem").read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"secret")
    content = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)
    (folder / "key.pem").write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (_remove("ca.pem"), r"bank/ca\.pem: cannot be read \(No such file .*\); `tpsl certs` makes"),
        (_remove("cert.pem"), r"bank/cert\.pem: cannot be read \(No such file .*\); `tpsl certs` makes"),
        (_remove("key.pem"), r"bank/key\.pem: cannot be read \(No such file .*\); `tpsl certs` makes"),
        (_write("ca.pem", b""), r"bank/ca\.pem: is not a certificate in PEM form"),
        (_write("cert.pem", b"\xff\x00 noise"), r"bank/cert\.pem: is not a certificate in PEM form"),
        (_write("key.pem", b"-----BEGIN PRIVATE KEY-----\nAAAA\n"), r"bank/key\.pem: is not a private key in PEM"),
        (_replace("cert.pem", "bank/key.pem"), r"bank/cert\.pem: is not a certificate in PEM form"),
        (_lock, r"bank/key\.pem: is locked with a password"),
        (_replace("key.pem", "label/key.pem"), r"bank/key\.pem: is not the key of the certificate beside it"),
        (_replace("ca.pem", "stranger/ca.pem"), r"bank/cert\.pem: is not signed by the authority in .*bank/ca\.pem"),
        (
            lambda folder, made: (folder / "key.pem").chmod(0o640),
            r"bank/key\.pem: others .* run: chmod 600 .*key\.pem$",
        ),
        (
            lambda folder, made: (folder / "key.pem").chmod(0o604),
            r"bank/key\.pem: others .* run: chmod 600 .*key\.pem$",
        ),
    ],
)
def test_a_damaged_folder_is_refused_with_the_reason(
    bank: Path, made: Path, damage: Callable[[Path, Path], object], sentence: str
) -> None:
    damage(bank, made)
    with pytest.raises(ValueError, match=sentence) as failure:
        Certificates.load(bank)
    assert "\n" not in str(failure.value)


def test_a_certificate_of_another_day_is_refused_with_the_date(made: Path) -> None:
    ended = LONG_AGO + timedelta(days=10)
    with pytest.raises(ValueError, match=rf"expired/cert\.pem: expired on {ended:%Y-%m-%d}"):
        Certificates.load(made / "expired")
    with pytest.raises(ValueError, match=r"early/cert\.pem: is not valid before \d{4}-\d\d-\d\d \d\d:\d\d UTC"):
        Certificates.load(made / "early")
