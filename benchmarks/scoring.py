"""The scoring service under load: both parties as processes over mutual TLS, and clients that do not wait for answers.

Requests of raw JSON records go to the feature party's door at random times with a fixed mean rate. Latency counts from
the moment that a request was due, so that waiting for a connection counts too. Meanwhile a new model is taken over,
clients go away in the middle of their request, and each side is replaced by a new process (`--take-over`). A request
that meets a closed connection or a 503 is sent again, as any client would; one without its scores within the deadline
is an error, and so is one with other scores than those of one of the two models. The baseline is the same work in one
process: JSON, encoder, both halves, JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tpsl.data.encoder import EncoderState, Vocabulary
from tpsl.model.trained import TrainedModel
from tpsl.net.certificates import create_authority, issue
from tpsl.training.job import make_job
from tpsl.training.one_process import train
from tpsl.training.run_folder import RunFolder

DEADLINE_SECONDS = 5.0
BODIES = 64
RETRY_SECONDS = 0.05


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


class Connection(asyncio.Protocol):
    """A client's connection: one request at a time."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[tuple[int, bytes]] | None = None
        self.received = b""
        self.open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.open = transport, True

    def connection_lost(self, reason: Exception | None) -> None:
        self.open = False
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(ConnectionResetError())

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, end, rest = self.received.partition(b"\r\n\r\n")
        length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0] or 0)
        if end and len(rest) >= length and self.answer is not None and not self.answer.done():
            self.received = b""
            self.open = self.open and b"Connection: close" not in head
            self.answer.set_result((int(head[9:12]), rest))

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        self.answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self.answer


@dataclass
class Load:
    """Clients of the feature party's door."""

    port: int
    records: list[bytes]
    """The JSON of the records of each kind of request."""
    expected: list[list[np.ndarray[Any, Any]]]
    """The scores of each kind, by each model."""
    idle: list[Connection] = field(default_factory=list)
    due: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    found: Counter[str] = field(default_factory=Counter)
    by_model: Counter[int] = field(default_factory=Counter)

    def request(self, kind: int, key: str) -> bytes:
        body = b'{"key": "%s", "records": %s}' % (key.encode(), self.records[kind])
        head = f"POST /v1/score HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Type: application/json\r\n"
        return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body

    async def connection(self) -> Connection:
        while self.idle:
            found = self.idle.pop()
            if found.open:
                return found
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(Connection, "127.0.0.1", self.port)
        return made

    async def one(self, number: int, due: float) -> None:
        """Send a request, again if it must be, and look at its scores."""
        kind, until = number % len(self.records), due + DEADLINE_SECONDS
        request = self.request(kind, f"request-{number}")
        while time.perf_counter() < until:
            try:
                connection = await self.connection()
                status, content = await connection.ask(request)
            except OSError:
                self.found["sent again after a closed connection"] += 1
            else:
                self.idle.append(connection)
                if status == 200:
                    self.latencies.append(time.perf_counter() - due)
                    self.due.append(due)
                    self.look(kind, content)
                    return
                self.found[f"sent again after a {status} ({json.loads(content)['error']})"] += 1
            await asyncio.sleep(RETRY_SECONDS)
        self.found["errors"] += 1

    def look(self, kind: int, content: bytes) -> None:
        scores = np.asarray(json.loads(content)["scores"], dtype=np.float32)
        for model, expected in enumerate(self.expected[kind]):
            if np.allclose(scores, expected, rtol=0, atol=1e-6):
                self.by_model[model] += 1
                return
        self.found["errors"] += 1

    def over_time(self) -> list[float]:
        """Return the 99th percentile in ms in each of thirty parts of the time."""
        order = np.argsort(self.due)
        due, latencies = np.asarray(self.due)[order], np.asarray(self.latencies)[order]
        edges = np.searchsorted(due, np.linspace(due[0], due[-1], 31))
        return [
            round(float(np.percentile(part, 99)) * 1e3, 1) for part in np.split(latencies, edges[1:-1]) if len(part)
        ]

    async def go_away(self, number: int, after: float) -> None:
        """Send a request after so many seconds and leave before it is answered."""
        await asyncio.sleep(after)
        with suppress(OSError):
            _, made = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", self.port)
            made.transport.write(self.request(number % len(self.records), f"left-{number}"))
            await asyncio.sleep(random.uniform(0, 0.004))
            made.transport.abort()
        self.found["clients that went away"] += 1


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


async def put_under_load(parties: Parties, load: Load, options: argparse.Namespace) -> dict[str, list[float]]:
    """Send requests for as long as was asked for, with all that happens meanwhile; return memory over time."""
    loop, rng = asyncio.get_running_loop(), random.Random(1)
    events = {0.2: parties.take_over_new_model, 0.45: parties.replace_label, 0.7: parties.replace_feature}
    tasks: set[asyncio.Task[None]] = set()
    begun = loop.time()
    for share, event in events.items() if not options.calm else ():
        loop.call_later(share * options.seconds, loop.run_in_executor, None, event)
    for number in range(0 if options.calm else options.disconnects):
        at = options.seconds * (number + 0.5) / options.disconnects
        tasks.add(loop.create_task(load.go_away(number, at)))
    memory: dict[str, list[float]] = {"label": [], "feature": []}
    number, due, measured = 0, time.perf_counter(), begun
    while loop.time() - begun < options.seconds:
        due += rng.expovariate(options.rate)
        if (wait := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        task = loop.create_task(load.one(number, due))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        number += 1
        if loop.time() - measured >= options.seconds / 30:
            measured = loop.time()
            memory["label"].append(parties.label.megabytes())
            memory["feature"].append(parties.feature.megabytes())
    await asyncio.gather(*tasks)
    return memory


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
    issue(folder / "authority", folder / "label", "label", label=True)
    issue(folder / "authority", folder / "feature", "feature", label=False)
    models, rng = [Direct(run) for run in runs], random.Random(0)
    state = RunFolder(runs[0]).encoder("feature")
    records = [json.dumps(records_like(state, options.records, rng)).encode() for _ in range(BODIES)]
    bodies = [b'{"key": "request", "records": %s}' % part for part in records]
    expected = [[model.scores(body) for model in models] for body in bodies]
    direct = models[0].cpu_seconds(bodies, 200)
    parties = Parties(folder)
    load = Load(parties.port, records, expected)
    gc.collect()
    gc.freeze()  # a pause of the clients would count as latency of the services
    before, begun = parties.cpu_seconds(), time.perf_counter()
    try:
        memory = asyncio.run(put_under_load(parties, load, options))
        seconds, cpu = time.perf_counter() - begun, parties.cpu_seconds() - before
    finally:
        parties.end()
    answered = len(load.latencies)
    percentiles = {f"p{share:g}": float(np.percentile(load.latencies, share)) * 1e3 for share in (50, 99, 99.9)}
    return {
        "requests": answered,
        "requests a second": answered / seconds,
        "milliseconds": {**percentiles, "largest": max(load.latencies) * 1e3},
        "above 50 ms": float(np.mean(np.asarray(load.latencies) > 0.05)),
        "p99 over time": load.over_time(),
        "errors": load.found.pop("errors", 0),
        "by model": [load.by_model[model] for model in range(2)],
        "happened": dict(load.found),
        "MB over time": {name: [round(size) for size in sizes] for name, sizes in memory.items()},
        "CPU ms a request": cpu / answered * 1e3,
        "CPU ms a request in one process": direct * 1e3,
        "ratio": cpu / answered / direct,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--rate", type=float, default=500, help="requests a second")
    parser.add_argument("--records", type=int, default=32, help="records of a request")
    parser.add_argument("--disconnects", type=int, default=100)
    parser.add_argument("--calm", action="store_true", help="nothing happens to the services")
    parser.add_argument("--rows", type=int, default=50_000, help="flights to train on")
    parser.add_argument("--cores", type=int, default=2, help="for both services and the clients together")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TPSL_HOME"] = f"{folder}/home"
        found = measure(options, Path(folder))
    print(json.dumps(found) if options.json else "\n".join(f"{name:<32} {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()
