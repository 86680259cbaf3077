"""The page of commands is written from the program when the site is built, so that no command and no option is missing.

`<!-- commands -->` becomes a list of all commands and a section for each: what it does, its arguments and options.
"""

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import typer

from tpsl.cli.main import app

_MARK = "<!-- commands -->"
_EVERYWHERE = "--help"
_LIMITS = re.compile(r"\s*\[([^\[\]]*)\]$")
_EXAMPLE = re.compile(r"(?:(?<=^)|(?<=Example: ))(tpsl .+)$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the page with all commands in the place of the mark."""
    if _MARK not in markdown:
        return markdown
    root = typer.main.get_command(app)
    commands = list(_commands(root, root.context_class(root, info_name="tpsl")))
    return markdown.replace(_MARK, "\n\n".join([_list_of(commands), *(_section(*each) for each in commands)]))


def _commands(command: Any, context: Any) -> Iterator[tuple[Any, Any]]:
    """Give every command with its context, a group before its members."""
    yield command, context
    for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
        member = command.get_command(context, name)
        yield from _commands(member, member.context_class(member, info_name=name, parent=context))


def _list_of(commands: list[tuple[Any, Any]]) -> str:
    """Return a table of what stands right below `tpsl`, in the groups of `tpsl --help`."""
    below = [each for each in commands if _depth(each[1]) == 1]
    panels = list(dict.fromkeys(command.rich_help_panel for command, _ in below))
    below.sort(key=lambda each: panels.index(each[0].rich_help_panel))
    rows = [
        f"| {panel if not at else ''} | [`{context.command_path}`](#{_anchor(context)}) | {_first_sentence(command)} |"
        for panel, members in groupby(below, key=lambda each: each[0].rich_help_panel)
        for at, (command, context) in enumerate(members)
    ]
    return "| | command | what it does |\n|---|---|---|\n" + "\n".join(rows)


def _section(command: Any, context: Any) -> str:
    heading = "#" * max(2, 1 + _depth(context)) + f" {context.command_path} {{ #{_anchor(context)} }}"
    records = [each.get_help_record(context) for each in command.get_params(context)]
    rows = [_row(*record) for record in records if record and _EVERYWHERE not in record[0]]
    table = "| | what it is | default |\n|---|---|---|\n" + "\n".join(sorted(rows, key=_arguments_first))
    return "\n\n".join([heading, _EXAMPLE.sub(r"`\1`", command.help or ""), *([table] if rows else [])])


def _row(names: str, text: str) -> str:
    limits = _LIMITS.search(text)
    facts = limits[1].split("; ") if limits else []
    default = next((f"`{fact.removeprefix('default: ')}`" for fact in facts if fact.startswith("default: ")), "–")
    bounds = [fact for fact in facts if fact != "required" and not fact.startswith("default: ")]
    words = _LIMITS.sub("", text) + "".join(f" {_range(bound)}." for bound in bounds)
    cells = [f"`{names.strip()}`", words, "required" if "required" in facts else default]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _range(bound: str) -> str:
    """Return `x>=1` and `1<=x<=9` in words; what is neither as it is."""
    return re.sub(r"(.+)<=x<=(.+)", r"From \1 to \2", re.sub(r"^x>=(.+)", r"At least \1", bound))


def _arguments_first(row: str) -> bool:
    return row.startswith("| `-")


def _first_sentence(command: Any) -> str:
    return re.split(r"(?<=[.?])\s|\n\n", command.help or "")[0].replace("\n", " ").replace("|", "\\|")


def _anchor(context: Any) -> str:
    return str(context.command_path).replace(" ", "-")


def _depth(context: Any) -> int:
    return len(str(context.command_path).split()) - 1
