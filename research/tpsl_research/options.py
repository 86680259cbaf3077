"""Options that the commands of the laboratory share: which data, what is permitted, where networks compute."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    import torch

    from tpsl.data.config import DataConfig

NEEDS_PATH = ("criteo", "avazu")

PathArgument = Annotated[Path | None, typer.Argument(help="The data file, for criteo and avazu.")]
DataOption = Annotated[str, typer.Option(help="Data set: flights, synthetic, criteo or avazu.", metavar="NAME")]
NotPrivateFlag = Annotated[
    bool, typer.Option("--not-private", help="Permit what protects nothing: no noise, seeded noise, an infinite ε.")
]
DeviceOption = Annotated[Literal["cpu", "cuda"], typer.Option(help="Where networks compute.")]


def data_fields(name: str, path: Path | None) -> dict[str, Any]:
    """Return the data part of a job, or say that a path is missing or useless."""
    if name in NEEDS_PATH and path is None:
        raise ValueError(f"--data {name} needs the path of Kaggle's file")
    if name not in NEEDS_PATH and path is not None:
        raise ValueError(f"--data {name} takes no path, got {path}")
    return {"source": name, **({"path": str(path)} if path else {})}


def require_not_private(data: DataConfig, not_private: bool) -> None:
    """Refuse an experiment that contains runs without noise, or with seeded noise, on anything but public data."""
    if data.source not in ("flights", "synthetic") and not not_private:
        raise ValueError(
            f"this experiment trains without noise, or with noise from a seed, on {data.source}: that is NOT PRIVATE, "
            "and for data that does not come with the package it needs --not-private"
        )


def torch_device(name: str) -> torch.device | None:
    """Return the device; None is the CPU. A GPU that is not there is an error."""
    if name == "cpu":
        return None
    import torch

    if not torch.cuda.is_available():
        raise ValueError("--device cuda: PyTorch finds no GPU on this machine")
    return torch.device("cuda")
