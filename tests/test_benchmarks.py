"""Benchmarks run to the end in their short form; what they measure is for people to read."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
SHORT = {
    "alignment.py": ["--size", "300", "--parties", "2", "--mode", "both", "--json"],
    "attacks.py": ["--records", "4096", "--width", "16", "--batch", "1024", "--json"],
    "audit_false_alarms.py": ["--simulated", "6", "--real", "1", "--json"],
    "close_time.py": ["--jobs", "1", "--records", "400", "--json"],
    "fuzz_frames.py": ["--inputs", "20000", "--json"],
    "hand_over.py": ["--rows", "1000"],
    "large_data.py": ["--rows", "2000", "--turns", "1", "--json"],
    "many_classes.py": ["--classes", "3", "--rows", "900", "--seeds", "2", "--epochs", "1", "--rates", ".01", "--json"],
    "no_noise.py": ["--rows", "1000", "--epochs", "1", "--pretraining-epochs", "1", "--seeds", "2", "--json"],
    "norm_attack.py": ["--rows", "12000", "--epochs", "3"],
    "race.py": [
        *("--batch", "64", "--fields", "3", "--largest-vocabulary", "50", "--way", "one-process", "bf16"),
        *("handed-over", "bfloat16", "--rounds", "2", "--steps", "2", "--warm-up", "1", "--patience", "0", "--json"),
    ],
    "retraining.py": ["--rows", "2000", "--seeds", "1", "--json"],
    "shared_metrics.py": ["--data", "synthetic", "--rows", "1000", "--draws", "3", "--json"],
    "row_encoder.py": ["--records", "4", "--columns", "4", "--requests", "3", "--json"],
    "scoring.py": ["--seconds", "1", "--rate", "20", "--records", "4", "--rows", "600", "--calm", "--json"],
    "staleness.py": [
        *("--batch", "64", "--largest", "1", "--round-trip", "20", "--rounds", "2", "--steps", "3"),
        *("--accuracy", "--rows", "2000", "--seeds", "1", "--epochs", "1", "--json"),
    ],
    "statistic_noise.py": ["--draws", "20000", "--json"],
    "step_profile.py": ["--batch", "256", "--embedding-rows", "1000", "--rounds", "2", "--json"],
    "step.py": ["--batch", "256", "--embedding-rows", "1000", "--rounds", "2", "--json"],
    "crossing.py": [
        *("--batch", "64", "--fields", "3", "--largest-vocabulary", "50", "--way", "int8:1:2", "--steps", "2"),
        *("--rounds", "2", "--threads", "1", "--json"),
    ],
    "vault.py": ["20000"],
    "walk.py": ["--rows", "1200", "--json"],
    "workers.py": ["--rows", "2000", "--batch", "64", "--steps", "2", "--json"],
}
NO_SHORT_FORM = ("criteo.py", "data.py", "gpu.py", "large_tables.py", "release.py", "release_statistic.py")
SECONDS = 300

# What `python PROGRAM ARGUMENTS` does, but that torch is there already, as it is in the programs that it starts.
PROGRAM = """
import runpy, sys

sys.executable = python
sys.path.insert(0, os.path.dirname(program))
sys.argv = [program, *arguments]
runpy.run_path(program, run_name="__main__")
"""


TAKE_LONG = ("close_time.py", "scoring.py", "staleness.py")
"""Even in their short forms."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in TAKE_LONG else name for name in SHORT]
)
def test_the_short_form_runs(name: str, fork: Callable[..., Any], quick_programs: Path, tmp_path: Path) -> None:
    python = str(quick_programs / "python")
    done = fork(PROGRAM, tmp_path, program=str(BENCHMARKS / name), arguments=SHORT[name], python=python)
    assert done.status(SECONDS) == 0, done.stderr.read_text()
    printed = done.stdout.read_text()
    assert printed.strip()
    if "--json" in SHORT[name]:
        assert isinstance(json.loads(printed), dict)


def make_bench(environment: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """`make bench` with another environment, which is ready."""
    (environment / ".ready").touch()
    command = ["make", "--no-print-directory", *options, f"VENV={environment}", "bench"]
    return subprocess.run(command, cwd=BENCHMARKS.parent, capture_output=True, text=True)


def test_all_benchmarks_are_run_and_a_failure_is_told_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    script = f'#!/bin/sh\necho "$@" >> {tmp_path}/run\n[ "$1" != benchmarks/step.py ]\n'
    (tmp_path / "bin" / "python").write_text(script)  # stands in for hours of measuring
    (tmp_path / "bin" / "python").chmod(0o755)
    done = make_bench(tmp_path)
    names = sorted([*SHORT, *NO_SHORT_FORM])
    assert (tmp_path / "run").read_text().splitlines() == [f"benchmarks/{name}" for name in names]
    assert done.returncode != 0
    assert done.stdout.splitlines()[-1] == "failed: benchmarks/step.py"
    (tmp_path / "bin" / "python").write_text("#!/bin/sh\n")
    assert make_bench(tmp_path).returncode == 0


@pytest.mark.parametrize("name", [*SHORT, *NO_SHORT_FORM])
def test_no_benchmark_needs_an_option(name: str, fork: Callable[..., Any], tmp_path: Path) -> None:
    """`make bench` gives none."""
    if "argparse" not in (BENCHMARKS / name).read_text(encoding="utf-8"):
        return
    done = fork(PROGRAM, tmp_path, program=str(BENCHMARKS / name), arguments=["--help"], python=sys.executable)
    assert done.status(SECONDS) == 0, done.stderr.read_text()
    usage = done.stdout.read_text().partition("\n\n")[0].split(maxsplit=2)[2]
    needed = usage
    while "[" in needed:  # an option in brackets may be left out
        needed = re.sub(r"\[[^][]*\]", "", needed)
    assert needed.split() == [], usage


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_its_benchmark_is_skipped_with_a_reason(fork: Callable[..., Any], tmp_path: Path) -> None:
    done = fork(PROGRAM, tmp_path, program=str(BENCHMARKS / "gpu.py"), arguments=[], python=sys.executable)
    assert done.status(SECONDS) == 0, done.stderr.read_text()
    assert done.stdout.read_text().startswith("skipped: it needs a GPU")
