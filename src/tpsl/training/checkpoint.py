"""Checkpoints of one party: safetensors and JSON, whole or absent, and only resumed if every byte is the one written.

Each party keeps its own, in its own folder. On resume the parties go on from the newest step that all of them have.
Of a party of several workers the first writes and all read, so any number of workers can resume a checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from tpsl.files import draft_of, make_private_folder, sync_folder, write_atomically, write_durably
from tpsl.models.optimizer import HalfOptimizer
from tpsl.workers import ALONE, Workers

BEST = "best"
"""The folder of a party's checkpoints of the best states so far, beside those that a run goes on from."""
_KEEP = 2
_FORMAT = 1
"""What reads a checkpoint must know its format; any change of the files raises the number."""
_DESCRIPTION = "checkpoint.json"
Halves = Mapping[str, tuple[nn.Module, HalfOptimizer]]


class CheckpointError(ValueError):
    """A checkpoint that does not fit or was damaged; the message names the file."""


def save_checkpoint(folder: Path, step: int, job_digest: str, halves: Halves, workers: Workers = ALONE) -> None:
    """Write the state after `step` steps; older checkpoints but the last two are removed.

    Of several workers, which all have this state, the first writes it.
    """
    if not workers.is_first:
        return
    with written_folder(_path(folder, step)) as draft:
        digests, settings = {}, {}
        for name, (half, optimizer) in halves.items():
            state, settings[name] = optimizer.state()
            for file, tensors in ((f"{name}.safetensors", half.state_dict()), (f"{name}-optimizer.safetensors", state)):
                digests[file] = _write(draft / file, _as_file(tensors))
        description = {"format": _FORMAT, "step": step, "job": job_digest, "sha256": digests}
        written = json.dumps({**description, "optimizer_settings": settings}, indent=1).encode()
        write_durably(draft / f"{_DESCRIPTION}.sha256", _write(draft / _DESCRIPTION, written).encode())
    for old in sorted(saved_steps(folder))[:-_KEEP]:
        _discard(_path(folder, old))


def _path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:09d}"


def _write(file: Path, content: bytes) -> str:
    """Write a file durably, and return the digest of its content."""
    write_durably(file, content)
    return hashlib.sha256(content).hexdigest()


@contextmanager
def written_folder(target: Path) -> Iterator[Path]:
    """Give the place of a new folder, which replaces `target` when the block ends: a crash leaves the old or the new.

    What is in it must be written durably. An error removes it; the draft of a process that was killed goes when the run
    is started again (`RunFolder.started`).
    """
    draft = draft_of(target)
    make_private_folder(draft)
    try:
        yield draft
    except BaseException:
        shutil.rmtree(draft)  # on a full disk its part of the space is needed
        raise
    sync_folder(draft)
    _discard(target)
    draft.rename(target)
    sync_folder(target.parent)


def _discard(folder: Path) -> None:
    """Remove a folder so that a crash never leaves a part of it under its name."""
    if folder.exists():
        leaving = folder.with_name(f".{folder.name}.old")
        folder.rename(leaving)
        shutil.rmtree(leaving)


def load_checkpoint(folder: Path, step: int, job_digest: str, halves: Halves) -> None:
    """Put halves and optimisers into the state after `step` steps. Nothing is loaded before all files are verified."""
    target = _path(folder, step)
    description = _verified(target)
    if description["job"] != job_digest:
        raise CheckpointError(f"{target}: belongs to another job")
    if description["step"] != step:
        raise CheckpointError(f"{target}: holds step {description['step']}, its name says {step}")
    for name, (half, optimizer) in halves.items():
        load_weights(half, target / f"{name}.safetensors", CheckpointError)
        state = read_weights(target / f"{name}-optimizer.safetensors", CheckpointError)
        optimizer.load_state(state, description["optimizer_settings"][name])


def _verified(checkpoint: Path) -> dict[str, Any]:
    """Return what a checkpoint says of itself; raise unless the content of every file is what was written."""

    def verify(name: str, digest: str) -> None:
        with (checkpoint / name).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                raise CheckpointError(f"{checkpoint / name}: is damaged, its content is not what was written")

    try:
        verify(_DESCRIPTION, (checkpoint / f"{_DESCRIPTION}.sha256").read_bytes().decode(errors="replace"))
        description: dict[str, Any] = json.loads((checkpoint / _DESCRIPTION).read_bytes())
        if description.get("format") != _FORMAT:
            raise CheckpointError(f"{checkpoint}: was written by another version of tpsl")
        for name, digest in description["sha256"].items():
            verify(name, digest)
    except OSError as error:
        raise CheckpointError(f"{error.filename}: cannot be read ({error.strerror})") from error
    return description


def write_weights(path: Path, half: nn.Module, workers: Workers = ALONE) -> None:
    """Write the weights of a half, the whole file or none; of several workers, which all have them, the first does."""
    if workers.is_first:
        write_atomically(path, _as_file(half.state_dict()))


def _as_file(tensors: Mapping[str, Tensor]) -> bytes:
    """Return the content of a safetensors file of tensors on any device; each has memory of its own (`Members`)."""
    return save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})


def read_weights(path: Path, error: type[ValueError]) -> dict[str, Tensor]:
    """Return the tensors of a file of weights; one that cannot be read, or is damaged, is this error."""
    try:
        path.open("rb").close()  # of a file that is not there the library's own error has no `strerror`
        with safe_open(path, "pt") as file:
            # Copies: the file may change afterwards.
            return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except OSError as reason:
        raise error(f"{path}: cannot be read ({reason.strerror})") from reason
    except SafetensorError as reason:
        raise error(f"{path}: is damaged ({reason})") from reason


def load_weights(half: nn.Module, path: Path, error: type[ValueError]) -> None:
    """Put the weights in a file into a half; a file that is damaged, or of another network, is this error."""
    try:
        half.load_state_dict(read_weights(path, error))
    except RuntimeError:
        raise error(f"{path}: holds weights of another network than job and features describe") from None


def saved_steps(folder: Path) -> set[int]:
    """Return the steps a party has complete checkpoints of."""
    names = [path.name for path in folder.glob("step-*")] if folder.is_dir() else []
    return {int(name.removeprefix("step-")) for name in names if name.removeprefix("step-").isdigit()}


def forget_after(folder: Path, step: int) -> None:
    """Remove the checkpoints of later steps: the parties agreed to go on from this one."""
    for later in saved_steps(folder):
        if later > step:
            _discard(_path(folder, later))
