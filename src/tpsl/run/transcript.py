"""The transcript: the bytes that crossed the border, recorded on request, for attacks and audits.

Of each feature party: `sizes.i64` (records of each step), `rows.i64`, `embeddings.f32` and `gradients.f32`, raw
little-endian numbers appended step after step, and `transcript.json` (the width). They hold what that party itself
has seen. At the label party, `trajectory.f32`: the weights of the top half before each step, which a white-box
attacker is granted and nobody else gets.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tpsl.files import (
    make_private_folder,
    naming_what_does_not_fit,
    open_private,
    read_plain,
    shortened,
    write_atomically,
)

RECORDED_STEPS = 64
"""How many steps, from the first, a run in one process records unless it is told otherwise: enough for all attacks."""

_FORMAT = 1
_TYPES: dict[str, np.dtype[Any]] = {".i64": np.dtype("<i8"), ".f32": np.dtype("<f4")}
Float32s = npt.NDArray[np.float32]


class _Recording:
    """Files of binary records that grow together, after they were cut back to what a checkpoint counts on."""

    def __init__(self, folder: Path, what: str, width: int, columns: Mapping[str, tuple[int, int]]) -> None:
        """`columns` are the files by name, each with the numbers in a record and how many records are kept."""
        make_private_folder(folder)
        write_atomically(folder / f"{what}.json", json.dumps({"format": _FORMAT, "width": width}).encode())
        self._files = {folder / name: _cut_back(folder / name, width * keep) for name, (width, keep) in columns.items()}

    def _append(self, *columns: npt.NDArray[np.generic]) -> None:
        for (path, file), values in zip(self._files.items(), columns, strict=True):
            content = np.ascontiguousarray(values, dtype=_TYPES[path.suffix])
            with naming_what_does_not_fit(path):
                file.write(content.data)

    def sync(self) -> None:
        """Make everything recorded so far durable (before a checkpoint that counts on it)."""
        for path, file in self._files.items():
            with naming_what_does_not_fit(path):
                file.flush()
                os.fsync(file.fileno())

    def close(self) -> None:
        """Finish; the files are closed in any case, also if what is left of them cannot be written."""
        with ExitStack() as files:
            for path, file in self._files.items():
                files.enter_context(naming_what_does_not_fit(path))
                files.enter_context(file)
            self.sync()


def _cut_back(path: Path, numbers: int) -> IO[bytes]:
    """Open a file to append to it, cut back to this many numbers."""
    size = numbers * _TYPES[path.suffix].itemsize
    file = open_private(path, "r+b" if path.exists() else "w+b")
    there = file.seek(0, os.SEEK_END)
    if there < size:
        raise ValueError(
            f"{path}: has {there} bytes where the checkpoint needs {size}; "
            "a run that was not recorded from its first step cannot be recorded later"
        )
    file.truncate(size)
    file.seek(size)
    return file


class TranscriptWriter(_Recording):
    """Records one feature party's side of the border."""

    def __init__(self, folder: Path, width: int, steps_before: int = 0, records_before: int = 0) -> None:
        widths = {"rows.i64": 1, "embeddings.f32": width, "gradients.f32": width}
        columns = {"sizes.i64": (1, steps_before)} | {name: (w, records_before) for name, w in widths.items()}
        super().__init__(folder, "transcript", width, columns)

    def record(self, rows: npt.NDArray[np.int64], embeddings: Tensor, gradients: Tensor) -> None:
        """Append one step."""
        self._append(np.array([len(rows)]), rows, embeddings.cpu().numpy(), gradients.cpu().numpy())


class TrajectoryWriter(_Recording):
    """Records the label party's top half before each step."""

    def __init__(self, folder: Path, top: nn.Module, steps_before: int = 0) -> None:
        self._top, width = top, sum(p.numel() for p in top.parameters())
        super().__init__(folder, "trajectory", width, {"trajectory.f32": (width, steps_before)})

    def record(self) -> None:
        """Append the weights as they are now."""
        self._append(nn.utils.parameters_to_vector(self._top.parameters()).detach().cpu().numpy())


@dataclass(frozen=True)
class TranscriptStep:
    """What one feature party saw in one step."""

    step: int
    rows: npt.NDArray[np.int64]
    embeddings: Float32s
    gradients: Float32s


class Transcript:
    """A recorded transcript, read step by step from disk: memory stays that of one batch."""

    def __init__(self, folder: Path) -> None:
        self.width = width = _read_width(folder, "transcript")
        self._sizes = _map_numbers(folder / "sizes.i64")
        self._columns = [_map_numbers(folder / "rows.i64")]
        self._columns += [_map_numbers(folder / name, width) for name in ("embeddings.f32", "gradients.f32")]
        if {len(column) for column in self._columns} != {int(self._sizes.sum())}:
            raise ValueError(f"{folder}: the recording is not complete, its files do not have the same length")

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def records(self) -> int:
        """How many records were seen, each as often as it was used."""
        return len(self._columns[0])

    def __iter__(self) -> Iterator[TranscriptStep]:
        start = 0
        for step, size in enumerate(self._sizes.tolist()):
            yield TranscriptStep(step, *(np.array(column[start : start + size]) for column in self._columns))
            start += size


class Trajectory:
    """The label party's top half before each step, as a white-box attacker is granted it."""

    def __init__(self, folder: Path) -> None:
        self._weights = _map_numbers(folder / "trajectory.f32", _read_width(folder, "trajectory"))

    @torch.no_grad()
    def load_into(self, top: nn.Module, step: int) -> None:
        """Give a top half the weights that its first member had before this step."""
        size, width = sum(p.numel() for p in top.parameters()), self._weights.shape[1]
        if width % size:
            raise ValueError("the recorded weights are those of another top half")
        recorded = torch.from_numpy(np.array(self._weights[step, :size]))
        nn.utils.vector_to_parameters(recorded.to(next(top.parameters()).device), top.parameters())


def _read_width(folder: Path, what: str) -> int:
    """Return how many numbers a record has; no recording, or one of another format, is a `ValueError`."""
    try:
        description = json.loads(read_plain(folder / f"{what}.json"))
        written = description["format"]
        if written == _FORMAT:
            return int(description["width"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder}: holds no {what}; record one with --set local.record_transcript=true") from error
    told = shortened(repr(written))
    raise ValueError(f"{folder}: its {what} has format {told}; this version of tpsl reads format {_FORMAT}")


def _map_numbers(path: Path, width: int | None = None) -> npt.NDArray[Any]:
    """Map a file of numbers, or of records of this many numbers; a file that ends within a record is an error."""
    dtype = _TYPES[path.suffix]
    record, size = dtype.itemsize * (width or 1), path.stat().st_size if path.exists() else 0
    if size == 0 or size % record:
        raise ValueError(f"{path}: has {size} bytes, no whole number of records; the recording is not complete")
    return np.memmap(path, dtype=dtype, mode="r", shape=(size // record, *([] if width is None else [width])))
