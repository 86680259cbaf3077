"""Curves for MLflow, on a server or in a folder of the party's own."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tpsl.files import make_private_folder, write_atomically, write_durably
from tpsl.training.sink import LoggedRun, LoggerError


class Mlflow:
    """Writes to an MLflow server or folder; a run that is resumed goes on where it was there."""

    name = "MLflow"

    def __init__(self, uri: str, name: str, facts: Mapping[str, str], remembered: Path) -> None:
        # An unknown server should be an error now, not after minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        try:
            mlflow = importlib.import_module("mlflow")
            self._entities = importlib.import_module("mlflow.entities")
        except ImportError as error:
            raise LoggerError("MLflow is not installed: `pip install 'tpsl[mlflow]'` gets it") from error
        self._name, self._facts, self._remembered = name, facts, remembered
        self._run: str | None = None
        try:
            _make_store(uri)
            self._client = mlflow.MlflowClient(tracking_uri=uri)
            found = self._client.get_experiment_by_name("tpsl")
            self._experiment = found.experiment_id if found else self._client.create_experiment("tpsl")
        except Exception as error:
            raise LoggerError(f"MLflow cannot be used at {_without_password(uri)} ({_first_line(error)})") from error

    def begin(self, step: int) -> None:
        """Begin the run there, or go on with it: what it has stays, and points that come again are the same."""
        if self._run is None:
            self._run = self._resumed() or self._created()

    def _resumed(self) -> str | None:
        if not self._remembered.exists():
            return None
        run: str = self._remembered.read_text(encoding="utf-8").strip()
        try:
            self._client.update_run(run, status="RUNNING")
        except Exception:  # of another server, or deleted there
            return None
        return run

    def _created(self) -> str:
        run: str = self._client.create_run(self._experiment, run_name=self._name).info.run_id
        self._client.log_batch(run, params=[self._entities.Param(*fact) for fact in self._facts.items()])
        write_atomically(self._remembered, run.encode())
        return run

    def write(self, step: int, when: float, values: Mapping[str, float]) -> None:
        """Add the points."""
        self.begin(step)
        metrics = [self._entities.Metric(key, value, int(when * 1000), step) for key, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self, finished: bool) -> None:
        """Say how the run ended."""
        if self._run is not None:
            self._client.set_terminated(self._run, "FINISHED" if finished else "KILLED")


def mlflow(run: LoggedRun, uri: str) -> Mlflow:
    """Return the sink that writes to the server or the store at this address."""
    if not uri:
        raise LoggerError("MLflow needs the address of its server or store: mlflow=URI")
    return Mlflow(uri, f"{run.name}, {run.party}", run.agreement, run.folder / "mlflow-run")


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


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


def _without_password(uri: str) -> str:
    scheme, separator, rest = uri.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}" if separator else uri
