"""HTML and SVG elements in which text stays text."""

from __future__ import annotations

from html import escape
from typing import Any


class Markup(str):
    """Text that is markup already: it is not escaped again."""

    __slots__ = ()


def tag(name: str, /, *children: str | None, **attributes: Any) -> Markup:
    """Return an element; children that are no `Markup` are escaped, and what is None or False is left out.

    `data_run="x"` becomes `data-run="x"` and `class_="x"` becomes `class="x"`; True is an attribute without a value.
    """
    opened = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Markup(f"<{name}{opened}>") if name in _VOID else Markup(f"<{name}{opened}>{joined(*children)}</{name}>")


def joined(*children: str | None) -> Markup:
    """Return children one after the other, escaped unless they are markup."""
    return Markup("".join(one if isinstance(one, Markup) else escape(one) for one in children if one is not None))


_VOID = {"input", "meta", "link", "br"}
