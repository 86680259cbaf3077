"""The report as one HTML file that needs nothing else: styles, scripts, charts and data are inside, nothing is fetched.

The front end in `assets/` draws whatever `page_data` returns, so a live page can hand it new data as runs go on.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from string import Template
from typing import Any

from tpsl.files import write_atomically
from tpsl.report.hero import hero
from tpsl.report.run_table import shown
from tpsl.report.run_view import RunView
from tpsl.report.verdicts import first_shown, lead
from tpsl.report.version_view import version_rows
from tpsl.report.words import of_vault

SCRIPTS = ("plotly-basic.min.js", "figures.js", "dom.js", "charts.js", "hero.js", "page.js")


def write_page(path: Path, views: Sequence[RunView], *, title: str, about: str = "") -> None:
    """Write the report of these runs; the file is whole or untouched, never half-written.

    All text is escaped, and a content security policy lets the browser run and load nothing but what is in the file.
    Views of the label party hold numbers that depend on true labels: a page of them belongs to the label party.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise IsADirectoryError(f"cannot write {path}: it is a folder")
    # A name that is not Unicode (of a file, say) must not cost the report.
    write_atomically(path, page(page_data(views, title=title, about=about)).encode("utf-8", errors="replace"))


def page_data(views: Sequence[RunView], *, title: str, about: str = "") -> dict[str, Any]:
    """Return all that a page shows, JSON-able."""
    if not views:
        raise ValueError("a report needs at least one run")
    parties = {view["party"] for view in views}
    if len(parties) > 1:
        raise ValueError(f"a report is for one party, not for {' and '.join(sorted(parties))}")
    runs = told_apart(views)
    (party,) = parties
    return {
        "title": title,
        "about": about,
        "lead": lead(runs),
        "party": party,
        "runs": [{**view, "shown": shown(view), "of_vault": of_vault(view)} for view in runs],
        "heroes": {view["name"]: hero(view, runs) for view in runs},
        "first": first_shown(runs),
        "versions": version_rows(runs),
        "program": f"tpsl {version('tpsl')}",
    }


def told_apart(views: Sequence[RunView]) -> list[RunView]:
    """Return the views with a number after each name that an earlier one has."""
    runs: list[RunView] = []
    for view in views:
        times = sum(earlier["name"] == view["name"] for earlier in views[: len(runs)])
        runs.append({**view, "name": f"{view['name']} ({times + 1})"} if times else view)
    return runs


def page(data: dict[str, Any], home: str = "") -> str:
    """Return the page of this data as HTML; `home` is the address of the list of runs that it belongs to, if any."""
    style, scripts = asset("page.css"), [asset(name) for name in SCRIPTS]
    return Template(asset("page.html")).substitute(
        policy="default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; "
        f"script-src {' '.join(map(_digest, scripts))}; base-uri 'none'; form-action 'none'",
        title=html.escape(data["title"]),
        mark=f'<a class="mark" href="{html.escape(home)}">‹ All runs</a>' if home else '<span class="mark">tpsl</span>',
        style=style,
        data=embedded(data),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )


def embedded(data: Any) -> str:
    """Return JSON that can stand inside a script element: nothing in it ends the element or opens another."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def asset(name: str) -> str:
    """Return a file of the front end."""
    return resources.files("tpsl.report").joinpath("assets", name).read_text(encoding="utf-8")


def _digest(source: str) -> str:
    """Return the name under which a content security policy admits exactly this inline script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"
