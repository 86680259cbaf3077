"""A command as a Ray Train job: every worker runs it, as those of `torchrun` do, and if one dies all are started again.

Ray Train gives each process its number among the workers and connects them (`torch.distributed`); that is all. Who has
which part of a batch, what is written and where a run goes on is what `tpsl.workers` and the run's own checkpoints say.
What the workers say while they run is in `RUN-ray/worker-N.log`, and what the first one says is shown here too.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpsl.files import make_private_folder, open_private
from tpsl.on_ray.cluster import RayWorkers, Surroundings, connected

_PATIENCE = 30 * 24 * 3600
"""Seconds that a worker waits for another, which may be waiting for a peer; one that has died is noticed at once."""
_EVERY = 0.2  # seconds between two looks at the log
_place = {"is_worker": False}


@dataclass(frozen=True)
class TrainJob:
    """A command line and the workers that run it."""

    command: Callable[[Sequence[str]], str]
    """Runs a command line; returns what it prints as its result."""
    arguments: tuple[str, ...]
    share: RayWorkers
    restarts: int
    """How often all workers are started again after one was killed or has ended with an error."""
    run: Path
    """The folder of the run, on a file system that all machines of the cluster see."""
    device: str

    def result(self) -> str:
        """Run the job to its end; return what its first worker has printed as the result."""
        folder = self.run.absolute().with_name(f"{self.run.name}-ray")
        make_private_folder(folder)
        with connected() as ray, _shown(_log(folder, 0)):
            from ray.train.torch import TorchTrainer

            if (shortage := self.share.shortage_in(ray, self._workers)) is not None:
                _pass_on(f"{shortage}\n")
            given = {
                "surroundings": Surroundings.of_this_process(),
                "folder": folder,
                "command": self.command,
                "arguments": self.arguments,
            }
            make: Any = TorchTrainer  # its types are those of Ray Train's first version
            return self._fitted(lambda: make(_work, train_loop_config=given, **self._configuration(folder)))

    @property
    def _workers(self) -> int:
        return self.share.count or 1

    def _fitted(self, make_trainer: Callable[[], Any]) -> str:
        """Return what a trainer returns. Ray starts again what it has lost, but not what it loses while it starts."""
        from ray.train.v2.api.exceptions import ControllerError

        left = self.restarts
        while True:
            try:
                return str(make_trainer().fit().return_value)
            except ControllerError:
                if left == 0:
                    raise
                left -= 1

    def _configuration(self, folder: Path) -> dict[str, Any]:
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig

        gpus = {"GPU": self.share.gpus} if self.share.gpus else {}
        return {
            "scaling_config": ScalingConfig(
                num_workers=self._workers,
                use_gpu=bool(gpus),
                resources_per_worker={"CPU": self.share.cpus, **gpus},
            ),
            "torch_config": TorchConfig("cpu:gloo,cuda:nccl" if self.device == "cuda" else "gloo", timeout_s=_PATIENCE),
            "run_config": RunConfig(
                name=folder.name,
                storage_path=str(folder.parent),
                failure_config=FailureConfig(max_failures=self.restarts),
            ),
        }


def is_worker() -> bool:
    """Whether this process is a worker of a Ray Train job: then it does what its command says by itself."""
    return _place["is_worker"]


def _work(given: dict[str, Any]) -> str:
    from ray.train import get_context

    _place["is_worker"] = True
    given["surroundings"].enter()
    log = _log(given["folder"], get_context().get_world_rank())
    with log.open("a", buffering=1, encoding="utf-8") as file, redirect_stderr(file):
        printed: str = given["command"](given["arguments"])
        return printed


def _log(folder: Path, worker: int) -> Path:
    return folder / f"worker-{worker}.log"


@contextmanager
def _shown(log: Path) -> Iterator[None]:
    """Show what is added to a file, on standard error, until the block ends."""
    ended = threading.Event()
    with open_private(log, "ab"), log.open(encoding="utf-8", errors="replace") as file:
        file.seek(0, 2)

        def show() -> None:
            while not ended.wait(_EVERY):
                _pass_on(file.read())

        thread = threading.Thread(target=show, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            _pass_on(file.read())


def _pass_on(text: str) -> None:
    if text:
        sys.stderr.write(text)
        sys.stderr.flush()
