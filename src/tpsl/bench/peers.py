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
    further: tuple[tuple[str, ...], ...] = ()
    """What pip is asked for after the library, one call for each."""
    without_pins: bool = False
    """Whether the library is installed without what it requires itself."""

    def installs(self) -> list[list[str]]:
        """Return what pip is asked for: the library, and PyTorch in the version of this process."""
        import torch

        version = f"torch=={torch.__version__.partition('+')[0]}"
        library = [["--no-deps", self.requirement], [version]] if self.without_pins else [[self.requirement, version]]
        return [*library, *map(list, self.further)]


_SECRETFLOW_PARTS = (
    *("secretflow-rayfed==0.2.1a2", "spu==0.9.3b0", "sf-heu==0.5.2b0", "interconnection==0.2.0.dev0"),
    *("kuscia==0.0.3b0", "secretflow-serving-lib==0.8.0b0", "secretflow-dataproxy==0.3.0b0"),
)
_SECRETFLOW_NEEDS = (
    *("numpy==1.24.3", "pandas==1.5.3", "protobuf==4.25.9", "pyarrow==14.0.2", "ray[tune]==2.9.3", "jax==0.4.26"),
    *("jaxlib==0.4.26", "scipy==1.12.0", "scikit-learn==1.3.2", "torchmetrics==1.3.2"),
    *("duckdb==1.0.0", "sqlglot==25.5.1", "validator.py==1.3.0", "grpcio", "networkx", "tqdm", "sparse", "cloudpickle"),
    *("cachetools", "multiprocess", "s3fs", "requests", "aiohttp", "cryptography", "click"),
)
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
    Peer(
        "SecretFlow",
        "secretflow",
        "secretflow==1.11.0b1",
        "secretflow_split",
        "SLModel in its Ray simulation, no privacy; installed without its own pins, which pip cannot satisfy",
        further=(
            ("--no-deps", *_SECRETFLOW_PARTS),
            _SECRETFLOW_NEEDS,
            ("tensorflow-cpu==2.12.1",),
            ("--no-deps", "setuptools==69.5.1", "typing_extensions==4.16.0"),
        ),
        without_pins=True,
    ),
)


class NotInstalled(ValueError):
    """A library that cannot be installed here; the sentence is that of pip, or names what is in the way."""


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
    return complete.exists() and complete.read_text(encoding="utf-8") == _noted(peer)


def set_up(peer: Peer, folder: Path) -> Path:
    """Return the interpreter of a peer's environment; it is made unless it is there and complete.

    One that is not complete is removed first; a folder with anything else in it is left alone.
    """
    place = folder.absolute() / peer.folder
    python = place / "bin" / "python"
    if is_set_up(peer, folder):
        return python
    if place.exists() and not (place / "pyvenv.cfg").is_file() and any(place.iterdir()):
        raise NotInstalled(f"{place} exists and is no virtual environment; name another folder")
    venv.create(place, with_pip=True, clear=True)
    for requirements in peer.installs():
        install(python, requirements)
    write_atomically(place / COMPLETE, _noted(peer).encode())
    return python


def _noted(peer: Peer) -> str:
    """Return what the file of a complete environment says."""
    return "\n".join(" ".join(requirements) for requirements in peer.installs())


def install(python: Path, requirements: Sequence[str]) -> None:
    """Install packages into the environment of an interpreter."""
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        errors = [line.removeprefix("ERROR: ") for line in done.stderr.splitlines() if line.startswith("ERROR:")]
        raise NotInstalled(errors[-1] if errors else f"pip ended with {done.returncode}")
