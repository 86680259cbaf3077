"""What changes of a job are worth: each is trained with the same seeds, so its differences to the first are paired.

    python -m tpsl_research.comparison JOB SETTINGS [--seeds 3] [--metric test_auc] [--not-private] [--json]

SETTINGS is YAML that maps names to changes of the job; the first is the one that the others are compared with. A seed
fixes initial weights, batches and noise; the noise repeats, so no run is private, and data that does not come with the
package needs `--not-private`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import yaml

from tpsl.files import for_json
from tpsl.progress import Progress, no_progress
from tpsl.run.job import Job, load_job, make_job
from tpsl.run.one_process import load_records, train
from tpsl_research.data_sets import PUBLIC
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


def read_settings(path: Path) -> dict[str, dict[str, Any]]:
    """Return the changes of each setting by its name, in the order of the file."""
    named = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(named, dict) or not named or not all(isinstance(part, dict) for part in named.values()):
        example = "`averaging: {training: {averaging: 0.995}}`"
        raise ValueError(f"{path}: does not map names to changes of the job, as {example}")
    return named


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", type=Path)
    parser.add_argument("settings", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--metric", choices=["test_auc", "test_log_loss", "test_accuracy"], default="test_auc")
    parser.add_argument("--not-private", action="store_true", help="for data that does not come with the package")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    base = load_job(options.job)
    if base.data.source not in PUBLIC and not options.not_private:
        parser.error(f"runs on {base.data.source} would be NOT PRIVATE: that needs --not-private")

    def progress(done: int, total: int, note: str) -> None:
        print(f"\r{done + 1} of {total}: {note:<40}", end="", file=sys.stderr)

    found = compare(base, read_settings(options.settings), range(options.seeds), options.metric, progress)
    print(file=sys.stderr)
    if options.json:
        print(json.dumps({"settings": [for_json(asdict(each)) for each in found]}))
    else:
        print(comparison_table(found, options.metric).markdown(escape=False))


if __name__ == "__main__":
    main()
