"""One side of RR22, run by the interpreter of an environment that has `spu`: `tpsl.alignment.spu_engine` starts it.

It imports nothing but the standard library and `spu`, whose environment does not have tpsl. Its folder is all that it
gets, and all that it can reach: `spu` believes indices that its peer sends, so the kernel (Landlock) keeps this process
from every other file that is not part of the system or of Python, from TCP, and from processes that are not its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

KEYS, FOUND = "./keys.csv", "./found.csv"
"""In the folder: this party's keys, and those of them that the peer has too."""
RECEIVER = 1
"""The rank of the party that computes the intersection, and tells it to the other one."""

_PATIENCE_MS = 600 * 1000  # a message that does not come for so long never will: fail, and do not hang

_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/proc/self", "/sys/devices/system")
_FILES = ("/dev/null", "/dev/random", "/dev/urandom", "/etc/ld.so.cache", "/proc/cpuinfo")
_EXECUTE, _WRITE, _READ, _LIST = (1 << bit for bit in range(4))
_FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1}  # by version of Landlock
_TCP, _SIGNALS_AND_SOCKETS = 0b11, 0b11
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF, _PATH_BENEATH = 444, 445, 446, 1
_SET_PARENT_DEATH_SIGNAL, _SET_NO_NEW_PRIVILEGES = 1, 38


def confine(folder: str) -> None:
    """Keep this process, and what it starts, to a folder and to what the system and Python have to read; or raise."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < 1:
        raise OSError("the kernel has no Landlock (Linux 5.13), without which spu is not run")
    rights = _FILE_RIGHTS[min(version, 3)]
    # Older kernels know fewer of these fields.
    ruleset = (ctypes.c_uint64 * 3)(rights, _TCP, _SIGNALS_AND_SOCKETS)
    size = 8 if version < 4 else 16 if version < 6 else 24
    rules = libc.syscall(_CREATE_RULESET, ruleset, ctypes.c_size_t(size), 0)
    readable = dict.fromkeys((*_SYSTEM, sys.prefix, sys.base_prefix), _EXECUTE | _READ | _LIST)
    for path, allowed in {**readable, **dict.fromkeys(_FILES, _READ | _WRITE), folder: rights}.items():
        with contextlib.suppress(FileNotFoundError):
            beneath = os.open(path, os.O_PATH)
            rule = allowed.to_bytes(8, sys.byteorder) + beneath.to_bytes(4, sys.byteorder)
            _require(libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, rule, 0))
            os.close(beneath)
    _require(libc.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    _require(libc.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0))
    _require(libc.syscall(_RESTRICT_SELF, rules, 0))
    os.close(rules)


def compare(rank: int, records: int) -> None:
    """Find the keys that the peer has too; all in one bucket, so that no number but that of all records is told."""
    from spu import libspu, psi

    mesh = libspu.link.Desc()
    places = ["unix:own", "unix:peer"]
    for number, place in enumerate(places if rank == 0 else reversed(places)):
        mesh.add_party(str(number), place)
    mesh.brpc_channel_connection_type = "single"
    mesh.recv_timeout_ms = mesh.http_timeout_ms = _PATIENCE_MS
    mesh.connect_retry_times = _PATIENCE_MS // mesh.connect_retry_interval_ms
    link = libspu.link.create_brpc(mesh, rank)
    protocol = psi.PsiProtocolConfig(
        protocol=psi.PsiProtocol.PROTOCOL_RR22, receiver_rank=RECEIVER, broadcast_result=True, bucket_size=records
    )
    keys = psi.InputParams(path=KEYS, selected_keys=["key"], keys_unique=True)
    psi.psi_execute(psi.PsiExecuteConfig(protocol, keys, psi.OutputParams(path=FOUND, disable_alignment=True)), link)
    link.stop_link()


def main() -> None:
    """Print the version of spu, or compare: RANK RECORDS, in the current folder."""
    confine(os.getcwd())  # noqa: PTH109
    if sys.argv[1:] == ["--version"]:
        import spu

        print(spu.__version__)
        return
    rank, records = sys.argv[1:]
    compare(int(rank), int(records))


def _require(status: int) -> None:
    if status < 0:
        raise OSError(ctypes.get_errno(), "this process cannot be confined")


if __name__ == "__main__":
    main()
