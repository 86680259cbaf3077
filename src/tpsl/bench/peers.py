"""Other libraries that train with privacy or across parties, each in a virtual environment of its own."""

from __future__ import annotations

import subprocess
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tpsl.bench.contender import Contender
from tpsl.bench.race import Standing
from tpsl.files import write_atomically
from tpsl.progress import Progress

COMPLETE = "complete.txt"
"""The file in an environment that says what was installed."""


@dataclass(frozen=True)
class Peer:
    """A library, and the program of `contenders` that trains with it."""

    name: str
    folder: str
    requirement: str
    program: str
    how: str

    def requirements(self) -> list[str]:
        """Return what is installed: the library, and PyTorch in the version of this process."""
        import torch

        return [self.requirement, f"torch=={torch.__version__.partition('+')[0]}"]


PEERS = (
    Peer(
        "Opacus",
        "opacus",
        "opacus==1.6.0",
        "opacus_ghost",
        "DP-SGD with ghost clipping, unsplit, dense gradients; gradients of each sample would not fit in memory",
    ),
    Peer(
        "NVFlare",
        "nvflare",
        "nvflare==2.9.0",
        "nvflare_split",
        "the pattern of its cifar10-splitnn example: Collab API, two sites in its simulator, float16, no privacy",
    ),
    Peer(
        "Flower",
        "flower",
        "flwr[simulation]==1.41.0",
        "flower_vertical",
        "the pattern of its vertical-fl example: two messages a step in its Ray simulation, no privacy",
    ),
)


class NotInstalled(RuntimeError):
    """A library that cannot be installed here; the sentence is that of pip."""


def contenders(peers: Sequence[Peer], folder: Path, progress: Progress) -> tuple[list[Contender], list[Standing]]:
    """Set up the environments of peers in a folder; return those that can be run, and why others cannot."""
    ready, missing = [], []
    for number, peer in enumerate(peers):
        progress(number, len(peers), f"setting up {peer.name}")
        try:
            python = set_up(peer, folder)
        except NotInstalled as error:
            missing.append(Standing(peer.name, peer.how, reason=str(error)))
        else:
            ready.append(Contender(peer.name, peer.program, python=python, how=f"{peer.requirement}: {peer.how}"))
    return ready, missing


def is_set_up(peer: Peer, folder: Path) -> bool:
    """Return whether the environment of a peer is complete."""
    complete = folder / peer.folder / COMPLETE
    return complete.exists() and complete.read_text(encoding="utf-8") == "\n".join(peer.requirements())


def set_up(peer: Peer, folder: Path) -> Path:
    """Return the interpreter of a peer's environment; it is made unless it is there and complete."""
    place = folder.absolute() / peer.folder
    python = place / "bin" / "python"
    if is_set_up(peer, folder):
        return python
    venv.create(place, with_pip=True, clear=True)
    install(python, peer.requirements())
    write_atomically(place / COMPLETE, "\n".join(peer.requirements()).encode())
    return python


def install(python: Path, requirements: Sequence[str]) -> None:
    """Install packages into the environment of an interpreter."""
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        errors = [line.removeprefix("ERROR: ") for line in done.stderr.splitlines() if line.startswith("ERROR:")]
        raise NotInstalled(errors[-1] if errors else f"pip ended with {done.returncode}")
