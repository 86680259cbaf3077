import sys
from pathlib import Path

import pytest
import torch

from tpsl.bench.contender import PACKAGE
from tpsl.bench.peers import COMPLETE, PEERS, NotInstalled, install, is_set_up, set_up


def test_each_peer_has_its_program() -> None:
    for peer in PEERS:
        assert (PACKAGE / "bench" / "contenders" / f"{peer.program}.py").exists()


def test_peers_have_the_pytorch_of_this_process() -> None:
    version = torch.__version__.partition("+")[0]
    assert all(any(f"torch=={version}" in names for names in peer.installs()) for peer in PEERS)


def test_an_environment_that_is_complete_is_used_again(tmp_path: Path) -> None:
    peer = PEERS[0]
    (tmp_path / peer.folder).mkdir()
    (tmp_path / peer.folder / COMPLETE).write_text("\n".join(" ".join(names) for names in peer.installs()))
    assert is_set_up(peer, tmp_path)
    assert set_up(peer, tmp_path) == tmp_path / peer.folder / "bin" / "python"
    assert not set_up(peer, tmp_path).exists()


def test_one_of_another_version_is_not(tmp_path: Path) -> None:
    peer = PEERS[0]
    (tmp_path / peer.folder).mkdir()
    (tmp_path / peer.folder / COMPLETE).write_text("opacus==0.1")
    assert not is_set_up(peer, tmp_path)


def test_a_library_that_cannot_be_installed_says_what_pip_says(tmp_path: Path) -> None:
    with pytest.raises(NotInstalled, match=r"missing\.whl"):
        install(Path(sys.executable), [f"missing @ file://{tmp_path}/missing.whl"])


def test_a_folder_that_is_no_environment_is_left_alone(tmp_path: Path) -> None:
    theirs = tmp_path / PEERS[0].folder / "thesis.tex"
    theirs.parent.mkdir()
    theirs.write_text("years of work")
    with pytest.raises(NotInstalled, match="exists and is no virtual environment; name another folder"):
        set_up(PEERS[0], tmp_path)
    assert theirs.read_text() == "years of work"
