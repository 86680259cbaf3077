"""The transcript: the bytes that crossed the border, recorded on request, for attacks and audits.

Of each feature party: `sizes.i64` (records of each step), `rows.i64`, `embeddings.f32` and `gradients.f32`, raw
little-endian numbers appended step after step, and `transcript.json` (the width). They hold what that party itself
has seen. At the label party, `trajectory.f32`: the weights of the top half before each step, which a white-box
attacker is granted and nobody else gets.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

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
_FIRST = "members.0."
Described = TypeVar("Described")
Float32s = npt.NDArray[np.float32]


class _Column:
    """A file of fixed-width binary records that can be cut back to a number of records."""

    def __init__(self, path: Path, dtype: str, width: int, keep: int) -> None:
        self._path, self._dtype = path, np.dtype(dtype)
        size = keep * width * self._dtype.itemsize
        self._file = open_private(path, "r+b" if path.exists() else "w+b")
        self._file.seek(0, os.SEEK_END)
        if self._file.tell() < size:
            raise ValueError(
                f"{path}: has {self._file.tell()} bytes where the checkpoint needs {size}; "
                "a run that was not recorded from its first step cannot be recorded later"
            )
        self._file.truncate(size)
        self._file.seek(size)

    def append(self, values: npt.NDArray[np.generic]) -> None:
        content = np.ascontiguousarray(values, dtype=self._dtype)
        with naming_what_does_not_fit(self._path):
            self._file.write(content.data)

    def sync(self) -> None:
        with naming_what_does_not_fit(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file in any case, also if what is left of it cannot be written."""
        with naming_what_does_not_fit(self._path), self._file:
            self.sync()


class _Recording:
    """Some columns that grow together."""

    def __init__(self, *columns: _Column) -> None:
        self._columns = columns

    def sync(self) -> None:
        """Make everything recorded so far durable (before a checkpoint that counts on it)."""
        for column in self._columns:
            column.sync()

    def close(self) -> None:
        """Finish."""
        with ExitStack() as columns:
            for column in self._columns:
                columns.callback(column.close)


class TranscriptWriter(_Recording):
    """Records one feature party's side of the border."""

    def __init__(self, folder: Path, width: int, *, steps_before: int = 0, records_before: int = 0) -> None:
        make_private_folder(folder)
        write_atomically(folder / "transcript.json", json.dumps({"format": _FORMAT, "width": width}).encode())
        super().__init__(
            _Column(folder / "sizes.i64", "<i8", 1, steps_before),
            _Column(folder / "rows.i64", "<i8", 1, records_before),
            _Column(folder / "embeddings.f32", "<f4", width, records_before),
            _Column(folder / "gradients.f32", "<f4", width, records_before),
        )

    def record(self, rows: npt.NDArray[np.int64], embeddings: Tensor, gradients: Tensor) -> None:
        """Append one step."""
        step = (np.array([len(rows)]), rows, embeddings.cpu().numpy(), gradients.cpu().numpy())
        for column, values in zip(self._columns, step, strict=True):
            column.append(values)


class TrajectoryWriter(_Recording):
    """Records the label party's top half before each step."""

    def __init__(self, folder: Path, top: nn.Module, steps_before: int = 0) -> None:
        make_private_folder(folder)
        layout = [[name, list(p.shape)] for name, p in top.named_parameters()]
        write_atomically(folder / "trajectory.json", json.dumps({"format": _FORMAT, "layout": layout}).encode())
        self._top, width = top, sum(p.numel() for p in top.parameters())
        super().__init__(_Column(folder / "trajectory.f32", "<f4", width, steps_before))

    def record(self) -> None:
        """Append the weights as they are now."""
        weights = torch.cat([p.detach().reshape(-1) for p in self._top.parameters()])
        self._columns[0].append(weights.cpu().numpy())


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
        self.width = width = _described(folder, "transcript", "width", int)
        self._sizes = _mapped(folder / "sizes.i64", "<i8", ())
        self._rows = _mapped(folder / "rows.i64", "<i8", ())
        self._embeddings = _mapped(folder / "embeddings.f32", "<f4", (width,))
        self._gradients = _mapped(folder / "gradients.f32", "<f4", (width,))
        lengths = {len(self._rows), len(self._embeddings), len(self._gradients), int(self._sizes.sum())}
        if len(lengths) > 1:
            raise ValueError(f"{folder}: the recording is not complete, its files do not have the same length")

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def records(self) -> int:
        """How many records were seen, each as often as it was used."""
        return len(self._rows)

    def __iter__(self) -> Iterator[TranscriptStep]:
        start = 0
        for step, size in enumerate(self._sizes.tolist()):
            part = slice(start, start + size)
            yield TranscriptStep(
                step, np.array(self._rows[part]), np.array(self._embeddings[part]), np.array(self._gradients[part])
            )
            start += size


class Trajectory:
    """The label party's top half before each step, as a white-box attacker is granted it."""

    def __init__(self, folder: Path) -> None:
        layout = _described(folder, "trajectory", "layout", list)
        self._layout = [(name, tuple(shape)) for name, shape in layout]
        width = sum(int(np.prod(shape)) for _, shape in self._layout)
        self._weights = _mapped(folder / "trajectory.f32", "<f4", (width,))

    def load_into(self, top: nn.Module, step: int) -> None:
        """Give a top half the weights that its first member had before this step."""
        parts = np.split(np.array(self._weights[step]), np.cumsum([int(np.prod(s)) for _, s in self._layout])[:-1])
        state = {name: torch.from_numpy(part).reshape(s) for (name, s), part in zip(self._layout, parts, strict=True)}
        first = {name.removeprefix(_FIRST): part for name, part in state.items() if name.startswith(_FIRST)}
        held = dict(top.named_parameters())
        if {name: part.shape for name, part in first.items()} != {name: part.shape for name, part in held.items()}:
            raise ValueError("the recorded weights are those of another top half")
        with torch.no_grad():
            for name, part in first.items():
                held[name].copy_(part)


def _described(folder: Path, what: str, key: str, kind: Callable[[Any], Described]) -> Described:
    """Return what a recording says of itself; none, or one of another format, is a `ValueError` of one sentence."""
    try:
        description = json.loads(read_plain(folder / f"{what}.json"))
        written = description["format"]
        if written == _FORMAT:
            return kind(description[key])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder}: holds no {what}; record one with --set local.record_transcript=true") from error
    told = shortened(repr(written))
    raise ValueError(f"{folder}: its {what} has format {told}; this version of tpsl reads format {_FORMAT}")


def _mapped(path: Path, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Map a file of records of this shape; a file that ends within a record is an error."""
    record = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    size = path.stat().st_size if path.exists() else 0
    if size == 0 or size % record:
        raise ValueError(f"{path}: has {size} bytes, no whole number of records; the recording is not complete")
    return np.memmap(path, dtype=dtype, mode="r", shape=(size // record, *shape))
