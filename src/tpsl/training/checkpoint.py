"""Checkpoints of one party: safetensors and JSON, whole or absent, and only resumed if every byte is the one written.

Each party keeps its own, in its own folder. On resume the parties go on from the newest step that all of them have.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from tpsl.files import make_private_folder, sync_folder, write_durably
from tpsl.models.optimizer import HalfOptimizer

BEST = "best"
"""The folder of a party's checkpoints of the best states so far, beside those that a run goes on from."""
_KEEP = 2
_FORMAT = 2
"""What reads a checkpoint must know its format; any change of the files raises the number."""
Halves = Mapping[str, tuple[nn.Module, HalfOptimizer]]


class CheckpointError(ValueError):
    """A checkpoint that does not fit or was damaged; the message names the file."""


def save_checkpoint(folder: Path, step: int, job_digest: str, halves: Halves) -> None:
    """Write the state after `step` steps; older checkpoints but the last two are removed."""
    target = folder / f"step-{step:09d}"
    beside = folder / f".{target.name}.new"
    _tidy(folder)
    make_private_folder(beside)
    try:
        _write(beside, step, job_digest, halves)
    except BaseException:
        shutil.rmtree(beside)  # on a full disk its part of the space is needed
        raise
    _discard(target)
    beside.rename(target)
    sync_folder(folder)
    _tidy(folder)


def _write(folder: Path, step: int, job_digest: str, halves: Halves) -> None:
    """Write the files of a checkpoint."""
    digests: dict[str, str] = {}
    settings: dict[str, str] = {}
    for name, (half, optimizer) in halves.items():
        state, settings[name] = optimizer.state()
        for file, tensors in ((f"{name}.safetensors", half.state_dict()), (f"{name}-optimizer.safetensors", state)):
            content = save(tensors)
            digests[file] = hashlib.sha256(content).hexdigest()
            write_durably(folder / file, content)
    description = {
        "format": _FORMAT,
        "step": step,
        "job": job_digest,
        "sha256": digests,
        "optimizer_settings": settings,
    }
    content = json.dumps(description, indent=1).encode()
    write_durably(folder / "checkpoint.json", content)
    write_durably(folder / "checkpoint.json.sha256", hashlib.sha256(content).hexdigest().encode())
    sync_folder(folder)


def _tidy(folder: Path) -> None:
    """Remove checkpoints but the last two, and what a process that was killed left."""
    for leftover in folder.glob(".step-*"):
        shutil.rmtree(leftover)
    for old in sorted(saved_steps(folder))[:-_KEEP]:
        _discard(folder / f"step-{old:09d}")


def _discard(checkpoint: Path) -> None:
    """Remove a checkpoint so that a crash never leaves a part of it under its name."""
    if checkpoint.exists():
        leaving = checkpoint.with_name(f".{checkpoint.name}.old")
        checkpoint.rename(leaving)
        shutil.rmtree(leaving)


def load_checkpoint(folder: Path, step: int, job_digest: str, halves: Halves) -> None:
    """Put halves and optimisers into the state after `step` steps; what a killed process left is removed."""
    target = folder / f"step-{step:09d}"
    expected = _read(target / "checkpoint.json.sha256")
    description = json.loads(_verified(target / "checkpoint.json", expected.decode(errors="replace")))
    if description.get("format") != _FORMAT:
        raise CheckpointError(f"{target}: was written by another version of tpsl")
    if description["job"] != job_digest:
        raise CheckpointError(f"{target}: belongs to another job")
    if description["step"] != step:
        raise CheckpointError(f"{target}: holds step {description['step']}, its name says {step}")
    contents = {name: _verified(target / name, digest) for name, digest in description["sha256"].items()}
    for name, (half, optimizer) in halves.items():
        try:
            half.load_state_dict(load(contents[f"{name}.safetensors"]))
        except RuntimeError as error:
            raise CheckpointError(f"{target}: holds the weights of another {name} half than that of now") from error
        optimizer.load_state(load(contents[f"{name}-optimizer.safetensors"]), description["optimizer_settings"][name])
    _tidy(folder)


def read_weights(path: Path, error: type[ValueError]) -> dict[str, Tensor]:
    """Return the tensors of a file of weights; one that cannot be read, or is damaged, is this error."""
    try:
        return load(path.read_bytes())
    except OSError as reason:
        raise error(f"{path}: cannot be read ({reason.strerror})") from reason
    except SafetensorError as reason:
        raise error(f"{path}: is damaged ({reason})") from reason


def load_weights(half: nn.Module, path: Path, error: type[ValueError]) -> None:
    """Put the weights in a file into a half; a file that is damaged, or of another network, is this error."""
    weights = read_weights(path, error)
    try:
        half.load_state_dict(weights)
    except RuntimeError:
        raise error(f"{path}: holds weights of another network than job and features describe") from None


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror})") from error


def _verified(file: Path, digest: str) -> bytes:
    """Return the content of a file of a checkpoint if it is what was written."""
    content = _read(file)
    if hashlib.sha256(content).hexdigest() != digest:
        raise CheckpointError(f"{file}: is damaged, its content is not what was written")
    return content


def saved_steps(folder: Path) -> set[int]:
    """Return the steps a party has complete checkpoints of."""
    names = [path.name for path in folder.glob("step-*")] if folder.is_dir() else []
    return {int(name.removeprefix("step-")) for name in names if name.removeprefix("step-").isdigit()}


def forget_after(folder: Path, step: int) -> None:
    """Remove the checkpoints of later steps: the parties agreed to go on from this one."""
    for later in saved_steps(folder):
        if later > step:
            _discard(folder / f"step-{later:09d}")
