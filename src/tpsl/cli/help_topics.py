"""`tpsl help`: the keys that `--set` takes, or the help of a command."""

from __future__ import annotations

import io
from contextlib import nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpsl.cli.console import answer
from tpsl.cli.flags import JsonFlag, argument

if TYPE_CHECKING:
    from tpsl.cli.schema_keys import Key

KEYS = "keys"


def explain(
    context: typer.Context,
    topic: Annotated[
        list[str] | None,
        argument("TOPIC…", "The word `keys`, then words in their names; or a command, as `vault release`."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Explain a command, or list the keys of a job and of a local file as --set takes them.

    Each key with what it means, its values and its default. Example: tpsl help keys epochs local
    """
    first, *words = topic or [""]
    if first == KEYS:
        _list_keys(words, json)
        return
    described = _context_of(context, topic or [])
    printed = io.StringIO()  # typer prints where it is asked for a text
    with redirect_stdout(printed) if json else nullcontext():
        text = described.get_help()
    answer(json, {"help": text or printed.getvalue()}, [text] if text else [])


def _list_keys(words: list[str], json: bool) -> None:
    from tpsl.cli.schema_keys import all_keys

    found = [key for key in all_keys() if not words or any(word in key.name for word in words)]
    if not found:
        raise ValueError(f"no key has {' or '.join(words)} in its name")
    lines = [_line(key) for key in found]
    if any(key.name.startswith("data.features[]") for key in found):
        lines.append("data.label takes the keys of data.features[] too, as data.label.path")
    answer(json, {"keys": [_facts(key) for key in found]}, lines)


def _facts(key: Key) -> dict[str, str]:
    names = ("name", "source", "values", "default", "description")
    return {name: str(getattr(key, name)) for name in names}


def _line(key: Key) -> str:
    name = f"{key.name} ({key.source})" if key.source else key.name
    default = f"; default {key.default}" if key.default else ""
    return f"{name}: {key.values}{default}\n    {key.description}"


def _context_of(context: typer.Context, path: list[str]) -> Any:
    found: Any = context.find_root()
    for name in path:
        group = found.command
        command = group.get_command(found, name) if hasattr(group, "get_command") else None
        if command is None:
            raise typer.BadParameter(f"there is no command {' '.join(path)!r}, and no topic but `{KEYS}`")
        found = command.context_class(command, info_name=name, parent=found)
    return found
