"""`tpsl keys`: every key that `--set` takes, and what it means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tpsl.cli.console import JsonFlag, answer

if TYPE_CHECKING:
    from tpsl.cli.keys import Key


def list_keys(
    words: Annotated[
        list[str] | None, typer.Argument(help="Only keys with one of these words in their name.", show_default=False)
    ] = None,
    json: JsonFlag = False,
) -> None:
    """List the keys of a job and of a local file, as --set takes them: what each means, its values, its default.

    Example: tpsl keys epochs local
    """
    from tpsl.cli.keys import all_keys

    found = [key for key in all_keys() if not words or any(word in key.name for word in words)]
    if not found:
        raise ValueError(f"no key has {' or '.join(words or ())} in its name")
    answer(json, {"keys": [_facts(key) for key in found]}, (_line(key) for key in found))


def _facts(key: Key) -> dict[str, str]:
    names = ("name", "source", "values", "default", "description")
    return {name: str(getattr(key, name)) for name in names}


def _line(key: Key) -> str:
    name = f"{key.name} ({key.source})" if key.source else key.name
    default = f"; default {key.default}" if key.default else ""
    return f"{name}: {key.values}{default}\n    {key.description}"
