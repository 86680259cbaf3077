"""The options of every command that can run on a Ray cluster: `--ray`, and what it takes of the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from tpsl.cli.settings import keyword, parameters_of

if TYPE_CHECKING:
    from tpsl.on_ray.cluster import RayWorkers

_PANEL = "Ray"
_OPTIONS = {
    "ray": Annotated[
        bool | None,
        typer.Option(
            "--ray",
            help="Run on a Ray cluster: the one at RAY_ADDRESS, or started on this machine, else one made for this.",
            rich_help_panel=_PANEL,
            show_default=False,
        ),
    ],
    "ray_workers": Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Processes of the cluster. Default: one for training, else as many as there is room for.",
            rich_help_panel=_PANEL,
            show_default=False,
        ),
    ],
    "ray_cpus": Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="CPUs of each process. Default: 1.", rich_help_panel=_PANEL, show_default=False
        ),
    ],
    "ray_gpus": Annotated[
        float | None,
        typer.Option(
            min=0, metavar="X", help="GPUs of each process. Default: 0.", rich_help_panel=_PANEL, show_default=False
        ),
    ],
}
_META = "tpsl.ray"


def with_ray(command: type[TyperCommand] = TyperCommand) -> type[TyperCommand]:
    """Return the class of a command that takes the options of Ray too; its function asks `ray_workers` for them."""

    class RayCommand(command):  # type: ignore[valid-type, misc]
        def get_params(self, ctx: Any) -> list[Any]:
            return [*parameters_of([keyword(*option) for option in _OPTIONS.items()]), *super().get_params(ctx)]

        def invoke(self, ctx: Any) -> Any:
            ctx.meta[_META] = {name: ctx.params.pop(name) for name in _OPTIONS}
            return super().invoke(ctx)

    return RayCommand


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
