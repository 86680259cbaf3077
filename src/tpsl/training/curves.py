"""Where training curves go: what a logger is to those who write one, and those for TensorBoard and MLflow."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from tpsl.files import make_private_folder, write_atomically, write_durably
from tpsl.registry import ExtensionError


@dataclass(frozen=True)
class LoggedRun:
    """What a logger or an observer is told of a run and of its own side before the first step."""

    name: str
    party: str
    folder: Path
    """The party's own folder in the run; training makes it, and refuses one that it has not made."""
    agreement: Mapping[str, str]
    """The job as names and values: both parties hold it, and nothing in it depends on labels."""


class LoggerError(ExtensionError):
    """A logger that was asked for and cannot be had; the sentence says why."""


class Sink(Protocol):
    """Where curves go. Called from one thread; may be slow, may fail."""

    name: str

    def begin(self, step: int) -> None:
        """From this step on everything comes again: what an interrupted run wrote beyond it is void."""

    def write(self, step: int, when: float, values: Mapping[str, float]) -> None:
        """Add one point, of this time since the epoch, to each of these curves."""

    def close(self, finished: bool) -> None:
        """Write what is left."""


def has_tensorboard() -> bool:
    """Whether TensorBoard is installed; nothing is imported."""
    return importlib.util.find_spec("tensorboard") is not None


class TensorBoard:
    """Writes event files into a folder, or into RUN/PARTY/tensorboard."""

    name = "TensorBoard"

    def __init__(self, run: LoggedRun, folder: str = "") -> None:
        if not has_tensorboard():
            raise LoggerError("TensorBoard is not installed: `pip install 'tpsl[tensorboard]'` gets it")
        self._folder = Path(folder) if folder else run.folder / "tensorboard"
        self._writer: Any = None

    def begin(self, step: int | None) -> None:
        """Make points from this step on invisible, and go on in a new file."""
        from torch.utils.tensorboard import SummaryWriter

        self.close()
        make_private_folder(self._folder)
        self._writer = SummaryWriter(str(self._folder), purge_step=step, flush_secs=2)
        for file in self._folder.iterdir():
            file.chmod(0o600)

    def write(self, step: int, when: float, values: Mapping[str, float]) -> None:
        """Add the points; they are in the file within seconds."""
        if self._writer is None:
            self.begin(None)
        for key, value in values.items():
            self._writer.add_scalar(key, value, step, walltime=when)

    def close(self, finished: bool = True) -> None:
        """Write what is left."""
        if self._writer is not None:
            self._writer.close()


class Mlflow:
    """Writes to an MLflow server or folder; a run that is resumed goes on where it was there."""

    name = "MLflow"

    def __init__(self, run: LoggedRun, uri: str) -> None:
        if not uri:
            raise LoggerError("MLflow needs the address of its server or store: mlflow=URI")
        # An unknown server should be an error now, not after minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        try:
            mlflow = importlib.import_module("mlflow")
            self._entities = importlib.import_module("mlflow.entities")
        except ImportError as error:
            raise LoggerError("MLflow is not installed: `pip install 'tpsl[mlflow]'` gets it") from error
        self._logged, self._run = run, ""
        try:
            _make_store(uri)
            self._client = mlflow.MlflowClient(tracking_uri=uri)
            found = self._client.get_experiment_by_name("tpsl")
            self._experiment = found.experiment_id if found else self._client.create_experiment("tpsl")
        except Exception as error:
            reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
            raise LoggerError(f"MLflow cannot be used at {_without_password(uri)} ({reason})") from error

    def begin(self, step: int) -> None:
        """Begin the run there, or go on with it: what it has stays, and points that come again are the same."""
        if not self._run:
            self._run = self._resume() or self._create()

    @property
    def _id_file(self) -> Path:
        return self._logged.folder / "mlflow-run"

    def _resume(self) -> str:
        run = self._id_file.read_text(encoding="utf-8").strip() if self._id_file.exists() else ""
        try:
            if run:
                self._client.update_run(run, status="RUNNING")
        except Exception:  # of another server, or deleted there
            return ""
        return run

    def _create(self) -> str:
        run: str = self._client.create_run(
            self._experiment, run_name=f"{self._logged.name}, {self._logged.party}"
        ).info.run_id
        self._client.log_batch(run, params=[self._entities.Param(*fact) for fact in self._logged.agreement.items()])
        write_atomically(self._id_file, run.encode())
        return run

    def write(self, step: int, when: float, values: Mapping[str, float]) -> None:
        """Add the points."""
        self.begin(step)
        metrics = [self._entities.Metric(key, value, int(when * 1000), step) for key, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self, finished: bool) -> None:
        """Say how the run ended."""
        if self._run:
            self._client.set_terminated(self._run, "FINISHED" if finished else "KILLED")


def _make_store(uri: str) -> None:
    """Make a store on this machine for its owner only: MLflow itself would take the umask as it comes."""
    place = urlsplit(uri)
    if place.scheme == "file" or not (place.scheme or uri.startswith("databricks")):
        make_private_folder(Path(unquote(place.path)))
    elif place.scheme == "sqlite":
        file = Path(place.path.removeprefix("/"))
        make_private_folder(file.parent)
        if not file.exists():
            write_durably(file, b"")  # an empty file is an empty database


def _without_password(uri: str) -> str:
    scheme, separator, rest = uri.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}" if separator else uri
