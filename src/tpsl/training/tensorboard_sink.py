"""Curves for TensorBoard, in a folder of the party's own."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpsl.files import make_private_folder
from tpsl.training.sink import LoggedRun, LoggerError


def has_tensorboard() -> bool:
    """Whether TensorBoard is installed; nothing is imported."""
    return importlib.util.find_spec("tensorboard") is not None


class TensorBoard:
    """Writes event files into a folder."""

    name = "TensorBoard"

    def __init__(self, folder: Path) -> None:
        if not has_tensorboard():
            raise LoggerError("TensorBoard is not installed: `pip install 'tpsl[tensorboard]'` gets it")
        self._folder = folder
        self._writer: Any = None

    def begin(self, step: int) -> None:
        """Make points from this step on invisible, and go on in a new file."""
        self._open(step)

    def _open(self, purge_step: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        if self._writer is not None:
            self._writer.close()
        make_private_folder(self._folder)
        self._writer = SummaryWriter(str(self._folder), purge_step=purge_step, flush_secs=2)
        for file in self._folder.iterdir():
            file.chmod(0o600)

    def write(self, step: int, when: float, values: Mapping[str, float]) -> None:
        """Add the points; they are in the file within seconds."""
        if self._writer is None:
            self._open(None)
        for key, value in values.items():
            self._writer.add_scalar(key, value, step, walltime=when)

    def close(self, finished: bool) -> None:
        """Write what is left."""
        if self._writer is not None:
            self._writer.close()


def tensorboard(run: LoggedRun, folder: str = "") -> TensorBoard:
    """Return the sink that writes into this folder, or into RUN/PARTY/tensorboard."""
    return TensorBoard(Path(folder) if folder else run.folder / "tensorboard")
