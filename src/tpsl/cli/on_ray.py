"""`--ray N`: the workers of a party as a Ray Train job, on a Ray cluster of this party.

Ray starts N processes that run the command line, as `torchrun` does, and starts all of them again if one dies.
"""

from __future__ import annotations

import importlib
import io
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, TextIO

import typer

from tpsl.cli.console import notice, stoppable
from tpsl.files import make_private_folder, open_private
from tpsl.registry import use, used

_VARIABLES = ("TPSL_", "AWS_", "AZURE_", "GOOGLE_")  # so begin those that workers have as the command has them


class RayError(ValueError):
    """A Ray cluster that cannot do what is asked; one sentence."""


def trains_on_ray(count: int | None, run: Path, device: str, *, log_json: bool = False) -> bool:
    """Run this command in `count` workers on Ray and print its result; without a count, and in a worker, say False."""
    import torch.distributed

    if count is None or torch.distributed.is_initialized():  # a worker runs this command line too
        return False
    logs = run.absolute().with_name(f"{run.name}-ray")
    goes_on = stoppable("the same command goes on where it stopped", log_json=log_json)
    with goes_on, redirect_stdout(sys.stderr), _shown(logs / "worker-0.log"):
        _connect(count)
        printed = _result([*sys.argv[1:], "--out", str(run)], count, logs, device == "cuda")
    typer.echo(printed, nl=False)
    return True


def _result(arguments: list[str], count: int, logs: Path, on_gpu: bool) -> str:
    """Return what the first worker has printed; raise what a worker has raised, not Ray's account of it."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig, get_context
    from ray.train.torch import TorchConfig, TorchTrainer
    from ray.train.v2.api.exceptions import TrainingFailedError

    folder, modules = Path.cwd(), used()
    # Ray shows the configuration of a job, not what a function holds: here are keys.
    variables = {name: value for name, value in os.environ.items() if name.startswith(_VARIABLES)}

    def work() -> str:
        from tpsl.cli.main import app

        os.chdir(folder)
        os.environ.update(variables)
        use(modules)
        log, printed = logs / f"worker-{get_context().get_world_rank()}.log", io.StringIO()
        with log.open("a", buffering=1, encoding="utf-8") as file, redirect_stderr(file), redirect_stdout(printed):
            app(arguments, prog_name="tpsl", standalone_mode=False)
        return printed.getvalue()

    trainer: Any = TorchTrainer  # its types are those of Ray Train's first version
    job = trainer(
        work,
        scaling_config=ScalingConfig(num_workers=count, use_gpu=on_gpu, resources_per_worker={"CPU": 1, "GPU": on_gpu}),
        # Workers wait for each other for a month at most; one that has died is noticed at once.
        torch_config=TorchConfig("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout_s=30 * 24 * 3600),
        run_config=RunConfig(name=logs.name, storage_path=str(logs.parent), failure_config=FailureConfig(3)),
    )
    try:
        return str(job.fit().return_value)
    except TrainingFailedError as error:
        causes = list(getattr(error, "worker_failures", {}).values())
        for cause in causes:  # the list grows: Ray's own errors have the cause as a part
            causes += filter(None, [getattr(cause, "cause", None) or cause.__cause__])
        said = (cause for cause in causes if isinstance(cause, ValueError | OSError))  # others may have lost a peer
        raise next(said, RayError(f"the Ray job has failed: {' '.join(str(error).split())[:300]}")) from error


def _connect(count: int) -> None:
    """Connect this process to a cluster; what one that is made here writes is for its owner only, and ends with it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError:
        raise RayError("--ray needs Ray: `pip install 'tpsl[ray]'` gets it") from None
    host, _, port = os.environ.get("RAY_ADDRESS", "").removeprefix("ray://").rpartition(":")
    on_termination, umask = signal.getsignal(signal.SIGTERM), os.umask(0o077)
    try:
        if host and port.isdigit():  # Ray would try for minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        ray.init(logging_level="error", log_to_driver=False, include_dashboard=False)
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        raise RayError(f"no Ray cluster can be reached: {' '.join(str(error).split())[:300]}") from error
    finally:
        os.umask(umask)
        signal.signal(signal.SIGTERM, on_termination)  # Ray would have the process abort
    if (room := int(ray.cluster_resources().get("CPU", 0))) < count:
        notice(f"the Ray cluster has room for {room} of {count} workers: waiting until it has more machines")


@contextmanager
def _shown(log: Path) -> Iterator[None]:
    """Show what is added to a log, on standard error, until the block ends."""
    make_private_folder(log.parent)
    ended = threading.Event()
    with open_private(log, "ab"), log.open(encoding="utf-8", errors="replace") as file:
        file.seek(0, 2)

        def show(said: TextIO) -> None:
            while not ended.wait(0.2):
                said.write(file.read())
            said.write(file.read())

        thread = threading.Thread(target=show, args=[sys.stderr])
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
