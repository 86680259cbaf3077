"""Where a vault may lie: SQLite's locks, and what it makes durable, hold on a disk of this machine.

On a network file system two machines can both believe that they hold the lock, and then both draw for the same record.
"""

import os
import re
from pathlib import Path

from tpsl.vault.errors import VaultError

VARIABLE = "TPSL_NETWORK_VAULTS"
"""The environment variable that permits it, to those who see to it that one machine at a time opens the vault."""

_MOUNTS = Path("/proc/self/mountinfo")
_NETWORK = re.compile(
    r"nfs4?|cifs|smb3|smbfs|afs|ncpfs|ceph|lustre|gpfs|beegfs(_nodev)?|pvfs2|"
    r"fuse\.(sshfs|s3fs|mount-s3|goofys|gcsfuse|blobfuse2?|rclone|juicefs|glusterfs|ceph|seaweedfs|moosefs|davfs2?)|davfs"
)


def require_local(folder: Path) -> None:
    """Raise a `VaultError` if a folder lies on a network file system, unless the environment permits it."""
    kind = _kind(folder)
    if kind is not None and _NETWORK.fullmatch(kind) and not os.environ.get(VARIABLE):
        raise VaultError(
            f"{folder} lies on a network file system ({kind}), where two machines could release the same record: keep "
            f"vaults on a disk of one machine (--vault, TPSL_VAULTS), or set {VARIABLE}=1 if no other ever opens it"
        )


def _kind(folder: Path) -> str | None:
    """The kind of file system that a folder lies on; None where that is not known."""
    try:
        mounts = _MOUNTS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    place, kinds = folder.resolve(), {}
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        point = Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), before.split(" ")[4]))
        if place.is_relative_to(point):
            kinds[point] = after.split(" ")[0]  # the last of several that lie over each other
    return kinds[max(kinds, key=lambda point: len(point.parts))] if kinds else None
