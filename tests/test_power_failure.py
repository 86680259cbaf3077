"""Nothing that was promised is lost when the power fails: the order in which data reach the disk.

A program runs with a library between it and the C library that records every change of a file. A model of a disk then
replays the record and stops at each change. What was synchronised is there; of the rest, the worst is chosen. The other
tests do not wait for the disk (`conftest.py`), so this is where a missing `fsync` shows.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

from tpsl.mechanisms import DiscreteGaussian, randomized_response
from tpsl.models.model_config import OptimizerConfig
from tpsl.models.optimizer import HalfOptimizer
from tpsl.run.checkpoint import load_checkpoint, saved_steps
from tpsl.vault import StatisticPlan, Vault, VaultError
from tpsl.vault.storage import DATABASE

RECORDER = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static const char *path_of(int fd, char *buffer) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, buffer, PATH_MAX - 1);
    buffer[size < 0 ? 0 : size] = 0;
    return buffer;
}

static const char *path_at(int folder, const char *name, char *buffer) {
    if (name[0] == '/' || folder == AT_FDCWD) return name;
    path_of(folder, buffer);
    strncat(buffer, "/", PATH_MAX - strlen(buffer) - 1);
    return strncat(buffer, name, PATH_MAX - strlen(buffer) - 1);
}

static void record(const char *what, const char *path, const char *other, long offset, const void *data, long size) {
    static int file = -1;
    const char *root = getenv("RECORDED_FOLDER");
    if (!root || strncmp(path, root, strlen(root))) return;
    char line[2 * PATH_MAX + 128];
    int length = snprintf(line, sizeof line, "%s\t%s\t%s\t%ld\t%ld\n", what, path, other, offset, size);
    pthread_mutex_lock(&lock);
    if (file < 0) file = syscall(SYS_openat, AT_FDCWD, getenv("RECORD"), O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (syscall(SYS_write, file, line, length) != length) abort();
    if (data && syscall(SYS_write, file, data, size) != size) abort();
    pthread_mutex_unlock(&lock);
}

static int opened(int folder, const char *path, int flags, mode_t mode) {
    char buffer[PATH_MAX];
    int file = syscall(SYS_openat, folder, path, flags | O_LARGEFILE, mode);
    if (file < 0) return -1;
    if (flags & (O_CREAT | O_TRUNC)) record("open", path_of(file, buffer), "", (flags & O_TRUNC) != 0, 0, 0);
    return file;
}

#define MODE va_list rest; va_start(rest, flags); mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0; va_end(rest)
int open(const char *path, int flags, ...) { MODE; return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE; return opened(AT_FDCWD, path, flags, mode); }
int openat(int folder, const char *path, int flags, ...) { MODE; return opened(folder, path, flags, mode); }
int openat64(int folder, const char *path, int flags, ...) { MODE; return opened(folder, path, flags, mode); }

ssize_t write(int file, const void *data, size_t size) {
    char buffer[PATH_MAX];
    int appends = fcntl(file, F_GETFL) & O_APPEND;
    long offset = lseek(file, 0, appends ? SEEK_END : SEEK_CUR);
    ssize_t done = syscall(SYS_write, file, data, size);
    if (done > 0 && offset >= 0) record("write", path_of(file, buffer), "", offset, data, done);
    return done;
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t offset) {
    char buffer[PATH_MAX];
    ssize_t done = syscall(SYS_pwrite64, file, data, size, offset);
    if (done > 0) record("write", path_of(file, buffer), "", offset, data, done);
    return done;
}
ssize_t pwrite(int file, const void *data, size_t size, off_t offset) { return pwrite64(file, data, size, offset); }

int ftruncate64(int file, off64_t size) {
    char buffer[PATH_MAX];
    int failed = syscall(SYS_ftruncate, file, size);
    if (!failed) record("truncate", path_of(file, buffer), "", size, 0, 0);
    return failed;
}
int ftruncate(int file, off_t size) { return ftruncate64(file, size); }

int fsync(int file) {
    char buffer[PATH_MAX];
    record("sync", path_of(file, buffer), "", 0, 0, 0);
    return syscall(SYS_fsync, file);
}
int fdatasync(int file) { return fsync(file); }

int rename(const char *from, const char *to) {
    int failed = syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    if (!failed) record("rename", from, to, 0, 0, 0);
    return failed;
}

int unlinkat(int folder, const char *name, int flags) {
    char buffer[PATH_MAX];
    int failed = syscall(SYS_unlinkat, folder, name, flags);
    if (!failed) record("remove", path_at(folder, name, buffer), "", 0, 0, 0);
    return failed;
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int remove(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int mkdir(const char *path, mode_t mode) {
    int failed = syscall(SYS_mkdirat, AT_FDCWD, path, mode);
    if (!failed) record("folder", path, "", 0, 0, 0);
    return failed;
}
"""


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that records, compiled."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("the order of writes is recorded by a library for Linux, and there is no C compiler to make it")
    folder = tmp_path_factory.mktemp("recorder")
    (folder / "recorder.c").write_text(RECORDER)
    library = folder / "recorder.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-w", "-o", library, folder / "recorder.c"], check=True)
    return library


@dataclass
class Node:
    """A file or a folder, as programs see it and as it lies on the disk."""

    is_folder: bool
    content: bytearray = field(default_factory=bytearray)
    durable_content: bytes = b""
    names: dict[str, Node] = field(default_factory=dict)
    durable_names: dict[str, Node] = field(default_factory=dict)

    def sync(self) -> None:
        self.durable_content, self.durable_names = bytes(self.content), dict(self.names)


@dataclass(frozen=True)
class Change:
    """One call that the program made."""

    what: str
    path: Path
    other: str
    offset: int
    data: bytes


def recorded(record: Path) -> Iterator[Change]:
    with record.open("rb") as file:
        while line := file.readline():
            what, path, other, offset, size = line.decode().rstrip("\n").split("\t")
            yield Change(what, Path(path), other, int(offset), file.read(int(size)) if what == "write" else b"")


LOSSES: dict[str, tuple[bool, Callable[[str], bool]]] = {
    "all that was not synchronised is lost": (False, lambda name: False),
    "names are there, contents are lost": (True, lambda name: False),
    "contents are there, names are lost": (False, lambda name: True),
    "the database alone is there": (False, lambda name: name == DATABASE),
}
"""What a power failure leaves of what was not synchronised: names or not, and the contents of which files."""


class Disk:
    """A folder on a disk that keeps what was synchronised, and whatever is worst of the rest."""

    def __init__(self, root: Path) -> None:
        self.root, self._top = root, Node(is_folder=True)

    def _at(self, path: Path) -> Node:
        node = self._top
        for part in path.relative_to(self.root).parts:
            node = node.names[part]
        return node

    def change(self, change: Change) -> None:
        path, names = change.path, self._at(change.path.parent).names if change.path != self.root else {}
        if change.what == "open":
            node = names.setdefault(path.name, Node(is_folder=False))
            if change.offset:
                node.content.clear()
        elif change.what == "write":
            content = self._at(path).content
            content.extend(b"\0" * (change.offset - len(content)))
            content[change.offset : change.offset + len(change.data)] = change.data
        elif change.what == "truncate":
            content = self._at(path).content
            del content[change.offset :]
            content.extend(b"\0" * (change.offset - len(content)))
        elif change.what == "sync":
            self._at(path).sync()
        elif change.what == "rename":
            self._at(Path(change.other).parent).names[Path(change.other).name] = names.pop(path.name)
        elif change.what == "remove":
            del names[path.name]
        else:
            assert change.what == "folder"
            names[path.name] = Node(is_folder=True)

    def after_a_failure(self, loss: str) -> dict[str, bytes | None]:
        """Return what is on the disk: the contents of files and None for folders, by relative path."""
        keeps_names, keeps_content = LOSSES[loss]
        found: dict[str, bytes | None] = {}

        def visit(node: Node, prefix: str) -> None:
            for name, inner in (node.names if keeps_names else node.durable_names).items():
                if inner.is_folder:
                    found[prefix + name] = None
                    visit(inner, f"{prefix}{name}/")
                else:
                    found[prefix + name] = bytes(inner.content) if keeps_content(name) else inner.durable_content

        visit(self._top, "")
        return found


SEEN = "seen"
"""The file in which a program says what it promises; what is in it counts as known to the world at once."""

NOTE = """
import os, sys
from pathlib import Path

root = Path(sys.argv[1])

def promise(text):
    file = os.open(root / "seen", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, text.encode() + b"\\n")
    os.close(file)
"""

Check = Callable[[Path, list[str]], None]


def survive(recorder: Path, tmp_path: Path, program: str, check: Check) -> int:
    """Run a program, let the power fail at each of its changes, and check what is left; return how often it differs."""
    root, record = (tmp_path / "root").resolve(), tmp_path / "record"
    root.mkdir()
    environment = {**os.environ, "LD_PRELOAD": str(recorder), "RECORDED_FOLDER": str(root), "RECORD": str(record)}
    subprocess.run([sys.executable, "-c", NOTE + program, root], check=True, env=environment)
    disk, checked = Disk(root), set()
    for change in recorded(record):
        disk.change(change)
        promised = bytes(disk._at(root / SEEN).content).decode().split() if SEEN in disk._top.names else []
        for loss in LOSSES:
            left = {name: content for name, content in disk.after_a_failure(loss).items() if name != SEEN}
            key = hashlib.sha256(repr((sorted(left.items()), promised)).encode()).digest()
            if key not in checked:
                checked.add(key)
                place = tmp_path / f"left-{len(checked)}"
                write(place, left)
                try:
                    check(place, promised)
                except BaseException as error:
                    error.add_note(f"after {change.what} {change.path} {change.other}, promised {promised}: {loss}")
                    raise
                shutil.rmtree(place)
    assert promised, "the program promised nothing"
    return len(checked)


def write(place: Path, left: dict[str, bytes | None]) -> None:
    place.mkdir()
    for name, content in left.items():
        if content is None:
            (place / name).mkdir(mode=0o700)
        else:
            (place / name).write_bytes(content)
            (place / name).chmod(0o600)


FILES = """
from tpsl.files import make_private_folder, write_atomically

make_private_folder(root / "new" / "inner")
for number in range(1, 4):
    for path in (root / "file", root / "new" / "inner" / "file"):
        write_atomically(path, b"%d" % number * 100)
    promise(str(number))
"""


def test_a_file_that_was_written_stays_and_is_always_whole(recorder: Path, tmp_path: Path) -> None:
    def check(place: Path, promised: list[str]) -> None:
        for path in (place / "file", place / "new" / "inner" / "file"):
            content = path.read_bytes() if path.exists() else b"0" * 100
            assert content in [b"%d" % number * 100 for number in range(4)], "the file is not whole"
            assert int(content[:1]) >= int(promised[-1] if promised else 0), "what was written is lost"

    assert survive(recorder, tmp_path, FILES, check) > 20


VAULT = """
import hashlib
import numpy as np
from tpsl.mechanisms import DiscreteGaussian, randomized_response
from tpsl.vault import ReleasePolicy, StatisticPlan, Vault

PLAN, ROWS = StatisticPlan(DiscreteGaussian(10**8, 1e-6), 100, 3), np.arange(30).reshape(10, 3)
COMPOSE = ReleasePolicy(compose=True)
once = randomized_response(1.0)
ids = np.arange(60)
with Vault.create(root / "vaults" / "vault", batches=[(ids[:40], ids[:40] % 2, None)]) as vault:
    promise("created")
    for count in (25, 40):
        vault.release(once, ids=ids[:count])
        promise(f"{count}:{hashlib.sha256(vault.noisy_labels(once, ids[:count]).draws[0].tobytes()).hexdigest()}")
    together = vault.release_statistic(PLAN, ids[30:40], [ROWS], policy=COMPOSE)
    promise(f"statistic:{hashlib.sha256(together.values.tobytes()).hexdigest()}")
    vault.add([(ids[40:], ids[40:] % 2, None)])
    promise("added")
    vault.release(once)
    promise(f"60:{hashlib.sha256(vault.noisy_labels(once, ids).draws[0].tobytes()).hexdigest()}")
"""


def test_a_release_that_anyone_saw_is_in_the_vault(
    recorder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = randomized_response(1.0)
    plan, rows = StatisticPlan(DiscreteGaussian(10**8, 1e-6), 100, 3), np.arange(30).reshape(10, 3)

    def check(place: Path, promised: list[str]) -> None:
        try:
            monkeypatch.setenv("TPSL_HOME", str(place / "home"))  # of the machine that lost power
            vault = Vault.open(place / "vaults" / "vault")
        except VaultError:
            assert promised == [], "the vault is lost"
            return
        with vault:
            assert vault.verify() == []
            assert len(vault) == 60 or "added" not in promised
            for seen in promised:
                count, _, digest = seen.partition(":")
                if count == "statistic":
                    assert [entry.kind for entry in vault.ledger().entries].count("statistic") == 1
                    values = vault.release_statistic(plan, range(30, 40), [rows]).values
                    assert hashlib.sha256(values.tobytes()).hexdigest() == digest
                elif digest:
                    outcomes = vault.noisy_labels(once, range(int(count))).draws[0]
                    assert hashlib.sha256(outcomes.tobytes()).hexdigest() == digest

    assert survive(recorder, tmp_path, VAULT, check) > 20


HALF = """
import torch
from torch import nn
from tpsl.models.model_config import OptimizerConfig
from tpsl.models.optimizer import HalfOptimizer

half = nn.Linear(3, 2)
optimizer = HalfOptimizer(half, OptimizerConfig())
"""
CHECKPOINTS = """
from tpsl.run.checkpoint import save_checkpoint

for step in range(1, 6):
    half(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    save_checkpoint(root / "checkpoints", step, "job", {"half": (half, optimizer)})
    promise(str(step))
"""


def test_a_checkpoint_that_was_saved_can_be_loaded(recorder: Path, tmp_path: Path) -> None:
    def check(place: Path, promised: list[str]) -> None:
        folder = place / "checkpoints"
        found = saved_steps(folder)
        assert max(found, default=0) >= int(promised[-1] if promised else 0), "a checkpoint is lost"
        for step in found:
            half = torch.nn.Linear(3, 2)
            load_checkpoint(folder, step, "job", {"half": (half, HalfOptimizer(half, OptimizerConfig()))})

    assert survive(recorder, tmp_path, HALF + CHECKPOINTS, check) > 20
