"""HTML and SVG from functions: text is escaped unless it is already markup."""

from __future__ import annotations

import html


class Markup(str):
    """Text that is markup already. Only `tag` and `fragment` make it, so no input reaches a page unescaped."""

    __slots__ = ()


def tag(name: str, *children: str, **attributes: str | float | None) -> Markup:
    """Return an element. Attributes that are None are left out; `class_` and `data_tip` mean `class` and `data-tip`."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{written}>{fragment(*children)}</{name}>")


def fragment(*children: str) -> Markup:
    """Return the children one after the other; what is not markup yet is escaped."""
    return Markup("".join(child if isinstance(child, Markup) else html.escape(child) for child in children))
