"""Files that are whole or absent."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tpsl.files import (
    DiskFull,
    is_kept_secret,
    make_private_folder,
    open_private,
    read_plain,
    read_yaml,
    remove_drafts,
    shortened,
    write_atomically,
    write_durably,
)


def test_a_file_is_replaced_and_nothing_stays_beside_it(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", b"old")
    write_atomically(tmp_path / "file", b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"new"}


def test_a_kill_while_a_file_is_replaced_leaves_the_old_or_the_new_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    child = os.fork()
    if child == 0:  # replaces the file until it is killed
        while True:
            for content in (b"new" * 100_000, b"old"):
                write_atomically(path, content)
    try:
        seen = {path.read_bytes() for _ in range(300)}
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert seen | {path.read_bytes()} <= {b"old", b"new" * 100_000}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_what_does_not_fit_is_named_and_leaves_the_old_content(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_atomically(tmp_path / "file", b"old")

    def full(file: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFull, match="file: cannot be written, the disk is full") as raised:
        write_atomically(tmp_path / "file", b"newer")
    assert raised.value.path == tmp_path / "file"
    assert str(raised.value).endswith("the disk is full; free space and give the same command again")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"old"}


def test_another_error_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "missing" / "file", b"new")


def test_drafts_are_removed_but_not_what_a_link_leads_to(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").touch()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".folder.new").symlink_to(elsewhere)
    (tmp_path / "run" / ".file.new").touch()
    remove_drafts(tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []
    assert (elsewhere / "file").exists()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot be read"),
        (b"a: [", "is not YAML"),
        (b"\xff\xfe\x00", "is not YAML"),
        (b"!!python/name:os", "is not YAML"),
        (b"a: !!bool maybe", "is not YAML"),
        (b"a: !!timestamp 12", "is not YAML"),
        (b"a: 2013-13-01", "is not YAML"),
    ],
)
def test_yaml_that_cannot_be_read_is_the_callers_error_in_one_line(
    tmp_path: Path, content: bytes | None, sentence: str
) -> None:
    class Complaint(ValueError):
        pass

    path = tmp_path / "file.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Complaint) as raised:
        read_yaml(path, Complaint)
    assert str(raised.value).startswith(f"{path}: {sentence} (")
    assert "\n" not in str(raised.value)


def test_what_is_found_in_a_folder_is_read_if_it_is_a_file_of_some_length(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_plain(tmp_path / "file", 5) == b"12345"
    with pytest.raises(OSError, match="it has more than 4 bytes"):
        read_plain(tmp_path / "file", 4)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    for name in ("pipe", "endless"):
        with pytest.raises(OSError, match="it is no plain file"):
            read_plain(tmp_path / name)


def test_yaml_is_read_as_it_stands(tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text("a: {b: [1, ε]}\n", encoding="utf-8")
    assert read_yaml(tmp_path / "file.yaml", ValueError) == {"a": {"b": [1, "ε"]}}


NINE_LAUGHS = "a: &a [ha, ha, ha, ha, ha, ha, ha, ha, ha]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + before] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
"""A few hundred bytes that stand for 9⁹ values."""


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (NINE_LAUGHS, ", line 2: aliases are not taken; write the value out"),
        ("a: &a [*a]\n", ", line 1: aliases are not taken; write the value out"),
        ("a: {<<: &b {c: 1}}\nd:\n  <<: *b\n", ", line 3: aliases are not taken; write the value out"),
        ("[" * 100_000, ", line 1: lists or mappings are nested more than 50 deep"),
        ("a:\n" + "- " * 5_000, ", line 2: lists or mappings are nested more than 50 deep"),
    ],
)
def test_yaml_that_stands_for_more_than_it_is_long_is_refused_in_a_moment(
    tmp_path: Path, content: str, sentence: str
) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(content)
    begun = time.process_time()
    with pytest.raises(ValueError) as raised:
        read_yaml(path, ValueError)
    assert str(raised.value) == f"{path}{sentence}"
    assert time.process_time() - begun < 1


def test_a_star_that_is_no_alias_is_read(tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text("a: '*b'\nc: 2*3\n")
    assert read_yaml(tmp_path / "file.yaml", ValueError) == {"a": "*b", "c": "2*3"}


def test_a_long_text_is_shortened_and_a_short_one_is_not() -> None:
    assert shortened("short") == "short"
    assert shortened("a" * 1000 + "b" * 1000) == "a" * 50 + " … " + "b" * 50


@pytest.fixture(params=[0o000, 0o022, 0o777])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.usefixtures("umask")
def test_files_and_folders_are_for_their_owner_only_whatever_the_umask(tmp_path: Path) -> None:
    make_private_folder(tmp_path / "new" / "inner")
    assert mode(tmp_path / "new") == mode(tmp_path / "new" / "inner") == 0o700
    write_atomically(tmp_path / "atomic", b"")
    write_durably(tmp_path / "durable", b"")
    with open_private(tmp_path / "appended", "x+b"):
        pass
    assert {mode(tmp_path / name) for name in ("atomic", "durable", "appended")} == {0o600}


def test_a_file_that_others_could_read_is_closed_to_them_and_a_folder_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "file").chmod(0o644)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder").chmod(0o755)
    write_durably(tmp_path / "file", b"new")
    make_private_folder(tmp_path / "folder")
    assert (mode(tmp_path / "file"), mode(tmp_path / "folder")) == (0o600, 0o755)


@pytest.mark.parametrize(
    ("owner", "mode", "kept"),
    [
        (ME := 10001, 0o600, True),
        (ME, 0o400, True),
        (ME, 0o640, False),
        (0, 0o440, True),  # a Secret that Kubernetes mounts for a user who is not root, with `fsGroup`
        (0, 0o640, True),
        (0, 0o460, False),
        (0, 0o444, False),
        (ME + 1, 0o640, False),
    ],
)
def test_a_key_is_its_owners_or_what_root_gives_to_the_readers_group(owner: int, mode: int, kept: bool) -> None:
    status = os.stat_result((0o100000 | mode, 0, 0, 1, owner, ME, 0, 0, 0, 0))
    assert is_kept_secret(status, ME) == kept
    assert not is_kept_secret(os.stat_result((0o100440, 0, 0, 1, 0, 0, 0, 0, 0, 0)), 0), "root is no exception"
