"""Benchmarks run to the end in their short form; what they measure is for people to read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
SHORT = {
    "alignment.py": ["--size", "300", "--parties", "2", "--mode", "both", "--json"],
    "attacks.py": ["--records", "4096", "--width", "16", "--batch", "1024", "--json"],
    "audit_false_alarms.py": ["--simulated", "6", "--real", "1", "--json"],
    "close_time.py": ["--jobs", "1", "--records", "400", "--json"],
    "fuzz_frames.py": ["--inputs", "20000", "--json"],
    "growth.py": [
        *("--rows", "600", "--times", "1", "--parties", "2", "--workers", "1", "--fields", "6", "--batch", "64"),
        "--json",
    ],
    "hand_over.py": ["--rows", "1000"],
    "large_data.py": ["--rows", "2000", "--turns", "1", "--json"],
    "many_classes.py": ["--classes", "3", "--rows", "900", "--seeds", "2", "--epochs", "1", "--rates", ".01", "--json"],
    "network.py": [
        *("--batch", "64", "--fields", "3", "--largest-vocabulary", "50", "--wire", "bfloat16", "--rounds", "2"),
        *("--steps", "2", "--warm-up", "1", "--patience", "0", "--json"),
    ],
    "no_noise.py": ["--rows", "1000", "--epochs", "1", "--pretraining-epochs", "1", "--seeds", "2", "--json"],
    "norm_attack.py": ["--rows", "12000", "--epochs", "3"],
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
    "streams.py": [
        *("--batch", "64", "--fields", "3", "--largest-vocabulary", "50", "--way", "int8:2:1:2", "--steps", "2"),
        *("--rounds", "2", "--threads", "1", "--json"),
    ],
    "vault.py": ["20000"],
    "workers.py": ["--rows", "2000", "--batch", "64", "--steps", "2", "--json"],
}
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
