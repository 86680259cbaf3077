"""The options of every command that can run on a Ray cluster: `--ray`, and what it takes of the cluster."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperCommand

from tpsl.cli.shared_options import with_options
from tpsl.cli.termination import stoppable

if TYPE_CHECKING:
    from tpsl.cli.two_parties import Side
    from tpsl.on_ray.cluster import RayWorkers

_option = partial(typer.Option, rich_help_panel="Ray", show_default=False)
_OPTIONS = {
    "ray": Annotated[
        bool | None,
        _option(
            "--ray",
            help="Run on a Ray cluster: the one at RAY_ADDRESS, or started on this machine, else one made for this.",
        ),
    ],
    "ray_workers": Annotated[
        int | None,
        _option(
            min=1,
            metavar="N",
            help="Processes of the cluster. Default: one for training, else as many as there is room for.",
        ),
    ],
    "ray_restarts": Annotated[
        int | None,
        _option(
            min=0,
            metavar="N",
            help="Training: how often all processes are started again after one was lost. Default: 3.",
        ),
    ],
    "ray_cpus": Annotated[int | None, _option(min=1, metavar="N", help="CPUs of each process. Default: 1.")],
    "ray_gpus": Annotated[float | None, _option(min=0, metavar="X", help="GPUs of each process. Default: 0.")],
}
_META = "tpsl.ray"
_RESTARTS = 3


def with_ray(command: type[TyperCommand] = TyperCommand) -> type[TyperCommand]:
    """Return the class of a command that takes the options of Ray too; its function asks `ray_workers` for them."""
    return with_options(_OPTIONS, _META, command)


def ray_workers(context: typer.Context) -> RayWorkers | None:
    """Return what the command takes of a Ray cluster; None if it was not told to use one."""
    given = dict(context.meta[_META])
    if not given.pop("ray"):
        for name in (name for name, value in given.items() if value is not None):
            raise typer.BadParameter(f"--{name.replace('_', '-')} is for --ray")
        return None
    from tpsl.on_ray.cluster import RayWorkers, require_ray

    require_ray()
    return RayWorkers(given["ray_workers"], given["ray_cpus"] or 1, given["ray_gpus"] or 0)


def trains_on_ray(context: typer.Context, side: Side) -> bool:
    """Run this command in the workers of a Ray Train job if it was told to, and print its result; else return False.

    In a worker the same command line is run, so there the answer is False.
    """
    share = ray_workers(context)
    if share is None:
        return False
    from tpsl.on_ray.train_job import TrainJob, is_worker

    if is_worker():
        return False
    restarts = context.meta[_META]["ray_restarts"]
    job = TrainJob(
        _run_here,
        tuple(sys.argv[1:]),
        share,
        _RESTARTS if restarts is None else restarts,
        side.out,
        side.local.device,
    )
    with stoppable("the same command goes on where it stopped", log_json=bool(context.params.get("log_json"))):
        printed = job.result()
    typer.echo(printed, nl=False)
    return True


def _run_here(arguments: Sequence[str]) -> str:
    """Run a command line in this process; return what it prints. Its errors are raised."""
    from tpsl.cli.main import app

    with redirect_stdout(io.StringIO()) as printed:
        app(list(arguments), prog_name="tpsl", standalone_mode=False)
    return printed.getvalue()
