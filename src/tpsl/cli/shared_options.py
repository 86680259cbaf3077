"""Options that several commands share, so that no function has them all as parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typer.core import TyperCommand

from tpsl.cli.settings import keyword, parameters_of


def with_options(
    options: Mapping[str, Any], key: str, command: type[TyperCommand] = TyperCommand
) -> type[TyperCommand]:
    """Return the class of a command that takes these options too, each a name and its annotation.

    The command's function finds what was given for each, or None, in `context.meta[key]`.
    """

    class CommandWithOptions(command):  # type: ignore[valid-type, misc]
        def get_params(self, ctx: Any) -> list[Any]:
            return [*parameters_of([keyword(*option) for option in options.items()]), *super().get_params(ctx)]

        def invoke(self, ctx: Any) -> Any:
            ctx.meta[key] = {name: ctx.params.pop(name) for name in options}
            return super().invoke(ctx)

    return CommandWithOptions
