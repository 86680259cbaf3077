"""Which machine was measured."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def machine() -> dict[str, str | int]:
    """Return what a figure of this machine has to be read with."""
    import torch

    facts: dict[str, str | int] = {
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load": f"{os.getloadavg()[0]:.1f}",
    }
    return facts | ({"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {})


def machine_text() -> str:
    """Return the same in one line."""
    return ", ".join(f"{name} {value}" for name, value in machine().items())


def _processor() -> str:
    """Return the name of the processor, where the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
