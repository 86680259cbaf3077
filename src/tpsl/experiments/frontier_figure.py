"""The frontier as a figure: test AUC against ε, private heads on the left, local heads on the right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from tpsl.experiments.figures import save_figure
from tpsl.experiments.frontier import OURS, Row
from tpsl.experiments.frontier_report import HEADLINE, REFERENCE, Series, auc, epsilons_of
from tpsl.experiments.paper import DISCRETE, GAUSSIAN, LAPLACE

_STYLES = {
    LAPLACE: ("#1f6f8b", "o", "-"),
    DISCRETE: ("#b36a1f", "s", "-"),
    GAUSSIAN: ("#6b6b64", "^", "--"),
    OURS: ("#2c7a4b", "D", "-"),
}


def frontier_figure(rows: Sequence[Row], data: str, paths: Sequence[Path]) -> None:
    """Draw the frontier and save it to every path (PNG, SVG or PDF by ending).

    Bands are 95 % t-intervals over seeds. Gaussian noise stands at the ε of the Laplace noise that lets the
    shortest-distance attack through as often; its own ε is larger. The dotted line is what is left at ε = 0, where the
    feature party gets nothing back.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    epsilons = epsilons_of(rows)
    figure, panels = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True, squeeze=False, layout="constrained")
    reference = auc(rows, REFERENCE, None)
    for panel, title, rule in zip(panels[0], ("private head", "local head"), ("best", "local"), strict=True):
        if reference is not None:
            panel.axhline(reference.value, color="#1d1d1b", linestyle="--", linewidth=1, label="non-private")
        without_noise = auc(rows, HEADLINE, None)
        if without_noise is not None:
            own = {"color": _STYLES[OURS][0], "linestyle": "--", "linewidth": 1}
            panel.axhline(without_noise.value, label=f"non-private, {OURS}", **own)
        for algorithm, (colour, marker, line) in _STYLES.items():
            series = HEADLINE if (algorithm, rule) == (OURS, "best") else Series(algorithm, rule)
            found = [(epsilon, auc(rows, series, epsilon)) for epsilon in epsilons]
            points = [(epsilon, estimate) for epsilon, estimate in found if estimate is not None]
            if not points:
                continue
            x = [epsilon for epsilon, _ in points]
            style = {"color": colour, "marker": marker, "linestyle": line, "markersize": 4, "linewidth": 1.5}
            panel.plot(x, [y.value for _, y in points], label=algorithm, **style)
            banded = [(epsilon, y) for epsilon, y in points if math.isfinite(y.margin)]
            ends = [epsilon for epsilon, _ in banded], [y.low for _, y in banded], [y.high for _, y in banded]
            panel.fill_between(*ends, color=colour, alpha=0.15, linewidth=0)
        nothing = auc(rows, Series(OURS, rule), 0.0)
        if nothing is not None:
            panel.axhline(nothing.value, color=_STYLES[OURS][0], linestyle=":", linewidth=1, label=f"{OURS}, ε = 0")
        panel.set_xscale("log")
        panel.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
        panel.minorticks_off()
        panel.set_xlabel("ε")
        panel.set_title(f"{data}, {title}", loc="left", fontsize=10)
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(frameon=False, fontsize=8)
    panels[0][0].set_ylabel("test AUC")
    # Bands of two seeds are wider than the picture; the lines decide what it shows.
    heights = [y for panel in panels[0] for line in panel.lines for y in line.get_ydata()]
    if heights:
        panels[0][0].set_ylim(min(heights) - 0.02, max(heights) + 0.01)
    save_figure(figure, paths)
    pyplot.close(figure)
