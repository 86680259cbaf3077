"""The paper's figure 1: the trade-off between utility and privacy, two panels for each data set."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tpsl.experiments.paper import (
    DISCRETE,
    EPSILONS,
    GAUSSIAN,
    GAUSSIAN_CUT,
    LAPLACE,
    NON_PRIVATE,
    OURS,
    level_of,
    over_seeds,
)
from tpsl.files import write_atomically

_STYLES = {
    LAPLACE: ("#1f6f8b", "o", "-"),
    DISCRETE: ("#b36a1f", "s", "-"),
    GAUSSIAN: ("#6b6b64", "^", "--"),
    GAUSSIAN_CUT: ("#9a9a92", "v", ":"),
    OURS: ("#2c7a4b", "D", "-"),
}


def trade_off_figure(results: Mapping[str, Sequence[dict[str, Any]]], paths: Sequence[Path]) -> None:
    """Draw panels (a), (b), … and save them to every path (PNG, SVG or PDF by ending).

    For each data set: test AUC against ε, and test AUC against the measured shortest-distance AUC. Bars are one
    standard deviation over seeds; the dashed line is non-private training.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    size = (9.5, 3.7 * len(results))
    figure, axes = pyplot.subplots(len(results), 2, figsize=size, squeeze=False, layout="constrained")
    letters = iter("abcdefgh")
    for panels, (data, rows) in zip(axes, results.items(), strict=True):
        reference = over_seeds([row for row in rows if row["algorithm"] == NON_PRIVATE], "test_auc")
        for panel, against in zip(panels, ("ε", "shortest-distance attack AUC"), strict=True):
            panel.axhline(reference.mean, color="#1d1d1b", linestyle="--", linewidth=1, label="non-private")
            for algorithm, (colour, marker, line) in _STYLES.items():
                if against == "ε" and algorithm in (GAUSSIAN, GAUSSIAN_CUT):
                    continue
                points = []
                for epsilon in EPSILONS:
                    chosen = [row for row in rows if row["algorithm"] == algorithm and level_of(row) == epsilon]
                    if any(not row["diverged"] for row in chosen):
                        x = epsilon if against == "ε" else over_seeds(chosen, "shortest_distance_auc").mean
                        points.append((x, over_seeds(chosen, "test_auc")))
                if points:
                    panel.errorbar(
                        [x for x, _ in points],
                        [y.mean for _, y in points],
                        yerr=[y.spread for _, y in points],
                        color=colour,
                        marker=marker,
                        linestyle=line,
                        markersize=4,
                        capsize=2,
                        linewidth=1.4,
                        label=algorithm,
                    )
            if against == "ε":
                panel.set_xscale("log")
                panel.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
                panel.minorticks_off()
            panel.set_xlabel(against)
            panel.set_ylabel("test AUC")
            panel.set_title(f"({next(letters)}) {data}", loc="left", fontsize=10)
            panel.grid(alpha=0.25)
            panel.spines[["top", "right"]].set_visible(False)
            panel.legend(frameon=False, fontsize=8)
    save_figure(figure, paths)
    pyplot.close(figure)


def save_figure(figure: Any, paths: Sequence[Path]) -> None:
    """Write a figure to every path, in the format that its ending names, for its owner only."""
    for path in paths:
        content = io.BytesIO()
        figure.savefig(content, format=path.suffix.removeprefix("."), dpi=160)
        write_atomically(path, content.getvalue())
