"""The authority and its certificates: who may do what, for how long, and who can read the keys."""

from __future__ import annotations

import os
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tpsl.net.certificates import create_authority, issue
from tpsl.net.credentials import Certificates


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

    issue(authority, tmp_path / "airport", "airport", label=False)
    leaf = certificate(tmp_path / "airport" / "cert.pem")
    leaf.verify_directly_issued_by(root)
    constraints = leaf.extensions.get_extension_for_class(x509.BasicConstraints)
    usage = leaf.extensions.get_extension_for_class(x509.KeyUsage)
    assert constraints.critical and not constraints.value.ca
    assert usage.critical and usage.value.digital_signature and not usage.value.key_cert_sign
    assert (tmp_path / "airport" / "ca.pem").read_bytes() == (authority / "ca.pem").read_bytes()


def test_the_label_party_listens_and_a_feature_party_connects(authority: Path, tmp_path: Path) -> None:
    issue(authority, tmp_path / "label", "label", label=True)
    issue(authority, tmp_path / "airport", "airport", label=False)
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
        issue(authority, tmp_path / party, party, label=False)
    leaves = [certificate(tmp_path / party / "cert.pem") for party in ("a", "b")]
    assert len({c.serial_number for c in (*roots, *leaves)}) == 4
    own = roots[0].extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
    for leaf in leaves:
        assert leaf.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier == own


def test_a_clock_that_is_a_little_late_does_no_harm_and_nothing_outlives_the_authority(tmp_path: Path) -> None:
    create_authority(tmp_path / "authority", days=10)
    before = datetime.now(UTC)
    issue(tmp_path / "authority", tmp_path / "short", "short", label=False, days=3)
    issue(tmp_path / "authority", tmp_path / "long", "long", label=False, days=365)
    root = certificate(tmp_path / "authority" / "ca.pem")
    short, long = (certificate(tmp_path / party / "cert.pem") for party in ("short", "long"))
    for made in (root, short, long):
        assert made.not_valid_before_utc <= before - timedelta(minutes=4)
    assert abs(short.not_valid_after_utc - before - timedelta(days=3)) < timedelta(minutes=1)
    assert long.not_valid_after_utc == root.not_valid_after_utc
    with pytest.raises(ValueError, match=r"ca\.pem: expired on .*make a new authority"):
        issue(tmp_path / "authority", tmp_path / "late", "late", label=False, now=before + timedelta(days=11))


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
        issue(authority, tmp_path / "deep" / "airport", "airport", label=False)
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
    with pytest.raises(ValueError, match=rf"airport/{existing}: exists already"):
        issue(authority, folder, "airport", label=False)
    assert [(file.name, file.read_text()) for file in folder.iterdir()] == [(existing, "mine")]
    with pytest.raises(ValueError, match=r"authority/ca\.pem: exists already"):
        create_authority(authority)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["airport", "authority"], "nothing half-made is left"


def test_a_failure_in_the_middle_leaves_nothing(
    authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        issue(authority, tmp_path / "airport", "airport", label=False)
    assert [entry.name for entry in tmp_path.iterdir()] == ["authority"]


@pytest.mark.parametrize("party", ["airport", "Österreich", "机场-1", "_x", "a" * 64, "é" * 32])
def test_a_party_may_have_any_name_a_job_allows(authority: Path, tmp_path: Path, party: str) -> None:
    issue(authority, tmp_path / "party", party, label=False)
    made = certificate(tmp_path / "party" / "cert.pem")
    assert [name.value for name in made.subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == [party]
    assert Certificates.load(tmp_path / "party").party == party


@pytest.mark.parametrize(
    ("party", "label", "reason"),
    [
        ("a" * 65, False, "takes 65 bytes, a certificate holds 64"),
        ("é" * 33, False, "takes 66 bytes, a certificate holds 64"),
        ("", False, "needs a name of letters"),
        ("air port", False, "needs a name of letters"),
        ("../label", False, "needs a name of letters"),
        ("label.tpsl", False, "needs a name of letters"),
        ("airport\n", False, "needs a name of letters"),
        ("label", False, "a feature party cannot be named 'label'"),
        ("airport", True, "the label party is named 'label', not 'airport'"),
    ],
)
def test_other_names_are_refused(authority: Path, tmp_path: Path, party: str, label: bool, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        issue(authority, tmp_path / "party", party, label=label)
    assert not (tmp_path / "party").exists()


def test_a_damaged_authority_is_named(authority: Path, tmp_path: Path) -> None:
    create_authority(tmp_path / "other")
    key = (authority / "key.pem").read_bytes()
    (authority / "key.pem").write_bytes((tmp_path / "other" / "key.pem").read_bytes())
    with pytest.raises(ValueError, match=r"authority/key\.pem: is not the key of .*authority/ca\.pem"):
        issue(authority, tmp_path / "airport", "airport", label=False)
    (authority / "key.pem").write_bytes(key[:40])
    with pytest.raises(ValueError, match="authority: does not hold the certificate and key"):
        issue(authority, tmp_path / "airport", "airport", label=False)
    (authority / "key.pem").unlink()
    with pytest.raises(ValueError, match=r"authority/key\.pem: cannot be read \(No such file"):
        issue(authority, tmp_path / "airport", "airport", label=False)
