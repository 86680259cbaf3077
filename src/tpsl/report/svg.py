"""A chart as SVG inside a page: it scales with its place, and the page's styles give it colours, also on paper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tpsl.report.chart import Chart, Rule, Scale, Series
from tpsl.report.markup import Markup, tag

_WIDTH, _ROW, _THIN_ROW, _KEY = 400, 34, 9, 18
_MANY_ROWS = 60
_LONGEST = 46
_DASHES = (None, "7 4", "2 3", "7 3 2 3", "12 4")
_SYMBOLS = (
    "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
    "m-3.6 -3.6h7.2v7.2h-7.2z",
    "m0 -5l5 5l-5 5l-5 -5z",
    "m0 -5l4.6 8h-9.2z",
    "m0 5l4.6 -8h-9.2z",
    "m-1.6 -4.6h3.2v3h3v3.2h-3v3h-3.2v-3h-3v-3.2h3z",
)


def svg(chart: Chart, *, prefix: str = "") -> Markup:
    """Return the chart with a title, a description and a tooltip for each point; `prefix` makes its ids unique."""
    return _Drawing(chart, f"{prefix}{chart.name}").element()


@dataclass(frozen=True)
class _Drawing:
    chart: Chart
    name: str

    @cached_property
    def by_row(self) -> bool:
        return bool(self.chart.y.rows)

    @cached_property
    def bottom(self) -> float:
        rows = len(self.chart.y.rows)
        if self.by_row:
            return 16 + rows * (_THIN_ROW if rows > _MANY_ROWS else _ROW)
        return 350.0 if self.chart.square else 210.0

    @cached_property
    def x(self) -> Scale:
        series, rules = self.chart.series, [rule.value for rule in self.chart.rules if rule.upright]
        ends = [end for one in series for end in (*one.low, *one.high)] if self.by_row else []
        values = [value for one in series for value in one.x]
        return Scale.over(self.chart.x, [*values, *ends, *rules], 14 if self.by_row else 56, _WIDTH - 20)

    @cached_property
    def y(self) -> Scale:
        if self.by_row:
            return Scale.over(self.chart.y, (), 8, self.bottom)
        rules = [rule.value for rule in self.chart.rules if not rule.upright]
        values = [value for one in self.chart.series for value in (*one.y, *one.low, *one.high)]
        return Scale.over(self.chart.y, [*values, *rules], self.bottom, 8)

    def element(self) -> Markup:
        chart, legend = self.chart, [one for one in self.chart.series if one.in_legend]
        names = f"{self.name}-title", f"{self.name}-about"
        below = self.bottom + 46
        named: list[Series | Rule] = [*legend, *chart.rules]
        keys = [self.key(one, below + _KEY * number) for number, one in enumerate(named)]
        return tag(
            "svg",
            tag("title", chart.title, id=names[0]),
            tag("desc", chart.summary, id=names[1]),
            *map(self.rule, chart.rules),
            *self.frame(),
            *(tag("g", *self.marks(one), data_series=one.name, **_role(one.role)) for one in chart.series),
            *keys,
            viewBox=f"0 0 {_WIDTH} {below + _KEY * len(keys) - 8:g}",
            class_="chart",
            role="img",
            aria_labelledby=names[0],
            aria_describedby=names[1],
        )

    def frame(self) -> Iterator[Markup]:
        left, right, top = self.x.start, self.x.end, 8.0
        across, up = self.chart.x, self.chart.y
        for value, text in self.x.ticks():
            yield _line(self.x(value), top, self.x(value), self.bottom, "grid")
            yield _text(text, self.x(value), self.bottom + 15, "tick", text_anchor="middle")
        for value, text in self.y.ticks() if not self.by_row else ():
            yield _line(left, self.y(value), right, self.y(value), "grid")
            yield _text(text, left - 6, self.y(value) + 4, "tick", text_anchor="end")
        yield _line(left, self.bottom, right, self.bottom, "frame")
        yield _text(across.title, (left + right) / 2, self.bottom + 32, "tick", text_anchor="middle")
        middle = (top + self.bottom) / 2
        if up.title != self.chart.title:
            yield _text(up.title, 11, middle, "tick", text_anchor="middle", transform=f"rotate(-90 11 {middle:g})")
        for row, name in enumerate(up.rows if len(up.rows) <= _MANY_ROWS else ()):
            yield _text(name, left, self.y(row) - 9, "row")

    def marks(self, one: Series) -> Iterator[Markup]:
        places = [None if x is None or y is None else (self.x(x), self.y(y)) for x, y in zip(one.x, one.y, strict=True)]
        if "area" in one.marks:
            first = next(place[0] for place in places if place)
            yield tag("path", d=f"{_path(places)}V{self.y.start:g}H{first:g}Z", class_="area")
        if "line" in one.marks:
            yield tag("path", d=_path(places), class_="line", stroke_dasharray=_DASHES[one.number % len(_DASHES)])
        for place, low, high, text in zip(
            places,
            one.low or [None] * len(places),
            one.high or [None] * len(places),
            one.texts or [""] * len(places),
            strict=True,
        ):
            if place is None:
                continue
            x, y = place
            if low is not None and high is not None:
                ends = (self.x(low), y, self.x(high), y) if self.by_row else (x, self.y(low), x, self.y(high))
                yield _line(*ends, "interval")
            shape = _SYMBOLS[one.number % len(_SYMBOLS)] if "points" in one.marks else ""
            shape += "m0 -8v16" if "ticks" in one.marks else ""
            if shape:
                about = tag("title", text) if text else None
                yield tag("path", about, d=f"M{x:.6g} {y:.6g}{shape}", class_="point" if "z" in shape else "mark")

    def rule(self, rule: Rule) -> Markup:
        x, y = (self.x(rule.value), None) if rule.upright else (None, self.y(rule.value))
        ends = (x, self.y.start, x, self.y.end) if x is not None else (self.x.start, y or 0, self.x.end, y or 0)
        line = _line(*ends, "line", stroke_dasharray=_DASHES[1])
        return tag("g", line, data_series=rule.name, **_role(rule.role))

    def key(self, one: Series | Rule, at: float) -> Markup:
        """Return a line of the legend."""
        marks, number = (("line",), 1) if isinstance(one, Rule) else (one.marks, one.number)
        left, signs = 8.0, list[Markup]()
        if "line" in marks or "area" in marks:
            signs.append(_line(left, at, left + 24, at, "line", stroke_dasharray=_DASHES[number % len(_DASHES)]))
        if "points" in marks:
            signs.append(tag("path", d=f"M{left + 12:g} {at:g}{_SYMBOLS[number % len(_SYMBOLS)]}", class_="point"))
        if "ticks" in marks:
            signs.append(tag("path", d=f"M{left + 12:g} {at:g}m0 -7v14", class_="mark"))
        return tag("g", *signs, _text(one.name, left + 32, at + 4, "tick"), **_role(one.role))


def _role(role: str) -> dict[str, str]:
    return {"class_": f"series {role}", "style": f"--role:var(--{role})"}


def _path(places: Sequence[tuple[float, float] | None]) -> str:
    parts, pen = list[str](), "M"
    for place in places:
        if place is not None:
            parts.append(f"{pen}{place[0]:.6g} {place[1]:.6g}")
        pen = "M" if place is None else "L"
    return "".join(parts)


def _line(x1: float, y1: float, x2: float, y2: float, style: str, **attributes: Any) -> Markup:
    return tag("path", d=f"M{x1:.6g} {y1:.6g}L{x2:.6g} {y2:.6g}", class_=style, **attributes)


def _text(text: str, x: float, y: float, style: str, **attributes: Any) -> Markup:
    shown = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
    return tag("text", shown, x=f"{x:.6g}", y=f"{y:.6g}", class_=style, **attributes)
