"""A real browser for the tests of pages, a network that breaks on command, processes that start in a moment, real runs.

The browser is Debian's Chromium, spoken to by its DevTools protocol. Without one its tests are skipped, unless
TPSL_REQUIRE_BROWSER=1 says that skipping is not acceptable.
"""

import functools
import gc
import itertools
import json
import logging
import multiprocessing
import os
import pickle
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from _pytest.assertion import rewrite
from hypothesis import HealthCheck, settings
from tests.ports import free_port

# The same examples in every run, and no verdict that depends on how busy the machine is.
settings.register_profile(
    "repeatable", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


LONGEST = (
    "test_docs.py",
    "cli/test_two_parties.py",
    "cli/test_on_ray.py",
    "test_benchmarks.py",
    "cli/test_examples.py",
    "cli/test_life_cycle.py",
    "run/test_network_drill.py",
    "run/test_workers_drill.py",
    "model/test_exporting.py",
    "research/test_frontier.py",
    "deploy/test_pods.py",
    "test_wheel.py",
    "test_workers.py",
    "cli/test_check.py",
    "run/test_workers.py",
    "models/test_workers_of_a_half.py",
    "cli/test_own_parts.py",
    "report/test_page_in_browser.py",
    "data/test_party_file.py",
    "cli/test_scoring.py",
    "cli/test_demo.py",
    "model/test_predictors.py",
    "models/test_compiling.py",
    "run/test_crash.py",
    "report/test_run_browser.py",
    "vault/test_vault.py",
    "alignment/test_crash.py",
    "cli/test_tune.py",
)
"""Files that take long for the number of their tests: five seconds or more."""


def pytest_configure(config: pytest.Config) -> None:
    """Compile the tests once, on all processors, before workers start that would each compile all of them."""
    if getattr(config.option, "numprocesses", None) and not sys.dont_write_bytecode:
        files = [*Path(__file__).parent.rglob("test_*.py"), *Path(__file__).parent.rglob("conftest.py")]
        with multiprocessing.get_context("fork").Pool() as pool:
            pool.map(_compile, files)


def _compile(file: Path) -> None:
    """Leave the code of a test file where pytest looks for it, as its import hook does before it runs the code."""
    kept = rewrite.get_cache_dir(file) / (file.stem + rewrite.PYC_TAIL)
    if rewrite._read_pyc(file, kept) is None:
        digest, code = rewrite._rewrite_test(file, None)  # type: ignore[arg-type]
        kept.parent.mkdir(exist_ok=True)
        with kept.open("wb") as written:
            rewrite._write_pyc_fp(written, digest, code)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files come first, then those of most tests: no worker should end long after the others.

    What is marked `long` is left to `make drill`.
    """
    ranks = {Path(__file__).parent / name: rank for rank, name in enumerate(LONGEST)}
    sizes = Counter(item.path for item in items)
    items.sort(key=lambda item: (ranks.get(item.path, len(ranks)), -sizes[item.path]))
    if "TPSL_DRILL_KILLS" not in os.environ:
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="it takes long: `make drill` runs it"))


def pytest_collection_finish() -> None:
    """What was imported stays: the garbage collector need not look at it again and again.

    Nor is anything compiled into a file from now on: tests write modules, import them and write others in their place.
    """
    gc.collect()
    gc.freeze()
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    """Only a power failure shows whether a file is on the disk; `test_power_failure.py` lets the power fail.

    Programs in a folder (`fork`) do not wait either. Other processes and SQLite do.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: os.fstat(file) and None)
        yield


@pytest.fixture(scope="module", autouse=True)
def _home_of_the_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a module prepares once is made by a label party of its own, with a vault of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TPSL_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(autouse=True)
def _home_of_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test is a label party of its own: none finds what another has released."""
    monkeypatch.setenv("TPSL_HOME", str(tmp_path / "home"))


REGISTRIES = {
    "tpsl.mechanisms.mechanism_registry": ("MECHANISMS",),
    "tpsl.perturb": ("LOSSES",),
    "tpsl.models.optimizer": ("OPTIMIZERS", "SCHEDULES"),
    "tpsl.attacks.suite": ("ATTACKS",),
    "tpsl.run.loggers": ("LOGGERS",),
}


@pytest.fixture(autouse=True)
def _own_registries(tmp_path: Path) -> Iterator[None]:
    """What a test registers, or imports from its own folder, is forgotten after it."""
    found = [(module, name) for module, names in REGISTRIES.items() if module in sys.modules for name in names]
    registries = [getattr(sys.modules[module], name) for module, name in found]
    before = [dict(registry._parts) for registry in registries]
    modules = getattr(sys.modules.get("tpsl.registry"), "_used", {})
    used, imported = dict(modules), dict(sys.modules)
    yield
    modules.clear()
    modules.update(used)
    for registry, parts in zip(registries, before, strict=True):
        registry._parts = parts
    new = [name for name, module in list(sys.modules.items()) if imported.get(name) is not module]
    for name in new:  # Few: to ask all modules for their files would take longer than most tests.
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


COMPUTED_ONCE = {
    "tpsl.data.synthetic": ("World", "World._chunk"),
    "tpsl.data.flights": ("_read",),
}
"""Functions of their arguments alone whose results nobody changes. They may take some 20 MB each, so few are kept."""


@pytest.fixture(scope="session")
def _remembering() -> list[tuple[object, str, Any]]:
    found = []
    for module, names in COMPUTED_ONCE.items():
        for name in names:
            if module in sys.modules:  # or none of these tests needs it
                *path, own = name.split(".")
                holder = functools.reduce(getattr, path, sys.modules[module])
                found.append((holder, own, functools.lru_cache(maxsize=8)(getattr(holder, own))))
    return found


@pytest.fixture(autouse=True)
def computed_once(_remembering: list[tuple[object, str, Any]]) -> Iterator[None]:
    """Records are computed once for all tests that are not about them."""
    with pytest.MonkeyPatch.context() as patch:
        for holder, name, remembering in _remembering:
            patch.setattr(holder, name, remembering)
        yield


class Browser:
    """A headless Chromium, spoken to by its DevTools protocol: what tests of pages need of a browser."""

    def __init__(self, chromium: str, profile: Path) -> None:
        from websocket import create_connection

        flags = (*FLAGS, f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank")
        self._process = subprocess.Popen([chromium, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        listening, until = profile / "DevToolsActivePort", time.monotonic() + 60
        while not (listening.exists() and listening.read_text().count("\n")):
            assert self._process.poll() is None and time.monotonic() < until, "Chromium does not start"
            time.sleep(0.05)
        port = int(listening.read_text().splitlines()[0])
        with urlopen(f"http://127.0.0.1:{port}/json/list") as answer:
            pages = [one for one in json.load(answer) if one["type"] == "page"]
        self._socket = create_connection(pages[0]["webSocketDebuggerUrl"], timeout=60, suppress_origin=True)
        self._ids, self._events = itertools.count(1), list[dict[str, Any]]()
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Return what the browser answers; what it tells on the way is kept."""
        number = next(self._ids)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            if "method" in message:
                self._events.append(message)

    def open(self, page: Path, *, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        """Show a page in a fresh state: no log, this size, nothing remembered from other pages."""
        self.call("Storage.clearDataForOrigin", origin="file://", storageTypes="all")
        # The metrics are overridden because a headless window cannot be narrower than about 500 pixels.
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.go("about:blank")
        self._events.clear()
        self.go(page.as_uri())

    def go(self, address: str) -> None:
        """Go to an address, and wait until it is loaded."""
        before = len(self._events)
        self.call("Page.navigate", url=address)
        while not any(event["method"] == "Page.loadEventFired" for event in self._events[before:]):
            self._events.append(json.loads(self._socket.recv()))

    def run(self, script: str, *arguments: Any) -> Any:
        """Return what a JavaScript function body returns."""
        expression = f"(async function () {{ {script} }}).apply(null, {json.dumps(arguments)})"
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def console(self) -> list[str]:
        """Return what the console has said since the page was opened, or since the last call."""
        told = [event for event in self._told() if event["method"] in _COMPLAINTS]
        self._events = [event for event in self._events if event["method"] not in _COMPLAINTS]
        return [json.dumps(event["params"]) for event in told]

    def requests(self) -> list[str]:
        """Return the addresses that were requested since the page was opened."""
        sent = (event for event in self._told() if event["method"] == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in sent]

    def _told(self) -> list[dict[str, Any]]:
        self.call("Runtime.evaluate", expression="0")  # all that was told before the answer is here then
        return self._events

    def close(self) -> None:
        """End the browser."""
        self._socket.close()
        self._process.terminate()
        self._process.wait(60)


_COMPLAINTS = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser, one for all tests; `open` gives each a fresh page."""
    chromium = shutil.which("chromium")
    if chromium is None:
        reason = "no browser to test pages in: chromium is not installed"
        if os.environ.get("TPSL_REQUIRE_BROWSER") == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    found = Browser(chromium, tmp_path_factory.mktemp("chromium"))
    yield found
    found.close()


class TcpProxy:
    """`benchmarks/tcp_proxy.py` as a process; every method returns when its command has taken effect."""

    def __init__(self, target: str) -> None:
        program = Path(__file__).parents[1] / "benchmarks" / "tcp_proxy.py"
        self.process = subprocess.Popen(
            [sys.executable, program, "--listen", "0", "--to", target],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        assert self.process.stdin and self.process.stdout
        self._commands, self._answers = self.process.stdin, self.process.stdout
        self.port = int(self._answers.readline())
        self.address = f"127.0.0.1:{self.port}"

    def cut(self, *, one: bool = False) -> None:
        """Reset every connection, or one of them."""
        self._command("cut one" if one else "cut")

    def freeze(self) -> None:
        """Make every connection half-open, and new ones too, until `thaw`; those then stay dead."""
        self._command("freeze")

    def refuse(self) -> None:
        """Refuse new connections until `thaw`."""
        self._command("refuse")

    def thaw(self) -> None:
        """Let new connections through again."""
        self._command("thaw")

    def delay(self, milliseconds: float) -> None:
        """Deliver everything so much later, each way: half of a round trip."""
        self._command(f"delay {milliseconds:.3f}")

    def count(self) -> dict[str, int]:
        """Return bytes passed on `forward` and `back`, connections `accepted` so far, and how many are `alive`."""
        self._commands.write("count\n")
        answer: dict[str, int] = json.loads(self._answers.readline())
        return answer

    def close(self) -> None:
        """End the proxy, and with it its connections."""
        self._commands.close()
        self.process.wait(60)
        self._answers.close()

    def _command(self, line: str) -> None:
        self._commands.write(line + "\n")
        self.count()  # Commands are carried out one after the other: its answer says that this one is done.


@pytest.fixture
def tcp_proxy() -> Iterator[Callable[[str], TcpProxy]]:
    """Start a proxy to "HOST:PORT" and return it; all of them end with the test."""
    started: list[TcpProxy] = []

    def start(target: str) -> TcpProxy:
        started.append(TcpProxy(target))
        return started[-1]

    yield start
    for proxy in started:
        proxy.close()


class ObjectStorage:
    """An S3-compatible server on this machine; PyArrow, fsspec and other processes find it by the environment."""

    _numbers = itertools.count(1)  # all servers of a process have the same buckets

    def __init__(self, endpoint: str) -> None:
        from pyarrow import fs

        self._files = fs.S3FileSystem(endpoint_override=endpoint, region="us-east-1", allow_bucket_creation=True)

    def put(self, content: dict[str, bytes]) -> str:
        """Put objects, by their names, into a new bucket and return its URL."""
        bucket = f"bucket-{next(self._numbers)}"
        self._files.create_dir(bucket)
        for name, data in content.items():
            with self._files.open_output_stream(f"{bucket}/{name}") as file:
                file.write(data)
        return f"s3://{bucket}"


@pytest.fixture(scope="module")
def object_storage() -> Iterator[ObjectStorage]:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    endpoint = "http://{}:{}".format(*server.get_host_and_port())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", endpoint)
        patch.setenv("AWS_ACCESS_KEY_ID", "name")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "key")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield ObjectStorage(endpoint)
    server.stop()


IMPORTED_BEFORE_A_FORK = (
    "tpsl.cli.main",
    "tpsl.cli.live",
    "tpsl.run",
    "tpsl.run.over_network",
    "tpsl.attacks",
    "tpsl.audit",
    "torch._dynamo",
    "torch.utils.tensorboard",
    "tpsl.kernels.rows_numba",
    "pyarrow.pandas_compat",
    "pandas",
    "sklearn.datasets",
    "pytest",
)


@pytest.fixture(scope="session")
def forks() -> ForkServerContext:
    """Processes that are forked from one that has imported everything: a new one costs no start of torch.

    They are what `multiprocessing` calls them, and compute with one thread. No gRPC object exists in the process that
    they are forked from, so that a fork is safe. One that a test has made already has imported nothing: it ends.
    A process that opens vaults is told which label party it is (TPSL_HOME), or else it is one that has no vault.
    """
    context = multiprocessing.get_context("forkserver")
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    context.set_forkserver_preload(list(IMPORTED_BEFORE_A_FORK))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("TPSL_HOME", tempfile.mkdtemp(prefix="home of forks "))
        forkserver.ensure_running()
    return context


WORKER = """
import os, pathlib, pickle, runpy

os.environ.update(described)
from tpsl.workers import Workers

try:
    answer = runpy.run_path(path)[task](Workers.of_this_process(), *arguments)
except Exception as error:
    answer = error
pathlib.Path(place).write_bytes(pickle.dumps(answer))
"""
InWorkers = Callable[..., list[Any]]


@pytest.fixture(scope="session")
def in_workers(forks: ForkServerContext) -> InWorkers:
    """Call `in_workers(n, task, *arguments)`: what a function of a test file returns, or raises, in each of n workers.

    Of one that was killed it is None. The function is called with the `Workers` of its process, which talk through gloo
    as those of torchrun do.
    """

    def run(count: int, task: Callable[..., Any], *arguments: Any) -> list[Any]:
        described = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "TPSL_HOME": os.environ["TPSL_HOME"]}
        what = {"path": task.__code__.co_filename, "task": task.__name__, "arguments": arguments}
        with tempfile.TemporaryDirectory() as answers:
            started = []
            for number in range(count):
                place = {"WORLD_SIZE": str(count), "RANK": str(number), "LOCAL_RANK": str(number)}
                scope = {**what, "described": described | place, "place": f"{answers}/{number}"}
                started.append(forks.Process(target=exec, args=(WORKER, scope)))
                started[-1].start()
            for process in started:
                process.join()
            written = [Path(answers, str(number)) for number in range(count)]
            return [pickle.loads(file.read_bytes()) if file.exists() else None for file in written]

    return run


# Ctrl-C does what it does in a terminal, also where the tests run in the background; nobody waits for the disk.
IN_FOLDER = """
import os, signal

for stream, path in ((1, stdout), (2, stderr)):
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), stream)
os.chdir(folder)
os.environ.update(vaults)
signal.signal(signal.SIGINT, signal.default_int_handler)
os.fsync = lambda file: os.fstat(file) and None
"""


class Forked:
    """A program that runs in a folder, in a process that was forked; it writes to the files `stdout` and `stderr`."""

    def __init__(self, forks: ForkServerContext, code: str, folder: Path, scope: dict[str, Any]) -> None:
        self.stdout, self.stderr = (folder / f"{name}-{time.monotonic_ns()}.txt" for name in ("stdout", "stderr"))
        self.stdout.touch(), self.stderr.touch()
        place: dict[str, Any] = {"folder": str(folder), "stdout": str(self.stdout), "stderr": str(self.stderr)}
        vaults = {name: os.environ[name] for name in ("TPSL_HOME",) if name in os.environ}
        place |= {"vaults": vaults}  # of the test, not of the process that it is forked from
        self._process = forks.Process(target=exec, args=(IN_FOLDER + code, scope | place))
        self._process.start()

    def status(self, within: float = 0.0) -> int | None:
        """Return the exit status, or None of a program that still runs after so many seconds."""
        self._process.join(within)
        return self._process.exitcode

    def signal(self, number: int) -> None:
        assert self._process.pid
        os.kill(self._process.pid, number)

    def end(self) -> None:
        """Kill it if it still runs."""
        self._process.kill()
        self._process.join()


@pytest.fixture
def fork(forks: ForkServerContext) -> Iterator[Callable[..., Forked]]:
    """Run code in a process and a folder of its own, `scope` being its global names; all of them end with the test."""
    started: list[Forked] = []

    def start(code: str, folder: Path, **scope: Any) -> Forked:
        started.append(Forked(forks, code, folder, scope))
        return started[-1]

    yield start
    for process in started:
        process.end()


SERVE = """
import runpy

runpy.run_path(program)["serve"](address)
"""


@pytest.fixture(scope="session")
def quick_programs(forks: ForkServerContext, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with `python` and `tpsl` that start in a moment: `tests/quick_start.py` says how."""
    folder = tmp_path_factory.mktemp("quick")
    address, quick_start = folder / "address", Path(__file__).parent / "quick_start.py"
    scope = {"program": str(quick_start), "address": str(address)}
    server = forks.Process(target=exec, args=(SERVE, scope))
    server.start()
    while not address.exists():
        assert server.is_alive()
        time.sleep(0.01)
    write_client = runpy.run_path(str(quick_start))["write_client"]
    write_client(folder / "python", address, [])
    write_client(folder / "tpsl", address, [str(Path(sys.executable).with_name("tpsl"))])
    yield folder
    server.kill()
    server.join()


# What reports and figures show is what trainings, attacks and audits wrote. Imports are where they are needed: a
# process that only finds no browser should not wait for PyTorch.
HOSTILE = "<script>alert(1)</script>\"'&[bold]$title<b>"

SMALL_RUN: dict[str, Any] = {
    "data": {
        "source": "synthetic",
        "rows": 1200,
        "numeric_fields": 3,
        "categorical_fields": 2,
        "largest_vocabulary": 8,
    },
    "model": {"embedding_dim": 4, "bottom": [8], "top": [8]},
    "training": {"batch_size": 96, "epochs": 3, "patience": 0},
}
PRIVACY: dict[str, dict[str, Any]] = {
    "non-private": {"mechanism": "none", "estimator": "linear"},
    "laplace": {"mechanism": "laplace", "epsilon": 2.0, "estimator": "linear"},
    "discrete": {"mechanism": "discrete", "epsilon": 0.5},
    "seeded": {"mechanism": "gaussian", "sigma": 2.0, "delta": 1e-6, "noise_seed": 5},
}


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificate folders of a label party and of feature parties, all of one authority; no test changes them."""
    from tpsl.net.certificates import create_authority, issue

    folder = tmp_path_factory.mktemp("certificates")
    create_authority(folder / "authority")
    for party in ("label", "feature", "airport", "weather", "shop", "bank", "stranger"):
        issue(folder / "authority", folder / party, party)
    return folder


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with finished runs by the names in PRIVACY, and `stopped`, which was killed before its end.

    All but `seeded` were attacked, and `laplace` was audited.
    """
    from tpsl.attacks import run_attacks
    from tpsl.audit import audit
    from tpsl.data.dataset import load
    from tpsl.report.findings import keep_finding
    from tpsl.run.job import make_job
    from tpsl.run.one_process import train
    from tpsl.run.vaults import VaultChoice
    from tpsl.vault import NO_LIMITS

    folder = tmp_path_factory.mktemp("runs")
    for name, privacy in PRIVACY.items():
        job = make_job({**SMALL_RUN, "privacy": privacy}, {}, "test")
        data = load(job.data)
        attacked = name != "seeded"
        vault = folder / name / "label" / "vault"  # named, so that it counts
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TPSL_HOME", str(tmp_path_factory.mktemp("home")))  # of another label party for each run
            steps = 20 if attacked else 0
            train(job, folder / name, vault=VaultChoice(vault, NO_LIMITS), record_steps=steps, data=data)
        if attacked:
            found = run_attacks(folder / name, data.labels, features=data.feature_parties)
            keep_finding(folder / name, "attacks", found.as_dict())
        if name == "laplace":
            found_bound = audit(job, folder / "audit", data=data, confidence=0.999999, seed=1)
            keep_finding(folder / name, "audit", asdict(found_bound))
    shutil.copytree(folder / "discrete", folder / "stopped")
    (folder / "stopped" / "result.json").unlink()
    metrics = folder / "stopped" / "label" / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:1]))
    return folder


@pytest.fixture(scope="session")
def views(runs: Path) -> list[Any]:
    """The views of all runs; the name of the last one tries to break out of the page."""
    from tpsl.report.run_reading import read_run

    return [
        *(read_run(runs / name) for name in ("non-private", "laplace", "discrete", "seeded")),
        read_run(runs / "stopped", HOSTILE),
    ]
