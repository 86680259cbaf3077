"""The frontier as tables: mean and 95 % interval over seeds of AUC, of the loss by noise, and of our loss over theirs.

Losses are taken seed by seed against non-private training, tuned over the same space as the paper's mechanisms. Our
network without noise does better than that; a second table takes it as the measure of both. Cells without a result are
listed with their reasons.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tpsl.files import for_json, write_atomically
from tpsl_research.frontier_cells import (
    AUTO,
    BASELINES,
    CEILING,
    HANDED_OVER,
    JOINED_LOGISTIC,
    JOINED_TREES,
    NETWORK,
    STATISTIC,
    TREES,
    Row,
)
from tpsl_research.intervals import Estimate, mean_estimate, ratio_estimate
from tpsl_research.paper import LAPLACE, NON_PRIVATE
from tpsl_research.text_table import Table

RULES = {
    "best": "best by noisy labels",
    "ensemble": "ensemble",
    "oracle": "best by test labels (not a selection rule)",
    "local": "local head",
    "run": "",
}


@dataclass(frozen=True)
class Series:
    """A line of the frontier: an algorithm, and how its result is chosen."""

    algorithm: str
    rule: str

    @property
    def name(self) -> str:
        """What tables call it."""
        return ", ".join(filter(None, (self.algorithm, RULES[self.rule])))

    def at(self, rows: Sequence[Row], epsilon: float | None, metric: str = "test_auc") -> dict[int, float]:
        """Return the metric for each seed that has it."""
        part = "local" if self.rule == "local" else "private"
        chosen = [r for r in rows if (r["part"], r["algorithm"], r["epsilon"]) == (part, self.algorithm, epsilon)]
        values = {row["seed"]: row["results"].get(self.rule, {}).get(metric, math.nan) for row in chosen}
        return {seed: float(value) for seed, value in values.items() if math.isfinite(value)}


REFERENCE, OURS_WITHOUT_NOISE = Series(NON_PRIVATE, "best"), Series(NETWORK, "ensemble")
HEADLINE, HEADLINE_LOCAL = Series(AUTO, "run"), Series(NETWORK, "local")
OURS = (
    Series(NETWORK, "best"),
    Series(NETWORK, "ensemble"),
    Series(HANDED_OVER, "ensemble"),
    Series(TREES, "run"),
    Series(STATISTIC, "run"),
    HEADLINE,
)
OTHERS = (Series(JOINED_LOGISTIC, "run"), Series(JOINED_TREES, "run"), Series(CEILING, "ensemble"))
"""What a user would do instead, and about what any learner can make of noisy labels."""
PRIVATE = [*(Series(name, rule) for name in BASELINES for rule in ("best", "ensemble", "oracle")), *OURS, *OTHERS]
LOCAL = [Series(name, "local") for name in (*BASELINES, NETWORK)]
COMPARISONS = (
    *((HEADLINE, Series(LAPLACE, rule)) for rule in ("best", "ensemble", "oracle")),
    *((series, Series(LAPLACE, "best")) for series in (*OURS[1:-1], *OTHERS[:-1])),
    *((HEADLINE_LOCAL, Series(LAPLACE, rule)) for rule in ("best", "oracle")),
)


def auc(rows: Sequence[Row], series: Series, epsilon: float | None) -> Estimate | None:
    """Return the mean test AUC over seeds; None if there is none."""
    values = series.at(rows, epsilon)
    return mean_estimate(list(values.values())) if values else None


def losses(
    rows: Sequence[Row], series: Series, epsilon: float | None, reference: Series = REFERENCE
) -> dict[int, float]:
    """Return for each seed how much test AUC is lost against non-private training."""
    plain, noisy = reference.at(rows, None), series.at(rows, epsilon)
    return {seed: plain[seed] - value for seed, value in noisy.items() if seed in plain}


def loss(rows: Sequence[Row], series: Series, epsilon: float | None) -> Estimate | None:
    """Return the mean loss over seeds; None if there is none."""
    values = losses(rows, series, epsilon)
    return mean_estimate(list(values.values())) if values else None


def loss_ratio(
    rows: Sequence[Row], ours: Series, theirs: Series, epsilon: float, reference: Series = REFERENCE
) -> Estimate | None:
    """Return our mean loss over theirs, with an interval from the seeds that both have."""
    above, below = losses(rows, ours, epsilon, reference), losses(rows, theirs, epsilon, reference)
    seeds = [seed for seed in above if seed in below]
    return ratio_estimate([above[s] for s in seeds], [below[s] for s in seeds]) if seeds else None


def epsilons_of(rows: Sequence[Row]) -> list[float]:
    """Return the ε of the rows, ascending, without 0 and ∞."""
    return sorted({row["epsilon"] for row in rows if row["epsilon"]})


def markdown(rows: Sequence[Row], data: str) -> str:
    """Return the tables of the frontier; a ± is half of a 95 % t-interval over seeds."""
    epsilons = epsilons_of(rows)
    plain = auc(rows, REFERENCE, None)
    parts = [
        f"# What ε buys on {data}\n",
        f"{_seeds(rows)}, each a replicate of the whole procedure, tuning included. Noise is seeded: these runs "
        f"are not private. Non-private test AUC: {_text(plain)}; with our network and ensemble "
        f"{_text(auc(rows, OURS_WITHOUT_NOISE, None))}.\n",
    ]
    nothing = {"local": [0.0]}
    for title, value, chosen in (
        ("Test AUC", auc, PRIVATE),
        ("Loss of test AUC against non-private training", loss, PRIVATE),
        ("Local head: test AUC", auc, LOCAL),
        ("Local head: loss of test AUC against non-private training", loss, LOCAL),
    ):
        columns = [*nothing.get(chosen[0].rule, []), *epsilons]
        lines = [
            [series.name, *(_text(value(rows, series, epsilon)) for epsilon in columns)]
            for series in chosen
            if any(series.at(rows, epsilon) for epsilon in columns)
        ]
        parts += _table(title, columns, lines)
    for reference, against in ((REFERENCE, "non-private training"), (OURS_WITHOUT_NOISE, "our network without noise")):
        lines = []
        for ours, theirs in COMPARISONS:
            ratios = [loss_ratio(rows, ours, theirs, epsilon, reference) for epsilon in epsilons]
            if any(ratios):
                lines.append([f"{ours.name} / {theirs.name}", *(_interval(ratio) for ratio in ratios)])
        title = f"Loss as a share of the loss of the paper's Laplace (private head), both against {against}, "
        parts += _table(f"{title}paired over seeds, 95 % interval", epsilons, lines)
    return "\n".join([*parts, *_notes(rows)])


def _notes(rows: Sequence[Row]) -> list[str]:
    """Return what `auto` stood for, how many clean labels noisy ones are worth, and what has no result and why."""
    chosen: dict[float, set[str]] = {}
    for row in rows:
        if row["algorithm"] == AUTO and "method" in row:
            chosen.setdefault(row["epsilon"], set()).add(row["method"])
    worth = {row["epsilon"]: row["clean_labels"] for row in rows if "clean_labels" in row}
    notes = []
    networks = {(row["epsilon"], row["seed"]): row["results"] for row in rows if _is(row, NETWORK)}
    pairs = [(row["results"], networks.get((row["epsilon"], row["seed"]))) for row in rows if _is(row, HANDED_OVER)]
    if pairs:
        equal = sum(handed_over == network for handed_over, network in pairs)
        notes.append(
            f"Labels handed over give the network of split training, bit for bit: {equal} of {len(pairs)} do.\n"
        )
    if chosen:
        methods = (f"{' or '.join(sorted(names))} at ε = {epsilon:g}" for epsilon, names in sorted(chosen.items()))
        notes.append(f"`{AUTO}` chose: {', '.join(methods)}.\n")
    if worth:
        numbers = (f"{count:,} at ε = {epsilon:g}" for epsilon, count in sorted(worth.items()))
        notes.append(f"The noisy labels are worth this many clean ones: {', '.join(numbers)}.\n")
    reasons: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if "failed" in row:
            reasons.setdefault((row["algorithm"], row["failed"]), []).append(row)
    lines = [f"- {name} ({_where(cells)}): {reason}" for (name, reason), cells in reasons.items()]
    return [*notes, "## Without a result\n", *lines] if lines else notes


def _is(row: Row, algorithm: str) -> bool:
    return (row["part"], row["algorithm"]) == ("private", algorithm) and bool(row["results"])


def _where(cells: Sequence[Row]) -> str:
    levels = sorted({"∞" if row["epsilon"] is None else f"{row['epsilon']:g}" for row in cells})
    return f"ε = {', '.join(levels)}, {_seeds(cells)}"


def _seeds(rows: Sequence[Row]) -> str:
    count = len({row["seed"] for row in rows})
    return "1 seed" if count == 1 else f"{count} seeds"


def _table(title: str, epsilons: Sequence[float], lines: Sequence[Sequence[str]]) -> list[str]:
    head = ("", *(f"ε = {epsilon:g}" for epsilon in epsilons))
    return [Table(title, (head, *map(tuple, lines))).markdown("##", escape=False)] if lines else []


def _text(estimate: Estimate | None) -> str:
    if estimate is None:
        return "–"
    return f"{estimate.value:.4f}" + (f" ± {estimate.margin:.4f}" if math.isfinite(estimate.margin) else "")


def _interval(estimate: Estimate | None) -> str:
    if estimate is None or not math.isfinite(estimate.value):
        return "–"
    ends = f" [{estimate.low:.2f}, {estimate.high:.2f}]" if math.isfinite(estimate.margin) else ""
    return f"{estimate.value:.2f}{ends}"


def summary(rows: Sequence[Row], data: str) -> dict[str, Any]:
    """Return all that the tables say, as JSON-able data, and the rows without their candidates."""
    epsilons = epsilons_of(rows)
    lines = []
    for series in (REFERENCE, *PRIVATE, *LOCAL):
        levels: list[float | None] = [None] if series == REFERENCE else [0.0, *epsilons, None]
        for epsilon in levels:
            found, lost = auc(rows, series, epsilon), loss(rows, series, epsilon)
            if found is not None:
                line = {**asdict(series), "epsilon": epsilon, "seeds": len(series.at(rows, epsilon))}
                lines.append({**line, "test_auc": asdict(found), "loss": asdict(lost) if lost else None})
    ratios = [
        {"ours": asdict(ours), "theirs": asdict(theirs), "against": asdict(against), "epsilon": epsilon}
        | {"ratio": asdict(ratio)}
        for against in (REFERENCE, OURS_WITHOUT_NOISE)
        for ours, theirs in COMPARISONS
        for epsilon in epsilons
        if (ratio := loss_ratio(rows, ours, theirs, epsilon, against)) is not None
    ]
    kept = [{name: value for name, value in row.items() if name != "candidates"} for row in rows]
    content: dict[str, Any] = for_json({"data": data, "frontier": lines, "ratios": ratios, "cells": kept})
    return {"private": False, **content}


def table(rows: Sequence[Row], data: str) -> str:
    """Return one CSV line for each cell and rule."""
    columns = ["data", "part", "algorithm", "rule", "epsilon", "exact_epsilon", "delta", "seed", "test_auc"]
    columns += ["test_log_loss", "test_calibration_error", "method", "configuration", "epoch", "private", "seconds"]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        for rule, found in row["results"].items():
            writer.writerow({**row, **found, "data": data, "rule": rule})
    return text.getvalue()


def write_tables(rows: Sequence[Row], data: str, out: Path) -> Mapping[str, Path]:
    """Write frontier.md, frontier.csv and frontier.json; return their paths."""
    paths = {ending: out / f"frontier.{ending}" for ending in ("md", "csv", "json")}
    write_atomically(paths["md"], markdown(rows, data).encode())
    write_atomically(paths["csv"], table(rows, data).encode())
    write_atomically(paths["json"], json.dumps(summary(rows, data), indent=1).encode())
    return paths
