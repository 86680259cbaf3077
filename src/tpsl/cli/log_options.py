"""Where the curves of a training go, shared by `train`, `label serve` and `feature join`."""

from __future__ import annotations

from typing import Annotated

import typer

TensorBoardOption = Annotated[
    bool | None,
    typer.Option(
        "--tensorboard/--no-tensorboard",
        help="Curves for TensorBoard, in the party's folder of the run. Default: if it is installed.",
        show_default=False,
    ),
]
MlflowOption = Annotated[
    str | None,
    typer.Option("--log-mlflow", help="Curves to this MLflow server (URI), which must be this party's own."),
]
