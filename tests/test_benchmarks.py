"""Benchmarks run to the end in their quick form; what they measure is for people to read."""

import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
QUICK: dict[str, str] = runpy.run_path(str(BENCHMARKS / "all.py"))["QUICK"]
NO_BENCHMARKS = {"all.py", "harness.py", "own_half.py", "tcp_proxy.py"}
SECONDS = 300

# What `python PROGRAM ARGUMENTS` does, but that torch is there already, as it is in the programs that it starts.
PROGRAM = """
import runpy, sys

sys.executable = python
sys.path.insert(0, os.path.dirname(program))
sys.argv = [program, *arguments]
runpy.run_path(program, run_name="__main__")
"""

TAKE_LONG = ("close_time.py", "scoring.py")
"""Even in their quick forms."""


def test_every_benchmark_has_a_quick_form() -> None:
    assert {path.name for path in BENCHMARKS.glob("*.py")} == {*QUICK, *NO_BENCHMARKS}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in TAKE_LONG else name for name in QUICK]
)
def test_the_quick_form_runs(name: str, fork: Callable[..., Any], quick_programs: Path, tmp_path: Path) -> None:
    arguments, python = QUICK[name].split(), str(quick_programs / "python")
    done = fork(PROGRAM, tmp_path, program=str(BENCHMARKS / name), arguments=arguments, python=python)
    assert done.status(SECONDS) == 0, done.stderr.read_text()
    printed = done.stdout.read_text()
    assert printed.strip()
    if "--json" in arguments:
        assert isinstance(json.loads(printed), dict)


def test_all_are_run_and_a_failure_is_told_at_the_end(tmp_path: Path) -> None:
    """A copy of `all.py` beside programs that stand in for hours of measuring."""
    (tmp_path / "all.py").write_bytes((BENCHMARKS / "all.py").read_bytes())
    for name in QUICK:
        (tmp_path / name).write_text(f"import sys\nprint('ran', *sys.argv[1:])\nsys.exit({name == 'race.py'})\n")
    command = [sys.executable, str(tmp_path / "all.py")]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if not line.endswith(" s")]
    assert lines == [line for name in QUICK for line in (f"== {name}", "ran")]
    assert (done.returncode, done.stderr) == (1, "failed: race.py\n")
    (tmp_path / "race.py").write_text("")
    done = subprocess.run([*command, "--quick"], capture_output=True, text=True)
    assert done.returncode == 0
    assert f"ran {QUICK['walk.py']}" in done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("command", ["gpu.py", "race.py --device cuda"])
def test_without_a_gpu_its_benchmark_is_skipped_with_a_reason(
    command: str, fork: Callable[..., Any], tmp_path: Path
) -> None:
    name, *arguments = command.split()
    done = fork(PROGRAM, tmp_path, program=str(BENCHMARKS / name), arguments=arguments, python=sys.executable)
    assert done.status(SECONDS) == 0, done.stderr.read_text()
    assert done.stdout.read_text().startswith("skipped: it needs a GPU")
