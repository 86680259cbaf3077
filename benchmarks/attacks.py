"""How fast attacks read a transcript: norm, spectral and shortest distance together, streamed from disk.

A recording in the form that training writes is made first: Laplace noise at ε = 1 on fair-coin labels, gradients of a
top half of the paper's shape. A process of its own then attacks it, so that its time and peak memory are those of the
attacks. The baseline is to read the recording alone.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from tpsl.attacks import run_attacks
from tpsl.data.true_labels import TrueLabels
from tpsl.mechanisms import laplace
from tpsl.models.halves import Top, Tops
from tpsl.models.model_config import ModelConfig
from tpsl.perturb import LogitGradient
from tpsl.run.job import make_job
from tpsl.run.run_folder import RunFolder
from tpsl.run.transcript import TrajectoryWriter, Transcript, TranscriptWriter

EPSILON = 1.0
ATTACKED = ("norm", "spectral", "shortest_distance")


def labels_of(records: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.random.default_rng(0).integers(0, 2, size=(records,))


def record(folder: Path, records: int, width: int, batch: int) -> None:
    """Write a run of one epoch whose weights stand still; the attacks do the same work as on a real one."""
    mechanism = laplace(EPSILON)
    privacy = {"mechanism": "laplace", "epsilon": EPSILON, "estimator": "linear"}
    job = make_job({"data": {"source": "synthetic"}, "privacy": privacy, "model": {"bottom": [width]}}, {}, "benchmark")
    gradient = LogitGradient(mechanism, "linear")
    evidence = gradient.evidence(mechanism.release(labels_of(records), 0).outcomes)
    generator = torch.Generator().manual_seed(0)
    top = Tops([Top(width, 2, ModelConfig(), generator)], 2)
    with RunFolder(folder).started(job, ["feature", "label"]):
        transcript = TranscriptWriter(folder / "feature" / "transcript", width)
        trajectory = TrajectoryWriter(folder / "label", top)
        for start in range(0, records, batch):
            rows = np.arange(start, min(start + batch, records))
            embeddings = torch.relu(torch.randn(len(rows), width, generator=generator)).requires_grad_()
            z = top([embeddings])[0]
            (gradients,) = torch.autograd.grad(z, embeddings, gradient(z.detach(), evidence[rows]))
            trajectory.record()
            transcript.record(rows, embeddings.detach(), gradients)
        transcript.close()
        trajectory.close()


def attack(folder: Path, records: int) -> dict[str, float]:
    begun = time.perf_counter()
    for seen in Transcript(folder / "feature" / "transcript"):
        seen.gradients.sum()
    reading, begun = time.perf_counter() - begun, time.perf_counter()
    report = run_attacks(folder, TrueLabels(labels_of(records), ("0", "1")), which=ATTACKED, ceilings=False)
    seconds = time.perf_counter() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {
        "seconds": round(seconds, 2),
        "times reading alone": round(seconds / reading, 1),
        "peak_memory_gb": round(peak, 2),
        "shortest_distance_auc": round(report["shortest_distance"].auc, 4),
        "closed_form": round(report.closed_form, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--attack", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.attack:
        print(json.dumps(attack(options.attack, options.records)))
        return
    with tempfile.TemporaryDirectory() as folder:
        record(Path(folder) / "run", options.records, options.width, options.batch)
        command = [sys.executable, __file__, "--attack", f"{folder}/run", "--records", str(options.records)]
        measured = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    result = {"records": options.records, "width": options.width, "attacks": list(ATTACKED), **measured}
    if options.json:
        print(json.dumps(result))
        return
    for key, value in result.items():
        print(f"{key}: {value}")


if __name__ == "__main__":
    main()
