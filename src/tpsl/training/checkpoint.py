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
Halves = Mapping[str, tuple[nn.Module, HalfOptimizer]]


class CheckpointError(ValueError):
    """A checkpoint that does not fit or was damaged; the message names the file."""


def save_checkpoint(folder: Path, step: int, job_digest: str, halves: Halves, workers: Workers = ALONE) -> None:
    """Write the state after `step` steps; older checkpoints but the last two are removed.

    Of several workers, which all have this state, the first writes it.
    """
    if not workers.is_first:
        return
    target = folder / f"step-{step:09d}"
    draft = draft_of(target)
    _tidy(folder)
    make_private_folder(draft)
    try:
        _write(draft, step, job_digest, halves)
    except BaseException:
        shutil.rmtree(draft)  # on a full disk its part of the space is needed
        raise
    _discard(target)
    draft.rename(target)
    sync_folder(folder)
    _tidy(folder)


def _write(folder: Path, step: int, job_digest: str, halves: Halves) -> None:
    """Write the files of a checkpoint, each of them durably."""
    digests, settings = {}, {}
    for name, (half, optimizer) in halves.items():
        state, settings[name] = optimizer.state()
        for file, tensors in ((f"{name}.safetensors", half.state_dict()), (f"{name}-optimizer.safetensors", state)):
            content = as_file(tensors)
            write_durably(folder / file, content)
            digests[file] = hashlib.sha256(content).hexdigest()
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


def load_checkpoint(folder: Path, step: int, job_digest: str, halves: Halves, workers: Workers = ALONE) -> None:
    """Put halves and optimisers into the state after `step` steps; what a killed process left is removed.

    Nothing is loaded before all files are verified. All workers call this together.
    """
    target = folder / f"step-{step:09d}"
    expected = _read(target / "checkpoint.json.sha256").decode(errors="replace")
    _verify(target / "checkpoint.json", expected)
    description = json.loads(_read(target / "checkpoint.json"))
    if description.get("format") != _FORMAT:
        raise CheckpointError(f"{target}: was written by another version of tpsl")
    if description["job"] != job_digest:
        raise CheckpointError(f"{target}: belongs to another job")
    if description["step"] != step:
        raise CheckpointError(f"{target}: holds step {description['step']}, its name says {step}")
    for file, digest in description["sha256"].items():
        _verify(target / file, digest)
    for name, (half, optimizer) in halves.items():
        try:
            half.load_state_dict(_tensors(target / f"{name}.safetensors"))
        except RuntimeError as error:
            raise CheckpointError(f"{target}: holds the weights of another {name} half than that of now") from error
        optimizer.load_state(
            _tensors(target / f"{name}-optimizer.safetensors"), description["optimizer_settings"][name]
        )
    workers.barrier()
    if workers.is_first:
        _tidy(folder)


def write_weights(path: Path, half: nn.Module, workers: Workers = ALONE) -> None:
    """Write the weights of a half, the whole file or none; of several workers, which all have them, the first does."""
    if workers.is_first:
        write_atomically(path, as_file(half.state_dict()))


def as_file(tensors: Mapping[str, Tensor]) -> bytes:
    """Return the content of a safetensors file of tensors on any device; each has memory of its own (`Members`)."""
    return save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})


def read_weights(path: Path, error: type[ValueError]) -> dict[str, Tensor]:
    """Return the tensors of a file of weights; one that cannot be read, or is damaged, is this error."""
    try:
        return _tensors(path)
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


def _tensors(path: Path) -> dict[str, Tensor]:
    """Return copies of the tensors of a file, which may change afterwards."""
    path.open("rb").close()  # Of a file that is not there the library's own error has no `strerror`.
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118


def _verify(file: Path, digest: str) -> None:
    """Raise unless the content of a file of a checkpoint is what was written."""
    with _reading(file), file.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != digest:
        raise CheckpointError(f"{file}: is damaged, its content is not what was written")


def _read(file: Path) -> bytes:
    with _reading(file):
        return file.read_bytes()


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror})") from error


def saved_steps(folder: Path) -> set[int]:
    """Return the steps a party has complete checkpoints of."""
    names = [path.name for path in folder.glob("step-*")] if folder.is_dir() else []
    return {int(name.removeprefix("step-")) for name in names if name.removeprefix("step-").isdigit()}


def forget_after(folder: Path, step: int) -> None:
    """Remove the checkpoints of later steps: the parties agreed to go on from this one."""
    for later in saved_steps(folder):
        if later > step:
            _discard(folder / f"step-{later:09d}")
