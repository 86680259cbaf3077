"""Where the curves of a training go, shared by `train`, `label serve` and `feature join`."""

from __future__ import annotations

from typing import Annotated

import typer

LogOption = Annotated[
    list[str] | None,
    typer.Option(
        "--log",
        metavar="NAME[=ARG]",
        help="Where curves go: tensorboard, mlflow=URI, a registered logger or none; may be repeated. "
        "Default: tensorboard if installed.",
        show_default=False,
    ),
]
