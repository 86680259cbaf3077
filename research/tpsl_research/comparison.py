"""What changes of a job are worth: each is trained with the same seeds, so its differences to the first are paired.

A seed fixes initial weights, batches and noise; the noise repeats, so no run is private.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from tpsl.progress import Progress, no_progress
from tpsl.training.job import Job, make_job
from tpsl.training.one_process import load_records, train
from tpsl_research.intervals import Estimate, mean_estimate
from tpsl_research.text_table import Table


@dataclass(frozen=True)
class Compared:
    """A metric of one setting over all seeds."""

    setting: str
    values: tuple[float, ...]
    change: Estimate | None
    """Against the first setting; None for itself."""


def compare(
    base: Job,
    settings: Mapping[str, dict[str, Any]],
    seeds: Sequence[int],
    metric: str,
    progress: Progress = no_progress,
) -> list[Compared]:
    """Train the job with the changes of each setting and each seed; return the metric of their results."""
    data, content = load_records(base), base.model_dump(mode="json")
    found: dict[str, list[float]] = {name: [] for name in settings}
    for done, (seed, name) in enumerate((seed, name) for seed in seeds for name in settings):
        progress(done, len(seeds) * len(settings), f"{name}, seed {seed}")
        job = make_job(content, settings[name], name)
        noise = None if job.privacy.mechanism == "none" else seed
        seeded = {"training": {"seed": seed}, "privacy": {"noise_seed": noise}}
        with tempfile.TemporaryDirectory() as folder:
            result = train(make_job(job.model_dump(mode="json"), seeded, name), Path(folder) / "run", data=data)
        found[name].append(getattr(result, metric))
    first = next(iter(found.values()))
    changes = (mean_estimate([a - b for a, b in zip(own, first, strict=True)]) for own in found.values())
    return [
        Compared(name, tuple(found[name]), change if number else None)
        for number, (name, change) in enumerate(zip(found, changes, strict=True))
    ]


def comparison_table(found: Sequence[Compared], metric: str) -> Table:
    """Return a row for each setting."""
    head = ("", metric.replace("_", " "), "spread", "change", "95 % interval")
    rows = [head]
    for each in found:
        spread = f"{stdev(each.values):.5f}" if len(each.values) > 1 else "–"
        change, interval = "–", "–"
        if each.change is not None:
            change = f"{each.change.value:+.5f}"
            interval = f"{each.change.low:+.5f} to {each.change.high:+.5f}"
        rows.append((each.setting, f"{mean(each.values):.5f}", spread, change, interval))
    return Table(f"{len(found[0].values)} seeds", tuple(rows))
