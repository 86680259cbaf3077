"""How many files and functions does a step pass through? `python benchmarks/walk.py [--rows N] [--list] [--json]`.

A small job is trained in one process, and by two parties over mutual TLS. Counted are the files and functions of this
package that run in three steps in the middle of an epoch, each once, and the functions on the stack of a party's
backward pass, from what the commands call on: `train_together`, `serve` or `join`. Comprehensions and lambdas are not
counted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Self

import torch

import tpsl
from tpsl.net.certificates import create_authority, issue
from tpsl.run.job import Job, make_job
from tpsl.run.local import Local
from tpsl.run.observer import Observer, Watching
from tpsl.run.one_process import train_together
from tpsl.run.over_network import join, serve
from tpsl.run.run_folder import RunFolder
from tpsl.run.setup import RunSetup
from tpsl.run.vaults import VaultChoice
from tpsl.vault.place import VARIABLE as HOME

FIRST, LAST = 5, 8
"""Watched is what runs between the end of these steps."""
PACKAGE = str(Path(tpsl.__file__).parent) + os.sep
BACKWARD = ("FeatureParty.backward", "LabelParty.backward")
ROOTS = {train_together.__qualname__, serve.__qualname__, join.__qualname__}
"""What the commands call."""
Function = tuple[str, str]


@dataclass
class Walk:
    """What ran in the steps of a party, or of several."""

    functions: set[Function] = field(default_factory=set)
    stacks: dict[str, list[str]] = field(default_factory=dict)
    """Of the backward passes."""

    @property
    def files(self) -> set[str]:
        """The files of the functions."""
        return {file for file, _ in self.functions}


class Tracer(Observer):
    """Notes what this process runs between two steps: of the feature party, in the thread of this object, and of all
    other threads, which are the label party's.

    It also learns where the label party listens.
    """

    def __init__(self) -> None:
        self.feature, self.others = Walk(), Walk()
        self.address, self.listens = "", threading.Event()
        self._thread, self._is_watching = threading.get_ident(), False

    def __enter__(self) -> Self:
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *error: object) -> None:
        threading.setprofile(None)
        sys.setprofile(None)

    def at_step(self, done: int, total: int, records: int) -> None:
        """Begin and end to watch."""
        if done in (FIRST, LAST):
            self._is_watching = done == FIRST

    def event(self, name: str, **facts: str | float) -> None:
        """Note the address at which the label party listens."""
        if name == "listening":
            self.address = str(facts["address"])
            self.listens.set()

    def _profile(self, frame: FrameType, event: str, argument: object) -> None:
        """Note a call; Python calls this in every thread."""
        code = frame.f_code
        if event != "call" or not self._is_watching or not code.co_filename.startswith(PACKAGE):
            return
        if not code.co_name.startswith("<"):
            walk = self.feature if threading.get_ident() == self._thread else self.others
            walk.functions.add((code.co_filename.removeprefix(PACKAGE), plain(code.co_qualname)))
            if code.co_qualname in BACKWARD:
                walk.stacks[code.co_qualname] = stack_of(frame)


def plain(name: str) -> str:
    """Return the name of a function without the words of the compiler."""
    return name.replace(".<locals>", "")


def stack_of(frame: FrameType | None) -> list[str]:
    """Return the functions of this package on a stack, the outermost first, from the command's function on."""
    names: list[str] = []
    while frame is not None and (not names or names[-1] not in ROOTS):
        if frame.f_code.co_filename.startswith(PACKAGE):
            names.append(plain(frame.f_code.co_qualname))
        frame = frame.f_back
    return names[::-1]


def job_of(rows: int, folder: Path) -> Job:
    """Return a small job whose tables are in the folder."""
    numbers = torch.randn(rows, 3, generator=torch.Generator().manual_seed(1))
    lines = [f"r{row},{a:.3f},{b:.3f},{'ab'[row % 2]}\n" for row, (a, b, _) in enumerate(numbers.tolist())]
    (folder / "features.csv").write_text("id,x,y,kind\n" + "".join(lines))
    labels = [f"r{row},{int(a + c > 0)}\n" for row, (a, _, c) in enumerate(numbers.tolist())]
    (folder / "labels.csv").write_text("id,label\n" + "".join(labels))
    features = {
        "party": "airport",
        "path": str(folder / "features.csv"),
        "numeric": ["x", "y"],
        "categorical": ["kind"],
    }
    content = {
        "data": {"source": "table", "features": [features], "label": {"path": str(folder / "labels.csv")}},
        "privacy": {"mechanism": "randomized_response", "epsilon": 1.0},
        "training": {"batch_size": 100, "epochs": 1, "patience": 0, "validation": 0.0, "wire": "bfloat16"},
    }
    return make_job(content, {}, "walk")


def in_one_process(job: Job, folder: Path) -> Walk:
    """Train in one process."""
    with Tracer() as tracer:
        setup = RunSetup(job, RunFolder(folder / "one"), watching=Watching(tracer))
        train_together(setup, VaultChoice(scratch=True))
    return tracer.feature


def over_the_network(job: Job, folder: Path) -> dict[str, Walk]:
    """Train as two parties, each in a thread; return what each of them did, and both together."""
    create_authority(folder / "authority", days=1)
    for party in ("label", "airport"):
        issue(folder / "authority", folder / party, party, days=1)
    at_label = Local(listen="127.0.0.1:0", certificates=folder / "label")

    class Listening(Observer):
        """The label party's: it does not say when to watch."""

        def event(self, name: str, **facts: str | float) -> None:
            tracer.event(name, **facts)

    with Tracer() as tracer, ThreadPoolExecutor(1) as label:
        serving = label.submit(serve, job, at_label, folder / "serve", watching=Watching(Listening()))
        while not tracer.listens.wait(0.1) and not serving.done():
            pass
        if tracer.listens.is_set():
            local = Local(connect=tracer.address, certificates=folder / "airport")
            join(job, "airport", local, folder / "join", watching=Watching(tracer))
        serving.result()
    feature, others = tracer.feature, tracer.others
    both = Walk(feature.functions | others.functions, {**feature.stacks, **others.stacks})
    return {"feature party": feature, "label party": others, "both parties": both}


def main() -> None:
    parser = argparse.ArgumentParser(description="How many files and functions does a step pass through?")
    parser.add_argument("--rows", type=int, default=2000, help="records of the job")
    parser.add_argument("--list", action="store_true", help="name every function")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ[HOME] = str(folder / "home")
        job = job_of(options.rows, folder)
        walks = {"one process": in_one_process(job, folder), **over_the_network(job, folder)}
    if options.json:
        counts = {run: {"files": len(walk.files), "functions": len(walk.functions)} for run, walk in walks.items()}
        print(json.dumps({run: {**found, "stacks": walks[run].stacks} for run, found in counts.items()}))
        return
    for run, walk in walks.items():
        print(f"{run}: {len(walk.files)} files, {len(walk.functions)} functions")
        for stack in walk.stacks.values() if run != "both parties" else ():
            print(f"  {len(stack)} functions to the gradient: {' → '.join(stack)}")
        for file, function in sorted(walk.functions) if options.list else ():
            print(f"  {file}  {function}")


if __name__ == "__main__":
    main()
