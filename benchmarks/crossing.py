"""Samples per second of two processes over mutual TLS on one machine, for several ways to cross, on CPUs or a GPU.

    python benchmarks/crossing.py --device cuda --batch 65536 --way int8:2:4 --way bfloat16:0:1

A way is `wire:staleness:micro_batches`. All are started at once and then take turns, timed in full flight: the
batches that are under way when a turn begins are as many as when it ends. Reported are the median over rounds, the
share of the last turn in which the feature party waited, and CPU milliseconds of a step in the busiest threads of both.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Self, get_args

from race import criteo_shape
from tpsl.net.messages import WireDtype
from two_parties import Child, TwoParties

WARM_UP = 4
BUSIEST = 6


class Way(NamedTuple):
    """How a contender crosses the border."""

    wire: WireDtype
    staleness: int
    micro_batches: int

    @classmethod
    def parse(cls, text: str) -> Self:
        wire, *numbers = text.split(":")
        if wire not in get_args(WireDtype):
            raise argparse.ArgumentTypeError(f"{wire} is none of {', '.join(get_args(WireDtype))}")
        return cls(wire, *map(int, numbers))  # type: ignore[arg-type]

    def __str__(self) -> str:
        return f"{self.wire}, staleness {self.staleness}, {self.micro_batches} parts"


def started(way: Way, options: argparse.Namespace, folder: Path) -> TwoParties:
    """Both processes of a contender, with enough records that no epoch ends within the steps."""
    steps = WARM_UP + options.rounds * (way.staleness + 1 + options.steps) + way.staleness
    shape = (options.batch, steps, options.fields, options.largest_vocabulary, way.wire)
    job = criteo_shape(*shape, staleness=way.staleness, micro_batches=way.micro_batches)
    threads = (options.threads, options.threads)
    return TwoParties(job, folder / str(way), threads=threads, device=options.device)


def milliseconds_by_thread(before: Mapping[str, float], child: Child, steps: int) -> dict[str, float]:
    """CPU milliseconds of a step in each of the busiest threads of a process."""
    spent = {name: now - before.get(name, 0.0) for name, now in child.seconds_by_thread().items()}
    busiest = sorted(spent, key=lambda name: -spent[name])[:BUSIEST]
    return {name: round(1000 * spent[name] / steps, 2) for name in busiest}


def measured(parties: TwoParties, way: Way, batch: int, rounds: int, steps: int) -> dict[str, Any]:
    """Let one contender work; return its samples per second and where the time of both processes went."""
    into_flight = way.staleness + 1
    children: dict[str, Child] = {"feature": parties, "label": parties.label}
    before = {name: child.seconds_by_thread() for name, child in children.items()}
    seconds = [parties.steps_in_flight(into_flight, steps) for _ in range(rounds)]
    done = rounds * (into_flight + steps)
    return {
        "milliseconds": round(1000 * median(seconds), 2),
        "samples/s": round(batch / median(seconds)),
        "best": round(batch / min(seconds)),
        "waited": round(parties.waited, 2),
        **{name: milliseconds_by_thread(before[name], child, done) for name, child in children.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--way", type=Way.parse, action="append", help="may be repeated; int8:2:4 and bfloat16:0:1")
    parser.add_argument("--batch", type=int, help="65,536 on a GPU, 8,192 on CPUs")
    parser.add_argument("--fields", type=int, default=39)
    parser.add_argument("--largest-vocabulary", type=int, default=2_540_000, help="of 39 fields: a table of 8.6 M rows")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8, help="steps of a turn")
    parser.add_argument("--threads", type=int, default=2, help="of each process")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.way = options.way or [Way.parse(text) for text in ("int8:2:4", "bfloat16:0:1")]
    options.batch = options.batch or (65_536 if options.device == "cuda" else 8192)
    found = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running, ThreadPoolExecutor() as starting:
        contenders = list(starting.map(lambda way: started(way, options, Path(folder)), options.way))
        for parties in contenders:
            running.enter_context(parties)
        list(starting.map(lambda parties: parties.steps(WARM_UP), contenders))
        for way, parties in zip(options.way, contenders, strict=True):
            found[str(way)] = measured(parties, way, options.batch, options.rounds, options.steps)
            if not options.json:
                print(f"{way}: {json.dumps(found[str(way)])}", flush=True)
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
