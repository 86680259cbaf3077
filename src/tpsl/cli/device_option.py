"""Choosing where networks compute, for the commands that train many of them."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import torch


class DeviceName(StrEnum):
    """Where both halves are."""

    cpu = "cpu"
    cuda = "cuda"


DeviceOption = Annotated[DeviceName, typer.Option(help="Where networks compute.")]


def torch_device(name: DeviceName) -> torch.device | None:
    """Return the device; None is the CPU. A GPU that is not there is an error."""
    if name == DeviceName.cpu:
        return None
    import torch

    if not torch.cuda.is_available():
        raise ValueError("--device cuda: PyTorch finds no GPU on this machine")
    return torch.device("cuda")
