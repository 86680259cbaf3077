"""The report as one HTML file that needs nothing else: styles, script and drawings are inside, nothing is fetched."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from string import Template

from tpsl.files import write_atomically
from tpsl.report.charts import attack_chart, cost_chart
from tpsl.report.curves import curve_panels
from tpsl.report.markup import Markup, fragment, tag
from tpsl.report.numbers import epoch_table, number_table
from tpsl.report.summary import RunSummary
from tpsl.report.words import auc_text, baseline, epsilon_text, measured_text, promise


def write_page(path: Path, rows: Sequence[RunSummary], *, title: str, facts: Mapping[str, str]) -> None:
    """Write the report of these runs; the file is whole or untouched, never half-written.

    All text is escaped, and a content security policy lets the browser run and load nothing but what is in the file.
    The page shows test AUCs, which depend on true labels: it belongs to the label party.
    """
    if not rows:
        raise ValueError("a report needs at least one run")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: there is no folder {path.parent}")
    style, script = _part("page.css"), _part("page.js")
    content = Template(_part("page.html")).substitute(
        policy=f"default-src 'none'; img-src data:; style-src {_digest(style)}; script-src {_digest(script)}; "
        "base-uri 'none'; form-action 'none'",
        title=fragment(title),
        style=style,
        script=script,
        lead=_lead(rows),
        sections=fragment(*_sections(rows, facts)),
    )
    # A name that is not Unicode (of a file, say) must not cost the report.
    write_atomically(path, content.encode("utf-8", errors="replace"))


def _lead(rows: Sequence[RunSummary]) -> Markup:
    """Return the result in three sentences: is it private, what does it reach, what does it leak."""
    private, reference = [row for row in rows if row.private], baseline(rows)
    if not private:
        return tag("p", "This run is not private." if len(rows) == 1 else "None of these runs is private.")
    best = max(private, key=lambda row: row.test_auc)
    count = "This run is private." if len(rows) == 1 else f"{len(private)} of these {len(rows)} runs are private."
    if len(private) == 1 < len(rows):
        count = f"One of these {len(rows)} runs is private."
    which = "It" if len(private) == 1 else fragment("The best of them, ", tag("strong", best.name), ",")
    without = f" ({auc_text(reference.test_auc)} without privacy)" if reference else ""
    attack = (
        ""
        if math.isnan(best.attack_auc)
        else " The shortest-distance attack on its transcript reaches "
        f"{measured_text(best.attack_auc, best.attack_auc_low, best.attack_auc_high)}, where 0.5 is guessing and "
        f"{auc_text(best.ceiling)} is the most that ε allows any attack on average."
    )
    reach = f" promises ε = {epsilon_text(best)} and has a test AUC of {auc_text(best.test_auc)}{without}."
    return tag("p", f"{count} ", which, reach, attack)


def _sections(rows: Sequence[RunSummary], facts: Mapping[str, str]) -> list[Markup]:
    curves = curve_panels(rows)
    return [
        _section(
            "What was promised",
            "A smaller ε is a stronger promise. It is made for each record, whatever the other records are.",
            tag("div", *(_promise(row) for row in rows), class_="promises"),
        ),
        _section(
            "What it costs",
            "How well the trained network tells positive from negative records it has not seen: 0.5 is guessing, 1 is "
            "perfect.",
            cost_chart(rows),
        ),
        _section(
            "What an attacker got",
            "The shortest-distance attack asks of every gradient it received which label explains it better. The bars "
            "start at 0.5, which is guessing. ε bounds what the transcript adds, not what a feature party can predict "
            "from its own features.",
            attack_chart(rows),
        ),
        *([_section("Training", "Test AUC after each epoch, the other runs in grey.", curves)] if curves else []),
        _section("All numbers", "", number_table(rows), epoch_table(rows)),
        *([_section("The setting", "", _facts(facts))] if facts else []),
    ]


def _section(heading: str, intro: str, *content: Markup) -> Markup:
    return tag("section", tag("h2", heading), tag("p", intro, class_="intro") if intro else fragment(), *content)


def _promise(row: RunSummary) -> Markup:
    return tag(
        "article",
        tag("h3", row.name),
        tag(
            "p",
            tag("span", f"ε = {epsilon_text(row)}", class_="epsilon"),
            tag("span", "private" if row.private else "not private", class_="badge yes" if row.private else "badge no"),
        ),
        tag("p", promise(row)),
        tag("p", f"Mechanism {row.mechanism}, estimator {row.estimator}", class_="small"),
        class_="promise",
    )


def _facts(facts: Mapping[str, str]) -> Markup:
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in facts.items()))


def _part(name: str) -> str:
    return resources.files("tpsl.report").joinpath(name).read_text(encoding="utf-8")


def _digest(source: str) -> str:
    """Return the name under which a content security policy admits exactly this inline text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"
