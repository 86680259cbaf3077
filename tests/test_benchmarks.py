"""Benchmarks run to the end in their short form; what they measure is for people to read."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
SHORT = {
    "attacks.py": ["--records", "4096", "--width", "16", "--batch", "1024", "--json"],
    "fuzz_frames.py": ["--inputs", "20000", "--json"],
    "network.py": [
        *("--batch", "64", "--fields", "3", "--largest-vocabulary", "50", "--wire", "bfloat16", "--rounds", "2"),
        *("--steps", "2", "--warm-up", "1", "--patience", "0", "--json"),
    ],
    "norm_attack.py": ["--rows", "12000", "--epochs", "3"],
    "staleness.py": [
        *("--batch", "64", "--largest", "1", "--round-trip", "20", "--rounds", "2", "--steps", "3"),
        *("--accuracy", "--rows", "2000", "--seeds", "1", "--epochs", "1", "--json"),
    ],
    "step.py": ["--batch", "256", "--embedding-rows", "1000", "--rounds", "2", "--json"],
    "vault.py": ["20000"],
}


@pytest.mark.parametrize("name", SHORT)
def test_the_short_form_runs(name: str) -> None:
    done = subprocess.run(
        [sys.executable, BENCHMARKS / name, *SHORT[name]], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    if "--json" in SHORT[name]:
        assert isinstance(json.loads(done.stdout), dict)
