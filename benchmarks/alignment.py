"""Private set intersection of two parties as processes on loopback with mutual TLS.

`python benchmarks/alignment.py [--size N] [--overlap 0.5] [--mode label-only|both|size] [--parties K]
[--json]`

Each party has N records, of which the share --overlap is the same at all. Times are compared with the baseline of this
machine: the hashes and multiplications that the protocol cannot do without, on all cores, and nothing else.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from tpsl.alignment.group import fresh_scalar, hashed, multiplied
from tpsl.alignment.keys import KeyTable
from tpsl.alignment.parties import align_as
from tpsl.alignment.terms import AlignmentTerms
from tpsl.data.aligned import UNKNOWN, KeySource
from tpsl.data.config import AlignmentConfig
from tpsl.net.certificates import create_authority, issue
from tpsl.net.messages import LABEL_PARTY
from tpsl.run.local import Local

BASELINE_POINTS = 1 << 13


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=20_000, help="records of each party")
    parser.add_argument("--overlap", type=float, default=0.5)
    parser.add_argument("--mode", default="label-only", choices=["label-only", "both", "size"])
    parser.add_argument("--parties", type=int, default=1, help="feature parties")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--party", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    return parser.parse_args()


def terms_of(options: argparse.Namespace) -> AlignmentTerms:
    config = AlignmentConfig.model_validate({"mode": options.mode})
    return AlignmentTerms(config, tuple(f"party{number}" for number in range(options.parties)))


def keys_of(options: argparse.Namespace, party: str) -> KeyTable:
    """The records of a party: the first are those that all parties have, the others are its own."""
    common, seed = round(options.size * options.overlap), 1 + terms_of(options).circle.index(party)
    digests = np.empty((options.size, 32), np.uint8)
    for part, generator in (
        (digests[:common], np.random.default_rng(0)),
        (digests[common:], np.random.default_rng(seed)),
    ):
        part[:] = generator.integers(0, 256, part.shape, np.uint8)
    source = KeySource(options.size, 0, 0, hashlib.sha256(digests.tobytes()).hexdigest())
    return KeyTable(np.arange(options.size, dtype=np.int64), digests[:, None], source)


def be_a_party(options: argparse.Namespace) -> None:
    """Align as one party, check the outcome and print what it took."""
    terms, party, folder = terms_of(options), options.party, options.folder
    table = keys_of(options, party)
    certificates = folder / "certificates" / party
    local = Local.model_validate({"certificates": certificates, "wait": 600.0})
    begun, used = time.perf_counter(), time.process_time()
    where = {"listen" if party == LABEL_PARTY else "connect": options.address}
    result = align_as(party, terms, table, local.overridden(**where), folder / party)
    seconds = time.perf_counter() - begun
    common, rows = round(options.size * options.overlap), result.alignment.rows
    if party == LABEL_PARTY or options.mode != "label-only":
        assert result.alignment.matched == common
    if options.mode != "size":
        known = rows[rows != UNKNOWN]
        assert len(np.unique(known)) == len(known)
        assert (known < common).sum() == common, "not every common record was found"
        assert party != LABEL_PARTY or len(known) == common, "records that are not common were found"
    print(
        json.dumps(
            {
                "seconds": seconds,
                "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
                "cpu_seconds": time.process_time() - used,
                "bytes_sent": result.bytes_sent,
            }
        )
    )


def baseline_seconds(options: argparse.Namespace) -> tuple[float, float, float]:
    """The seconds of all hashes and multiplications on all cores, and the microseconds of one of each."""
    digests = np.frombuffer(os.urandom(32 * BASELINE_POINTS), np.uint8).reshape(-1, 32)
    scalar = fresh_scalar()
    hashes, products = [], []
    for _ in range(5):
        begun = time.perf_counter()
        points = hashed(digests, b"")
        middle = time.perf_counter()
        multiplied(points, scalar)
        hashes.append(middle - begun)
        products.append(time.perf_counter() - middle)
    hash_one, product_one = min(hashes) / BASELINE_POINTS, min(products) / BASELINE_POINTS
    lists = options.parties + 1
    return options.size * lists * (hash_one + lists * product_one), hash_one * 1e6, product_one * 1e6


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def measure(options: argparse.Namespace) -> dict[str, object]:
    """Run all parties and return the figures."""
    expected, hash_one, product_one = baseline_seconds(options)
    with tempfile.TemporaryDirectory() as temporary:
        folder, address = Path(temporary), f"127.0.0.1:{free_port()}"
        create_authority(folder / "authority")
        children = {}
        passed = [f"--{name}={getattr(options, name)}" for name in ("size", "overlap", "mode", "parties")]
        for party in terms_of(options).circle:
            issue(folder / "authority", folder / "certificates" / party, party)
        for party in terms_of(options).circle:
            command = [sys.executable, __file__, *passed, "--party", party, "--folder", str(folder)]
            children[party] = subprocess.Popen([*command, "--address", address], stdout=subprocess.PIPE, text=True)
        outputs = {party: child.communicate()[0] for party, child in children.items()}
        if any(child.returncode for child in children.values()):
            sys.exit("a party has failed")
    told = {party: json.loads(output) for party, output in outputs.items()}
    seconds = max(each["seconds"] for each in told.values())
    records = options.size * (options.parties + 1)
    return {
        "records_each": options.size,
        "mode": options.mode,
        "cores": torch.get_num_threads(),
        "seconds": seconds,
        "cpu_seconds": sum(each["cpu_seconds"] for each in told.values()),
        "hash_microseconds_all_cores": hash_one,
        "multiplication_microseconds_all_cores": product_one,
        "baseline_seconds": expected,
        "seconds_over_baseline": seconds / expected,
        "bytes_per_record": sum(each["bytes_sent"] for each in told.values()) / records,
        "peak_megabytes": {party: round(each["peak_bytes"] / 1e6) for party, each in told.items()},
    }


def main() -> None:
    options = arguments()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    if options.party:
        be_a_party(options)
        return
    figures = measure(options)
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(
            f"{name.replace('_', ' '):<40} {value:,.4g}"
            if isinstance(value, float)
            else f"{name.replace('_', ' '):<40} {value}"
        )


if __name__ == "__main__":
    main()
