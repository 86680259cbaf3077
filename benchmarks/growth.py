"""How time and memory grow with records, feature parties and workers: two or more real processes, over mutual TLS.

Each line is one rehearsal of `tpsl plan`: `tpsl label serve` and `tpsl feature join` on a table of invented records,
one epoch, from the commands to their end. Time is without the start and end of the programs, which does not grow, and
so is the processor time, which other programs disturb less; of several workers it is that of the first.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from tpsl.planning.phases import Line, Phases
from tpsl.planning.rehearsal import Deployment, rehearse
from tpsl.planning.stand_in import stand_in
from tpsl.training.job import Job, make_job
from tpsl.training.local import Local
from tpsl.transport.peers import LABEL_PARTY

MEGABYTE = 1e6


def job(parties: int, fields: int, batch: int) -> Job:
    """The paper's network on fields that the parties share, one in three of them a number."""
    names = [f"field{number}" for number in range(fields)]
    features = []
    for number in range(parties):
        own = names[number::parties]
        columns = {"numeric": own[::3], "categorical": [name for name in own if name not in own[::3]]}
        features.append({"path": f"party{number}.parquet", "party": f"party{number}", **columns})
    data = {"source": "table", "features": features, "label": {"path": "label.parquet"}, "test_fraction": 0.05}
    training = {"epochs": 1, "batch_size": batch, "wire": "bfloat16", "checkpoint_every": 1 << 30}
    return make_job({"data": data, "training": training}, {}, "the benchmark")


def on(parties: int, device: Literal["cpu", "cuda"]) -> Deployment:
    """One worker for each party, all of which compute on this device."""
    names = [LABEL_PARTY, *(f"party{number}" for number in range(parties))]
    return Deployment(dict.fromkeys(names, Local(device=device)))


def measured(planned: Job, rows: int, deployment: Deployment, folder: Path) -> dict[str, Any]:
    ran = rehearse(stand_in(planned, rows, folder / "data"), deployment, folder)
    phases = Phases.of(ran)
    features = [party for party in ran.peak_bytes if party != "label"]
    work = {party: stamps[-1].cpu_seconds - stamps[0].cpu_seconds for party, stamps in ran.stamps.items()}
    return {
        "seconds": round(ran.seconds - phases.programs, 2),
        "CPU s": round(sum(work.values()), 2),
        "ms a step": round(1000 * phases.step, 2),
        "samples/s": round(planned.training.batch_size / phases.step),
        "MB, label": round(ran.peak_bytes["label"] / MEGABYTE),
        "MB, feature": round(max(ran.peak_bytes[party] for party in features) / MEGABYTE),
    }


def runs_of(options: argparse.Namespace) -> dict[str, tuple[Job, int, Deployment]]:
    """The job, the number of records and the workers of each line, by its name; the growing numbers come first."""
    one_party, rows = job(1, options.fields, options.batch), options.rows
    more = {f"{rows * times:,} records": (one_party, rows * times, on(1, options.device)) for times in options.times}
    parties = {
        f"{count} feature parties": (job(count, options.fields, options.batch), rows, on(count, options.device))
        for count in options.parties
        if count > 1
    }
    workers = {
        f"{count} × {count} workers": (
            one_party,
            rows,
            replace(on(1, options.device), label_workers=count, feature_workers=count),
        )
        for count in options.workers
        if count > 1
    }
    return more | parties | workers


def show(found: dict[str, dict[str, Any]], sizes: list[int]) -> None:
    first = next(iter(found.values()))
    print(f"{'':<20}" + "".join(f"{name:>13}" for name in ("times as long", "in CPU time", *first)))
    for name, figures in found.items():
        times = (figures[key] / first[key] for key in ("seconds", "CPU s"))
        shown = [*(f"{each:.2f}" for each in times), *(f"{value:,}" for value in figures.values())]
        print(f"{name:<20}" + "".join(f"{value:>13}" for value in shown))
    for key in ("seconds", "CPU s"):
        taken = [figures[key] for _, figures in zip(sizes, found.values(), strict=False)]
        line = Line.through(list(zip(sizes, taken, strict=True)))
        off = max(abs(line.at(rows) / seconds - 1) for rows, seconds in zip(sizes, taken, strict=True))
        print(f"{key} of n records: {line.fixed:.1f} + n · {1e6 * line.each:.1f} µs, within {100 * off:.0f} %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--times", type=int, nargs="+", default=[1, 3, 10], help="times the rows")
    parser.add_argument("--parties", type=int, nargs="+", default=[1, 2, 4], help="feature parties")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="of each party")
    parser.add_argument("--fields", type=int, default=36)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where all parties compute")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    found = {}
    for name, (planned, rows, deployment) in runs_of(options).items():
        print(f"{name} …", file=sys.stderr)
        with tempfile.TemporaryDirectory(prefix="tpsl-growth-") as folder:
            found[name] = measured(planned, rows, deployment, Path(folder) / "rehearsal")
        print(f"  {found[name]}", file=sys.stderr, flush=True)
    if options.json:
        print(json.dumps(found))
    else:
        show(found, [options.rows * times for times in options.times])


if __name__ == "__main__":
    main()
