"""Samples per second of this package and of other libraries against plain PyTorch, unsplit, in one run.

    python benchmarks/race.py --batch 64 --way one-process bfloat16 --peer opacus=~/opacus/bin/python
    python benchmarks/race.py --way float32 float32:1 float32:2 --round-trip 100 --batch 1024
    python benchmarks/race.py --way int8:2:4 --device cuda --batch 65536 --largest-vocabulary 2540000

All contenders train the same network on records of the same shape. A way is one in which this package trains: in one
process, the same with `precision: bf16`, the feature party alone with labels that were handed over, or two processes as
`wire:staleness:micro_batches` (`int8` is `int8:0:1`). A peer is another library in an environment of its own; its
program in `contenders` says how to make it.

Every contender lives in processes of its own on the same cores and works only when it is its turn: so many steps at a
time, round after round. Reported is the median over rounds of the ratio to the unsplit network of the same round,
because the machine's speed drifts more between rounds than within one: of wall time, and of CPU time, which other
programs disturb least. Two processes are the two programs on loopback with mutual TLS; bytes are what their TCP
connection carries; `waited` is the share of the time in which the feature party waits for the label party.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import torch

from harness import HERE, Contender, OneProcess, TwoParties, against, in_turns
from tpsl.data.config import SyntheticData
from tpsl.data.dataset import load_feature_party
from tpsl.data.features import table_features
from tpsl.models.model_config import ModelConfig, OptimizerConfig
from tpsl.net.messages import WireDtype
from tpsl.net.rounding import wire_bytes
from tpsl.run.job import Job
from tpsl.run.job_sections import PrivacyConfig, TrainingConfig
from tpsl.run.local import SMALL_BATCH

LARGEST_VOCABULARY = 254_000
"""With 39 fields whose sizes grow geometrically from 4 to this, the table has a million rows."""
TEST_FRACTION = 0.01
LEARNING_RATE = 0.01
BASELINE = "unsplit"
IN_ONE_PROCESS = ("one-process", "bf16", "handed-over")
WAYS = (*IN_ONE_PROCESS, "int8", "bfloat16", "float32")
CONTENDERS = HERE / "contenders"
PEERS = {
    "opacus": "opacus_ghost",
    "nvflare": "nvflare_split",
    "flower": "flower_vertical",
    "secretflow": "secretflow_split",
}
"""The programs of other libraries."""


class Crossing(NamedTuple):
    """How two processes cross the border."""

    wire: WireDtype
    staleness: int = 0
    micro_batches: int = 1

    def of(self, job: Job) -> Job:
        return job.model_copy(update={"training": job.training.model_copy(update=self._asdict())})


def crossing(way: str) -> Crossing | None:
    """Return how a way crosses the border; None: it is one process."""
    if way in IN_ONE_PROCESS:
        return None
    wire, *numbers = way.split(":")
    if wire not in get_args(WireDtype) or len(numbers) > 2:
        raise argparse.ArgumentTypeError(f"{way} is none of {', '.join(WAYS)}, or WIRE:STALENESS:MICRO_BATCHES")
    return Crossing(wire, *map(int, numbers))  # type: ignore[arg-type]


def way(text: str) -> str:
    crossing(text)  # or an error
    return text


def peer(text: str) -> tuple[str, Path]:
    name, _, python = text.partition("=")
    if name not in PEERS or not python:
        raise argparse.ArgumentTypeError(f"{text} is not NAME=PYTHON with a name of {', '.join(PEERS)}")
    return name, Path(python).expanduser().absolute()


def raced_job(options: argparse.Namespace) -> Job:
    """A job with enough records that no epoch, and so no evaluation and no checkpoint, ends within the steps."""
    optimizer = OptimizerConfig(name=options.optimizer, learning_rate=LEARNING_RATE)
    under_way = 1 + max((found.staleness for name in options.way if (found := crossing(name))), default=0)
    steps = options.warm_up + options.rounds * (options.steps + under_way) + 2 * under_way + 2
    return Job(
        data=SyntheticData(
            rows=int(steps * options.batch / (1 - TEST_FRACTION)),
            numeric_fields=options.numbers,
            categorical_fields=options.fields,
            largest_vocabulary=options.largest_vocabulary,
            test_fraction=TEST_FRACTION,
            classes=options.classes,
        ),
        privacy=PrivacyConfig(epsilon=1.0),
        model=ModelConfig(
            embedding_dim=options.embedding_dim,
            bottom=(128, options.cut),
            top=(128, 128),
            embedding_updates=options.updates,
        ),
        training=TrainingConfig(
            epochs=1,
            batch_size=options.batch,
            checkpoint_every=1 << 30,
            feature_optimizer=optimizer,
            label_optimizer=optimizer,
        ),
    )


def write_task(job: Job, options: argparse.Namespace, folder: Path) -> None:
    """Write what contenders without this package train on: the job's network and records, with labels by chance."""
    assert isinstance(job.data, SyntheticData)
    folder.mkdir()
    side = load_feature_party(job.data)
    held = table_features(side.features, "the network")
    shape = {
        "batch": job.training.batch_size,
        "fields": held.categorical.shape[1],
        "numbers": held.numeric.shape[1],
        "table_rows": held.embedding_rows,
        "embedding_dim": job.model.embedding_dim,
        "bottom": job.model.bottom,
        "top": job.model.top,
        "classes": job.data.classes,
        "optimizer": options.optimizer,
        "updates": options.updates,
        "learning_rate": LEARNING_RATE,
        "threads": options.threads,
        "device": options.device,
    }
    (folder / "shape.json").write_text(json.dumps(shape), encoding="utf-8")
    np.save(folder / "categorical.npy", held.categorical[side.train])
    np.save(folder / "numeric.npy", held.numeric[side.train])
    np.save(folder / "labels.npy", np.random.default_rng(0).integers(0, job.data.classes, len(side.train)))


def own_contender(name: str, job: Job, folder: Path, options: argparse.Namespace) -> Contender:
    """Start one of the ways in which this package trains."""
    if (crosses := crossing(name)) is not None:
        return two_parties(crosses, job, folder, options, proxy=options.round_trip > 0)
    if name == "handed-over":
        return OneProcess(job.with_labels_handed_over(), folder, threads=options.feature_threads)
    return OneProcess(job, folder, threads=options.feature_threads, precision="bf16" if name == "bf16" else "float32")


def two_parties(crosses: Crossing, job: Job, folder: Path, options: argparse.Namespace, *, proxy: bool) -> TwoParties:
    threads = options.feature_threads, options.label_threads
    return TwoParties(crosses.of(job), folder, threads=threads, proxy=proxy, device=options.device)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--fields", type=int, default=39, help="categories")
    parser.add_argument("--numbers", type=int, default=0)
    parser.add_argument("--largest-vocabulary", type=int, default=LARGEST_VOCABULARY)
    parser.add_argument("--embedding-dim", type=int, default=16)
    parser.add_argument("--cut", type=int, default=128, help="width of the cut")
    parser.add_argument("--classes", type=int, default=2)
    parser.add_argument("--optimizer", choices=["sgd", "adam", "adagrad"], default="sgd")
    parser.add_argument("--updates", choices=["lazy", "dense"], default="lazy", help="of the embeddings")
    parser.add_argument("--way", type=way, nargs="+", help=f"{', '.join(WAYS)}, or WIRE:STALENESS:MICRO_BATCHES")
    parser.add_argument("--peer", type=peer, nargs="+", default=[], metavar="NAME=PYTHON", help=", ".join(PEERS))
    parser.add_argument("--rounds", type=int, default=15, help="two at least")
    parser.add_argument("--steps", type=int, default=8, help="steps of a turn")
    parser.add_argument("--warm-up", type=int, default=5, help="steps of each contender before the first round")
    parser.add_argument("--threads", type=int, default=2, help="of contenders without this package")
    parser.add_argument("--feature-threads", type=int, help="also of one process; as `tpsl train` takes if not given")
    parser.add_argument("--label-threads", type=int)
    parser.add_argument("--round-trip", type=float, default=0.0, help="milliseconds between two processes")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="of the network and of two processes")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    own_threads = 1 if options.batch <= SMALL_BATCH and options.device == "cpu" else options.threads
    options.feature_threads = options.feature_threads or own_threads
    options.label_threads = options.label_threads or own_threads
    on_gpu = options.device == "cuda"
    options.way = options.way or [name for name in WAYS if not on_gpu or crossing(name)]
    if options.peer and (on_gpu or options.numbers or options.optimizer != "sgd"):
        parser.error("peers train on categories alone, with SGD, on the CPU")
    if on_gpu and not all(map(crossing, options.way)):
        parser.error("one process on a GPU is measured by gpu.py")
    return options


def main() -> None:
    options = arguments()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("skipped: it needs a GPU, and PyTorch sees none here")
        return
    job = raced_job(options)
    with tempfile.TemporaryDirectory() as name, ExitStack() as running:
        folder = Path(name)
        write_task(job, options, folder / "task")
        contenders = {BASELINE: Contender(CONTENDERS / "unsplit.py", folder / "task")}
        contenders |= {way: own_contender(way, job, folder / way, options) for way in options.way}
        for library, python in options.peer:
            (folder / library).mkdir()
            program = CONTENDERS / f"{PEERS[library]}.py"
            contenders[library] = Contender(program, folder / "task", python=python, folder=folder / library)
        for contender in contenders.values():
            running.enter_context(contender)
            if options.round_trip and isinstance(contender, TwoParties):
                contender.delay(options.round_trip / 2)
        turns = in_turns(contenders, options.rounds, options.steps, options.warm_up)
        result = against(BASELINE, turns, options.batch)
        running.close()
        for way_name, crosses in ((name, found) for name in options.way if (found := crossing(name))):
            with two_parties(crosses, job, folder / f"{way_name} counted", options, proxy=True) as parties:
                tensors = 2 * wire_bytes((options.batch, job.model.cut_width("feature")), crosses.wire)
                carried = parties.bytes_of_a_step(options.steps)
                result[way_name]["bytes per tensor byte"] = round(carried / tensors, 4)
    print_found(result, as_json=options.json)


def print_found(result: dict[str, dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))
        return
    for name, figures in result.items():
        print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in figures.items()))


if __name__ == "__main__":
    main()
