"""Checkpoints of one party: safetensors and JSON, whole or absent, and only resumed if every byte is the one written.

Each party keeps its own, in its own folder. On resume the parties go on from the newest step that all of them have.

Of a party of several workers worker 0 writes it, and of sharded tables each worker its own rows, into the same files.
So a checkpoint does not tell how many workers there were, nor whether tables were sharded; any others can resume it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from torch import Tensor, nn

from tpsl.files import draft_of, make_private_folder, replaced, sync_folder, write_durably
from tpsl.models.optimizer import HalfOptimizer
from tpsl.models.sharded_table import shards_of
from tpsl.training.tensor_file import Piece, ShardOf, is_intact, read_tensors, whole, write_tensors
from tpsl.workers import ALONE, Workers

BEST = "best"
"""The folder of a party's checkpoints of the best states so far, beside those that a run goes on from."""
_KEEP = 2
_FORMAT = 3
"""What reads a checkpoint must know its format; any change of the files raises the number."""
Halves = Mapping[str, tuple[nn.Module, HalfOptimizer]]


class CheckpointError(ValueError):
    """A checkpoint that does not fit or was damaged; the message names the file."""


def save_checkpoint(folder: Path, step: int, job_digest: str, halves: Halves, workers: Workers = ALONE) -> None:
    """Write the state after `step` steps, by all workers together; older checkpoints but the last two are removed.

    It is there when worker 0 returns.
    """
    target = folder / f"step-{step:09d}"
    beside = draft_of(target)
    if not workers.is_first:
        _write_tensors(beside, halves, workers)
        return
    _tidy(folder)
    make_private_folder(beside)
    try:
        _write(beside, step, job_digest, halves, workers)
    except BaseException:
        shutil.rmtree(beside)  # on a full disk its part of the space is needed
        raise
    _discard(target)
    beside.rename(target)
    sync_folder(folder)
    _tidy(folder)


def _write(folder: Path, step: int, job_digest: str, halves: Halves, workers: Workers) -> None:
    """Write the files of a checkpoint."""
    pieces, settings = _write_tensors(folder, halves, workers)
    description = {
        "format": _FORMAT,
        "step": step,
        "job": job_digest,
        "pieces": pieces,
        "optimizer_settings": settings,
    }
    content = json.dumps(description, indent=1).encode()
    write_durably(folder / "checkpoint.json", content)
    write_durably(folder / "checkpoint.json.sha256", hashlib.sha256(content).hexdigest().encode())
    sync_folder(folder)


def _write_tensors(folder: Path, halves: Halves, workers: Workers) -> tuple[dict[str, list[Piece]], dict[str, str]]:
    """Write what this worker has of the files of tensors; return their pieces and the settings of the optimisers."""
    pieces: dict[str, list[Piece]] = {}
    settings: dict[str, str] = {}
    for name, (half, optimizer) in halves.items():
        if not (workers.is_first or shards_of(half)):
            continue
        state, settings[name] = optimizer.state()
        weights, memory = f"{name}.safetensors", f"{name}-optimizer.safetensors"
        pieces[weights] = write_tensors(folder / weights, half.state_dict(), shards_of(half).get, workers)
        pieces[memory] = write_tensors(folder / memory, state, optimizer.shard_of, workers)
    return pieces, settings


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

    All workers call this together. Each verifies a part of the files; nothing is loaded before all is verified.
    """
    target = folder / f"step-{step:09d}"
    expected = _read(target / "checkpoint.json.sha256")
    description = json.loads(_verified(target / "checkpoint.json", expected.decode(errors="replace")))
    if description.get("format") != _FORMAT:
        raise CheckpointError(f"{target}: was written by another version of tpsl")
    if description["job"] != job_digest:
        raise CheckpointError(f"{target}: belongs to another job")
    if description["step"] != step:
        raise CheckpointError(f"{target}: holds step {description['step']}, its name says {step}")
    for file, pieces in description["pieces"].items():
        _verify(target / file, [Piece(*piece) for piece in pieces], workers)
    workers.wait_for_all()
    for name, (half, optimizer) in halves.items():
        try:
            half.load_state_dict(read_tensors(target / f"{name}.safetensors", shards_of(half).get))
        except RuntimeError as error:
            raise CheckpointError(f"{target}: holds the weights of another {name} half than that of now") from error
        state = read_tensors(target / f"{name}-optimizer.safetensors", optimizer.shard_of)
        optimizer.load_state(state, description["optimizer_settings"][name])
    if workers.is_first:
        _tidy(folder)


def write_weights(path: Path, half: nn.Module, workers: Workers = ALONE) -> None:
    """Write the weights of a half, by all workers together: the whole file or none, for whoever predicts with it.

    It is there when worker 0 returns.
    """
    weights, shards = half.state_dict(), shards_of(half)
    if not workers.is_first:
        write_tensors(draft_of(path), weights, shards.get, workers)
        return
    with replaced(path) as draft:
        write_tensors(draft, weights, shards.get, workers)


def read_weights(path: Path, error: type[ValueError], shard_of: ShardOf = whole) -> dict[str, Tensor]:
    """Return the tensors of a file of weights; one that cannot be read, or is damaged, is this error."""
    try:
        return read_tensors(path, shard_of)
    except OSError as reason:
        raise error(f"{path}: cannot be read ({reason.strerror})") from reason
    except SafetensorError as reason:
        raise error(f"{path}: is damaged ({reason})") from reason


def load_weights(half: nn.Module, path: Path, error: type[ValueError]) -> None:
    """Put the weights in a file into a half; a file that is damaged, or of another network, is this error."""
    try:
        half.load_state_dict(read_weights(path, error, shards_of(half).get))
    except RuntimeError:
        raise error(f"{path}: holds weights of another network than job and features describe") from None


def _verified(file: Path, digest: str) -> bytes:
    """Return the content of a file of a checkpoint if it is what was written."""
    content = _read(file)
    if hashlib.sha256(content).hexdigest() != digest:
        raise _damaged(file)
    return content


def _verify(file: Path, pieces: Sequence[Piece], workers: Workers) -> None:
    """Raise unless a file is made up of these pieces, and those that fall to this worker are what was written."""
    stops = [0, *(piece.stop for piece in pieces)]
    with _reading(file):
        is_whole = [*(piece.start for piece in pieces), file.stat().st_size] == stops
        if not is_whole or not all(is_intact(file, piece) for piece in pieces[workers.number :: workers.count]):
            raise _damaged(file)


def _read(file: Path) -> bytes:
    with _reading(file):
        return file.read_bytes()


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror})") from error


def _damaged(file: Path) -> CheckpointError:
    return CheckpointError(f"{file}: is damaged, its content is not what was written")


def saved_steps(folder: Path) -> set[int]:
    """Return the steps a party has complete checkpoints of."""
    names = [path.name for path in folder.glob("step-*")] if folder.is_dir() else []
    return {int(name.removeprefix("step-")) for name in names if name.removeprefix("step-").isdigit()}


def forget_after(folder: Path, step: int) -> None:
    """Remove the checkpoints of later steps: the parties agreed to go on from this one."""
    for later in saved_steps(folder):
        if later > step:
            _discard(folder / f"step-{later:09d}")
