"""Choosing a data set on the command line, for the commands that take one: a name, and a path where it needs one."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpsl.cli.console import notice

if TYPE_CHECKING:
    from tpsl.training import Job


class DataName(StrEnum):
    """Data sets with a name; your own tables are described in a job file."""

    flights = "flights"
    synthetic = "synthetic"
    criteo = "criteo"
    avazu = "avazu"


NEEDS_PATH = (DataName.criteo, DataName.avazu)


def data_fields(name: DataName, path: Path | None) -> dict[str, Any]:
    """Return the data part of a job, or say that a path is missing or useless."""
    if name in NEEDS_PATH and path is None:
        raise ValueError(f"--data {name} needs the path of Kaggle's file")
    if name not in NEEDS_PATH and path is not None:
        raise ValueError(f"--data {name} takes no path, got {path}")
    return {"source": str(name), **({"path": str(path)} if path else {})}


def tell_what_is_trusted(job: Job) -> None:
    """Say what the split assumes of the data that nobody can check, if anything; `tpsl train` does so by itself."""
    from tpsl.data.dataset import taken_on_trust

    if trusted := taken_on_trust(job.data):
        notice(trusted)
