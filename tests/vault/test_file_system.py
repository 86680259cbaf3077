"""A vault on a network file system is refused: its locks do not hold there."""

from pathlib import Path

import pytest

from tpsl.vault import Incoming, Vault, VaultError, file_system

MOUNTS = r"""
22 1 0:21 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 22 0:50 / {place}/shared rw,relatime shared:5 - {kind} server:/export rw,vers=4.2
41 40 8:1 / {place}/shared/own\040disk rw shared:6 - xfs /dev/sdb rw
"""


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Have what lies in `shared` on a file system of this kind, but for `own disk` in it."""

    def mount(kind: str) -> Path:
        (tmp_path / "mounts").write_text(MOUNTS.format(place=tmp_path, kind=kind).lstrip())
        monkeypatch.setattr(file_system, "_MOUNTS", tmp_path / "mounts")
        return tmp_path / "shared"

    return mount


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "ceph", "lustre", "fuse.sshfs", "fuse.s3fs"])
def test_no_vault_is_made_or_opened_on_a_network_file_system(
    mounted, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = mounted("ext4")
    Vault.create(shared / "old", batches=[(["a"], [1], None)]).close()
    mounted(kind)
    for ask in (Vault.open, Vault.exists, Vault.require_free):
        with pytest.raises(VaultError, match=rf"lies on a network file system \({kind}\), where two machines could"):
            ask(shared / "old")
    with pytest.raises(VaultError, match="TPSL_NETWORK_VAULTS=1 if no other ever opens it"):
        Vault.create(shared / "new")
    assert not (shared / "new").exists()
    Vault.create(shared / "own disk" / "vault").close()
    monkeypatch.setenv("TPSL_NETWORK_VAULTS", "1")
    with Vault.open(shared / "old") as vault:
        assert len(vault) == 1


@pytest.mark.parametrize("kind", ["ext4", "xfs", "tmpfs", "overlay", "9p", "fuse.gocryptfs", "fuseblk", "virtiofs"])
def test_other_file_systems_are_taken(mounted, kind: str) -> None:
    Vault.create(mounted(kind) / "vault").close()


def test_nothing_is_read_for_a_vault_that_cannot_be_made(mounted, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    with pytest.raises(VaultError, match="network file system"), Incoming(mounted("nfs") / "new", 2, []):
        pytest.fail("entered")
    assert not (tmp_path / "shared" / "new").exists()


def test_where_mounts_are_not_known_nothing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_system, "_MOUNTS", tmp_path / "none")
    Vault.create(tmp_path / "vault").close()
