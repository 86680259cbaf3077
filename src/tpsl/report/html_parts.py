"""The parts that pages are made of: facts, tables, charts with their tables, the document around them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from importlib import resources

from tpsl.report.chart import Cell, Chart
from tpsl.report.markup import Markup, joined, tag
from tpsl.report.svg import svg

ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 8 8'%3E"
    "%3Ccircle cx='4' cy='4' r='3' fill='%230b6b6b'/%3E%3C/svg%3E"
)


def asset(name: str) -> str:
    """Return a file of the front end."""
    return resources.files("tpsl.report").joinpath("assets", name).read_text(encoding="utf-8")


def document(title: str, body: Markup, *, scripts: Sequence[str] = (), policy: str = "") -> str:
    """Return a whole page, which may run these scripts and load nothing; `policy` adds what else it may do."""
    script, style = "".join(map(asset, scripts)), asset("chart.css") + asset("page.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"script-src 'sha256-{digest}'; " if script else ""
    rules = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; {allowed}{policy}"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=f"{rules}base-uri 'none'; form-action 'none'"),
        tag("title", title),
        tag("link", rel="icon", href=ICON),
        tag("style", Markup(style)),
    )
    program = tag("script", Markup(script)) if script else None
    return f"<!doctype html>\n{tag('html', head, tag('body', body, program), lang='en')}\n"


def facts(pairs: Iterable[tuple[str, str | None]]) -> Markup:
    """Return names with their values; what has no value is left out."""
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs if value))


def pictures(charts: Sequence[Chart], title: str) -> Markup:
    """Return charts that stand alone, as a notebook shows them."""
    shown = (tag("div", tag("h4", chart.title), svg(chart)) for chart in charts if chart.series)
    colours = "background:var(--paper);color:var(--ink)"
    return tag("div", tag("style", Markup(asset("chart.css"))), tag("p", title), *shown, style=colours)


def intro(*text: str | None) -> Markup | None:
    """Return an introducing paragraph, or nothing."""
    return tag("p", *text, class_="intro") if any(text) else None


Row = Sequence[Cell | Markup]


def table(caption: str, columns: Sequence[str], rows: Sequence[Row], style: str = "sortable wide") -> Markup:
    """Return a table in which each cell knows its column, so that a narrow screen shows rows as cards."""
    numbers = {at for row in rows for at, cell in enumerate(row) if isinstance(cell, Cell) and cell.value is not None}
    styles = ["number" if column and column in numbers else None for column in range(len(columns))]

    def cell_of(column: int, cell: Cell | Markup) -> Markup:
        content, value = (cell, None) if isinstance(cell, Markup) else (_shown(cell) if cell.text else None, cell.value)
        place = {"class_": styles[column], "data_head": columns[column], "data_value": value}
        return tag("td", content, **place) if column else tag("th", content, scope="row", **place)

    heads = (tag("th", name, scope="col", class_=one) for name, one in zip(columns, styles, strict=True))
    lines = (tag("tr", *(cell_of(column, cell) for column, cell in enumerate(row))) for row in rows)
    head, body = tag("thead", tag("tr", *heads)), tag("tbody", *lines)
    drawn = tag("table", tag("caption", caption, class_="unseen"), head, body, class_=style)
    return tag("div", drawn, class_="scroll", role="region", tabindex=0, aria_label=caption)


def _shown(cell: Cell) -> Markup:
    return tag("span", cell.text, *(tag("small", note) for note in cell.notes))


def figure(chart: Chart | None, prefix: str = "") -> Markup | None:
    """Return a chart with its summary, and the table of its numbers to open; nothing where there is no chart."""
    if chart is None:
        return None
    about = tag("figcaption", tag("h3", chart.title), tag("p", chart.summary))
    if not chart.series:
        return tag("figure", about, data_chart=chart.name)
    numbers = tag("details", tag("summary", "Table"), table(chart.title, chart.columns, chart.rows))
    return tag("figure", about, svg(chart, prefix=prefix), numbers, data_chart=chart.name)


def section(name: str, title: str, *children: Markup | None) -> Markup | None:
    """Return a part of a page with its heading; nothing if it is empty."""
    if not any(children):
        return None
    return tag("section", tag("h2", title), joined(*children), id=name)
