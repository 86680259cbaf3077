"""Every number of every run as text, with the exact value beside it in `data-value`."""

from __future__ import annotations

from collections.abc import Sequence

from tpsl.report.markup import Markup, fragment, tag
from tpsl.report.summary import RunSummary
from tpsl.report.words import MISSING, auc_text, privacy_text, rounded_up


def number_table(rows: Sequence[RunSummary]) -> Markup:
    """Return one row for each run; an element with `data-field` holds that field of the summary, unrounded."""
    heads = ("Run", "Mechanism", "Estimator", "ε", "δ", "Private", "Test AUC", "Attack AUC", "Formula", "Ceiling")
    head = tag("tr", *(tag("th", title, scope="col") for title in (*heads, "Epochs", "Samples/s")))
    body = (
        tag(
            "tr",
            tag("th", row.name, scope="row", data_field="name", data_value=row.name),
            tag("td", _field(row, "mechanism", row.mechanism), class_="text"),
            tag("td", _field(row, "estimator", row.estimator), class_="text"),
            tag("td", _field(row, "epsilon", rounded_up(row.epsilon, 4))),
            tag("td", _field(row, "delta", rounded_up(row.delta, 2))),
            tag("td", _field(row, "private", privacy_text(row)), class_="text"),
            tag("td", _measured(row, "test_auc")),
            tag("td", _measured(row, "attack_auc")),
            tag("td", _field(row, "attack_closed_form", auc_text(row.attack_closed_form))),
            tag("td", _field(row, "ceiling", auc_text(row.ceiling))),
            tag("td", _field(row, "epochs", str(row.epochs))),
            tag("td", _field(row, "samples_per_second", f"{row.samples_per_second:,.0f}")),
        )
        for row in rows
    )
    return _scrollable("Every number of every run", tag("thead", head), tag("tbody", *body), id_="numbers")


def epoch_table(rows: Sequence[RunSummary]) -> Markup:
    """Return the test AUC after each epoch, one row for each run; nothing if no run has any."""
    epochs = max(len(row.auc_by_epoch) for row in rows)
    if epochs == 0:
        return fragment()
    head = tag(
        "tr", tag("th", "Test AUC", scope="col"), *(tag("th", f"Epoch {1 + i}", scope="col") for i in range(epochs))
    )
    body = []
    for row in rows:
        known = (tag("td", auc_text(area), data_value=repr(area)) for area in row.auc_by_epoch)
        missing = (tag("td", MISSING) for _ in range(epochs - len(row.auc_by_epoch)))
        body.append(tag("tr", tag("th", row.name, scope="row"), *known, *missing))
    return _scrollable("Test AUC by epoch", tag("thead", head), tag("tbody", *body), id_="by-epoch")


def _measured(row: RunSummary, field: str) -> Markup:
    low, high = f"{field}_low", f"{field}_high"
    return fragment(
        _field(row, field, auc_text(getattr(row, field))),
        tag(
            "small",
            _field(row, low, auc_text(getattr(row, low))),
            "–",
            _field(row, high, auc_text(getattr(row, high))),
        ),
    )


def _field(row: RunSummary, field: str, text: str) -> Markup:
    # `str` of a float is the shortest text that gives the same float back.
    return tag("span", text, data_field=field, data_value=str(getattr(row, field)))


def _scrollable(label: str, *parts: Markup, id_: str) -> Markup:
    """Return a table that scrolls in its own box, reachable by keyboard, where the screen is too narrow for it."""
    return tag("div", tag("table", *parts, id_=id_), class_="scroll", role="region", tabindex=0, aria_label=label)
