"""The scoring services under load by wrk: both parties as processes over mutual TLS.

wrk sends requests of raw JSON records to the feature party's service over many connections, each of which waits for a
random time after an answer, so that requests come at about the rate that is asked for. Latency counts from sending a
request to its answer. Meanwhile a new model is taken over, clients go away in the middle of a request, and each side
is replaced by a new process (`--take-over`). Before and after, scores are compared with those of the halves in this
process. The baseline is the same work in one process: JSON, encoder, both halves, JSON.

    apt-get install wrk
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tpsl.data.encoder import EncoderState, Vocabulary
from tpsl.model.trained import TrainedModel
from tpsl.net.certificates import create_authority, issue
from tpsl.run.job import make_job
from tpsl.run.one_process import train
from tpsl.run.run_folder import RunFolder

BODIES = 64
CONNECTIONS = 32
LOAD = """
local bodies, at = {}, 0
for line in io.lines(os.getenv("BODIES")) do bodies[#bodies + 1] = line end
local pause = 2 * tonumber(os.getenv("PAUSE_MS"))
function init(arguments) math.randomseed(tonumber(tostring(wrk.thread):match("0x(%x+)"), 16) % 2^31) end
function delay() return math.random(0, pause) end
function request()
  at = at % #bodies + 1
  return wrk.format("POST", "/v1/score", {["Content-Type"] = "application/json"}, bodies[at])
end
function done(summary, latency, requests)
  local errors = summary.errors
  io.stderr:write(string.format(
    '{"requests": %d, "p50": %f, "p99": %f, "p99.9": %f, "largest": %f, "connect": %d, "read": %d, "write": %d,'
      .. '"timeout": %d, "status": %d}', summary.requests, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
    latency:percentile(99.9) / 1e3, latency.max / 1e3, errors.connect, errors.read, errors.write, errors.timeout,
    errors.status))
end
"""
"""The script of wrk. Latencies are in microseconds there, in milliseconds here."""


def records_like(state: EncoderState, count: int, rng: random.Random) -> list[dict[str, Any]]:
    """Return records with values that the encoder knows."""
    values = {name: part.values.to_pylist() for name, part in state.categories.items() if isinstance(part, Vocabulary)}
    return [
        {name: rng.choice(known) for name, known in values.items()}
        | {name: round(rng.gauss(part.mean, part.deviation), 3) for name, part in state.numbers.items()}
        for _ in range(count)
    ]


class Direct:
    """The same work in one process."""

    def __init__(self, run: Path) -> None:
        self.encoder = RunFolder(run).encoder("feature")
        model = TrainedModel.open(run)
        self.bottom, self.top = model.embedder("feature"), model.predictor()

    def scores(self, body: bytes) -> np.ndarray[Any, Any]:
        features = self.encoder.encode_records(json.loads(body)["records"])
        return self.top.probabilities({"feature": self.bottom.embed(features)})

    def cpu_seconds(self, bodies: Sequence[bytes], requests: int) -> float:
        """Return the CPU seconds of one request."""
        begun = time.process_time()
        for number in range(requests):
            json.dumps({"scores": self.scores(bodies[number % len(bodies)]).tolist()})
        return (time.process_time() - begun) / requests


class Process:
    """One party's service."""

    def __init__(self, *arguments: object) -> None:
        command = [str(Path(sys.executable).with_name("tpsl")), *map(str, arguments), "--json"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.pid = self._process.pid

    def told(self) -> dict[str, Any]:
        """Wait until it is open; return what it says then."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            assert self._process.stderr
            sys.exit(f"a service ended early: {self._process.stderr.read()}")
        content: dict[str, Any] = json.loads(line)
        return content

    def waits_for_its_port(self) -> None:
        """Wait until it is ready and waits for the port."""
        assert self._process.stderr
        while "ready; waiting" not in (line := self._process.stderr.readline()):
            if not line:
                sys.exit("a service ended early")

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def end(self) -> None:
        self._process.terminate()
        self._process.communicate(timeout=30)

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def megabytes(self) -> float:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text(encoding="utf-8").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


class Parties:
    """Both services, and what happens to them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.link = folder, folder / "current"
        self.link.symlink_to("run-0")
        self.label, told = self.start_label("127.0.0.1:0", 0)
        self.address, self.label_http = told["listening"], told["http"].rpartition(":")[2]
        self.feature, told = self.start_feature(0)
        self.port = int(told["http"].rpartition(":")[2])
        self.cpu_of_ended = 0.0

    def start_label(self, listen: str, http: object, *more: str) -> tuple[Process, dict[str, Any]]:
        certs = self.folder / "label"
        made = Process("score", self.link, "--listen", listen, "--certs", certs, "--http", http, *more)
        return made, {} if more else made.told()

    def start_feature(self, http: object, *more: str) -> tuple[Process, dict[str, Any]]:
        certs = self.folder / "feature"
        made = Process("score", self.link, "--connect", self.address, "--certs", certs, "--http", http, *more)
        return made, {} if more else made.told()

    def take_over_new_model(self) -> None:
        """The label party first, then, a moment later, the feature party."""
        moved = self.folder / "moved"
        moved.symlink_to("run-1")
        moved.rename(self.link)
        self.label.signal(signal.SIGHUP)
        time.sleep(1)
        self.feature.signal(signal.SIGHUP)

    def replace_label(self) -> None:
        new, _ = self.start_label(self.address, self.label_http, "--take-over")
        self.label = self._replaced(self.label, new)

    def replace_feature(self) -> None:
        new, _ = self.start_feature(self.port, "--take-over")
        self.feature = self._replaced(self.feature, new)

    def _replaced(self, old: Process, new: Process) -> Process:
        new.waits_for_its_port()
        self.cpu_of_ended += old.cpu_seconds() - new.cpu_seconds()  # its start is not counted
        old.end()
        new.told()
        return new

    def cpu_seconds(self) -> float:
        return self.cpu_of_ended + self.label.cpu_seconds() + self.feature.cpu_seconds()

    def end(self) -> None:
        self.feature.end()
        self.label.end()


def scores_of(port: int, body: bytes) -> np.ndarray[Any, Any]:
    """Ask the feature party's service."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/score", body, headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return np.asarray(json.loads(answer.read())["scores"], dtype=np.float32)


def go_away(port: int, body: bytes) -> None:
    """Send a request and leave before it is answered."""
    head = (
        f"POST /v1/score HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    )
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
            client.sendall(head.encode() + b"\r\n\r\n" + body)
            time.sleep(random.uniform(0, 0.004))
    except OSError:
        pass  # the service is just being replaced


def put_under_load(parties: Parties, bodies: Sequence[bytes], options: argparse.Namespace) -> dict[str, Any]:
    """Have wrk send requests for as long as was asked for, with all that happens meanwhile."""
    script, lines = parties.folder / "load.lua", parties.folder / "bodies"
    script.write_text(LOAD)
    lines.write_bytes(b"\n".join(bodies))
    pause = max(1000 * CONNECTIONS / options.rate - options.expected, 0)
    environment = {**os.environ, "BODIES": str(lines), "PAUSE_MS": f"{pause:.0f}"}
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{options.seconds}s", "--timeout", "10s", "-s", str(script)]
    timers = (
        []
        if options.calm
        else [
            threading.Timer(share * options.seconds, event)
            for share, event in (
                (0.2, parties.take_over_new_model),
                (0.45, parties.replace_label),
                (0.7, parties.replace_feature),
                *(((number + 0.5) / 100, lambda: go_away(parties.port, bodies[0])) for number in range(100)),
            )
        ]
    )
    for timer in timers:
        timer.start()
    found = subprocess.run(
        [*command, f"http://127.0.0.1:{parties.port}"], env=environment, capture_output=True, text=True, check=True
    )
    for timer in timers:
        timer.join()
    content: dict[str, Any] = json.loads(found.stderr)
    return content


def trained(folder: Path, options: argparse.Namespace) -> list[Path]:
    """Return two runs of the same job, which differ by their noise."""
    content = {
        "data": {"source": "flights", "rows": options.rows},
        "privacy": {"epsilon": 2.0},
        "training": {"epochs": 1},
        "prediction": {"returns": "score"},
    }
    job = make_job(content, {}, "benchmark")
    runs = [folder / f"run-{number}" for number in range(2)]
    for run in runs:
        train(job, run)
    return runs


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    runs = trained(folder, options)
    create_authority(folder / "authority")
    issue(folder / "authority", folder / "label", "label")
    issue(folder / "authority", folder / "feature", "feature")
    old, new = (Direct(run) for run in runs)
    state, rng = RunFolder(runs[0]).encoder("feature"), random.Random(0)
    bodies = [json.dumps({"records": records_like(state, options.records, rng)}).encode() for _ in range(BODIES)]
    direct = old.cpu_seconds(bodies, 200)
    parties = Parties(folder)
    try:
        np.testing.assert_allclose(scores_of(parties.port, bodies[0]), old.scores(bodies[0]), rtol=0, atol=1e-6)
        before, begun = parties.cpu_seconds(), time.perf_counter()
        found = put_under_load(parties, bodies, options)
        seconds, cpu = time.perf_counter() - begun, parties.cpu_seconds() - before
        last = old if options.calm else new
        np.testing.assert_allclose(scores_of(parties.port, bodies[0]), last.scores(bodies[0]), rtol=0, atol=1e-6)
        memory = {"label": parties.label.megabytes(), "feature": parties.feature.megabytes()}
    finally:
        parties.end()
    return {
        **found,
        "errors": sum(found[name] for name in ("connect", "read", "write", "timeout", "status")),
        "requests a second": found["requests"] / seconds,
        "MB": memory,
        "CPU ms a request": cpu / found["requests"] * 1e3,
        "CPU ms a request in one process": direct * 1e3,
        "ratio": cpu / found["requests"] / direct,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--rate", type=float, default=500, help="requests a second, about")
    parser.add_argument("--expected", type=float, default=15, help="milliseconds that an answer takes, for the rate")
    parser.add_argument("--records", type=int, default=32, help="records of a request")
    parser.add_argument("--calm", action="store_true", help="nothing happens to the services")
    parser.add_argument("--rows", type=int, default=50_000, help="flights to train on")
    parser.add_argument("--cores", type=int, default=2, help="for both services and the clients together")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, Any] = {"skipped": "it needs wrk: `apt-get install wrk`"}
    if shutil.which("wrk"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as folder:
            os.environ["TPSL_HOME"] = f"{folder}/home"
            found = measure(options, Path(folder))
    print(json.dumps(found) if options.json else "\n".join(f"{name:<32} {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()
