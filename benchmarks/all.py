"""All benchmarks, one after the other, also after one that fails: `python benchmarks/all.py [--quick]`.

What a machine cannot run says so and is skipped. The quick form takes about a minute: it shows that they run, on so
little that its numbers say nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
QUICK = {
    "alignment.py": "--size 300 --parties 2 --mode both --json",
    "attacks.py": "--records 4096 --width 16 --batch 1024 --json",
    "audit_false_alarms.py": "--simulated 6 --real 1 --json",
    "close_time.py": "--jobs 1 --records 400 --json",
    "data.py": "--rows 600 --rounds 1 --json",
    "fuzz_frames.py": "--inputs 20000 --json",
    "gpu.py": "--rows 200000 --epochs 1 --vocabulary 2000",
    "large_data.py": "--rows 2000 --turns 1 --json",
    "race.py": "--batch 64 --fields 3 --numbers 2 --largest-vocabulary 50 --way one-process bf16 handed-over"
    " bfloat16 int8:1:2 --rounds 2 --steps 2 --warm-up 1 --json",
    "release.py": "--records 2000 --repetitions 1 --pairs 1 --json",
    "row_encoder.py": "--records 4 --columns 4 --requests 3 --json",
    "scoring.py": "--seconds 1 --rate 20 --records 4 --rows 600 --calm --json",
    "statistic_noise.py": "--draws 20000 --json",
    "step_profile.py": "--batch 256 --embedding-rows 1000 --rounds 2 --json",
    "vault.py": "20000",
    "walk.py": "--rows 1200 --json",
    "workers.py": "--rows 2000 --batch 64 --steps 2 --json",
}
"""The benchmarks, and how each is run in the quick form."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="all of them in about a minute")
    options = parser.parse_args()
    failed = []
    for name, quick in QUICK.items():
        print(f"== {name}", flush=True)
        begun = time.perf_counter()
        command = [sys.executable, str(HERE / name), *(quick.split() if options.quick else [])]
        done = subprocess.run(command, stderr=subprocess.PIPE if options.quick else None, text=True, check=False)
        if done.returncode:
            failed.append(name)
            print(done.stderr or "", end="")
        print(f"   {time.perf_counter() - begun:.1f} s", flush=True)
    if failed:
        sys.exit(f"failed: {' '.join(failed)}")


if __name__ == "__main__":
    main()
