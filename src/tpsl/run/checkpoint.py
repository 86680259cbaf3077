"""Checkpoints of one party: one file each, whole or absent, and only resumed if every byte is the one written.

A line with the SHA-256 of all that follows, a line of JSON that describes the checkpoint, and safetensors. Each party
keeps its own, in its own folder. On resume the parties go on from the newest step that all of them have. Of a party of
several workers the first writes and all read, so any number of workers can resume a checkpoint.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor, nn

from tpsl.files import make_private_folder, open_durably, replaced, write_atomically
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
    tensors, settings = dict[str, Tensor](), {}
    for name, (half, optimizer) in halves.items():
        state, settings[name] = optimizer.state()
        for kind, part in (("weights", half.state_dict()), ("optimizer", state)):
            tensors |= {f"{name}/{kind}/{key}": tensor for key, tensor in part.items()}
    description = {"format": _FORMAT, "step": step, "job": job_digest, "optimizer_settings": settings}
    pieces, digest = [json.dumps(description).encode() + b"\n", _as_file(tensors)], hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    make_private_folder(folder)
    with replaced(_path(folder, step)) as draft, open_durably(draft, "wb") as file:
        for piece in (digest.hexdigest().encode() + b"\n", *pieces):
            file.write(piece)
    for old in sorted(saved_steps(folder))[:-_KEEP]:
        _path(folder, old).unlink()


def _path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:09d}"


def load_checkpoint(folder: Path, step: int, job_digest: str, halves: Halves) -> None:
    """Put halves and optimisers into the state after `step` steps. Nothing is loaded before all is verified."""
    path = _path(folder, step)
    try:
        digest, _, content = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    if hashlib.sha256(content).hexdigest().encode() != digest:
        raise CheckpointError(f"{path}: is damaged, its content is not what was written")
    line, _, content = content.partition(b"\n")
    description = json.loads(line)
    if description["format"] != _FORMAT:
        raise CheckpointError(f"{path}: was written by another version of tpsl")
    if description["job"] != job_digest:
        raise CheckpointError(f"{path}: belongs to another job")
    if description["step"] != step:
        raise CheckpointError(f"{path}: holds step {description['step']}, its name says {step}")
    tensors = load(content)

    def part(prefix: str) -> dict[str, Tensor]:
        return {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}

    for name, (half, optimizer) in halves.items():
        _put(part(f"{name}/weights/"), half, path, CheckpointError)
        optimizer.load_state(part(f"{name}/optimizer/"), description["optimizer_settings"][name])


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
    _put(read_weights(path, error), half, path, error)


def _put(tensors: Mapping[str, Tensor], half: nn.Module, path: Path, error: type[ValueError]) -> None:
    try:
        half.load_state_dict(tensors)
    except RuntimeError:
        raise error(f"{path}: holds weights of another network than job and features describe") from None


def saved_steps(folder: Path) -> set[int]:
    """Return the steps a party has complete checkpoints of."""
    names = [path.name for path in folder.glob("step-*")] if folder.is_dir() else []
    return {int(name.removeprefix("step-")) for name in names if name.removeprefix("step-").isdigit()}


def forget_after(folder: Path, step: int) -> None:
    """Remove the checkpoints of later steps, from which no party goes on, and old ones that a kill has left."""
    steps = sorted(saved_steps(folder))
    kept = [each for each in steps if each <= step][-_KEEP:]
    for other in set(steps) - set(kept):
        _path(folder, other).unlink()
