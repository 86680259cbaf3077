"""The Ray cluster of a party: how it is found, what a command takes of it, and what its processes share with it.

Ray moves Python objects between the processes of a cluster, so whoever can reach a cluster can run programs in it. It
belongs to one party, as its machines do: nothing of another party's is ever handed to it but what was checked before.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tpsl.registry import use, used

_VARIABLES = ("TPSL_", "AWS_", "AZURE_", "GOOGLE_")
"""How the environment variables begin that a process of the cluster has as the command has them."""


_ANSWER_SECONDS = 10.0
"""How long the first machine of a cluster may take to answer."""


class RayError(ValueError):
    """A Ray cluster that cannot do what is asked; one sentence."""


def require_ray() -> ModuleType:
    """Return the module `ray`, or raise a sentence that says how to get it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster that is made here reports to nobody
    os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
    os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
    try:
        import ray
    except ImportError:
        raise RayError("--ray needs Ray: `pip install 'tpsl[ray]'` gets it") from None
    found: ModuleType = ray
    return found


def ray_data() -> ModuleType:
    """Return Ray Data, which says nothing here: what matters of it is raised."""
    import ray.data

    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    found: ModuleType = ray.data
    return found


@contextmanager
def connected() -> Iterator[ModuleType]:
    """Be connected to the cluster that Ray's own rules find until the block ends; yields the module `ray`.

    That is the one at RAY_ADDRESS, or the one that was started on this machine, or else one that is made for the block.
    What its processes print stays in Ray's own log files, and what Ray says of them goes to standard error. Errors are
    those that were raised there (`own_errors`).
    """
    ray = require_ray()
    with own_errors(), redirect_stdout(sys.stderr):
        if ray.is_initialized():
            yield ray
            return
        _connect(ray)
        try:
            yield ray
        finally:
            ray.shutdown()


def require_answer(address: str) -> None:
    """Raise a sentence unless something answers at an address `HOST:PORT`; Ray itself would try for minutes.

    What else Ray takes for an address, as `auto`, is left to Ray.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise RayError(
            f"no Ray cluster answers at {address}, which RAY_ADDRESS names: {_in_one_line(error)}"
        ) from error


def _connect(ray: ModuleType) -> None:
    """Connect to a cluster; what one that is made here writes, its memory too, is for its owner only."""
    require_answer(os.environ.get("RAY_ADDRESS", ""))
    in_main_thread = threading.current_thread() is threading.main_thread()  # only there Python has signals
    on_termination = signal.getsignal(signal.SIGTERM)
    umask = os.umask(0o077)
    try:
        ray.init(logging_level="error", log_to_driver=False, include_dashboard=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise RayError(f"no Ray cluster can be reached: {_in_one_line(error)}") from error
    finally:
        os.umask(umask)
        if in_main_thread:  # Ray would have the process abort
            signal.signal(signal.SIGTERM, on_termination)


@dataclass(frozen=True)
class RayWorkers:
    """What a command takes of a cluster: a number of processes, each with its share of a machine."""

    count: int | None = None
    """None: as many as the cluster has room for, or one where they train together."""
    cpus: int = 1
    gpus: float = 0

    @property
    def resources(self) -> dict[str, float]:
        """What Ray sets apart for each process, as the options of a task or an actor."""
        return {"num_cpus": self.cpus, "num_gpus": self.gpus}

    def count_in(self, ray: ModuleType) -> int:
        """Return how many processes run at a time: the number asked for, or what the cluster has room for."""
        if self.count is not None:
            return self.count
        room = self._room_in(ray)
        if room < 1:
            raise RayError(
                f"the Ray cluster has no room for a process with {self.cpus} CPU(s) and {self.gpus:g} GPU(s)"
            )
        return room

    def shortage_in(self, ray: ModuleType, count: int) -> str | None:
        """Return a sentence if the cluster has no room for this number of processes at a time."""
        room = self._room_in(ray)
        if room >= count:
            return None
        each = f"{self.cpus} CPU(s) and {self.gpus:g} GPU(s)"
        return (
            f"the Ray cluster has room for {room} of {count} processes with {each}: waiting until it has more machines"
        )

    def _room_in(self, ray: ModuleType) -> int:
        there = ray.cluster_resources()
        room = [there.get("CPU", 0) / self.cpus] + ([there.get("GPU", 0) / self.gpus] if self.gpus else [])
        return int(min(room))


class Surroundings:
    """What a command is surrounded by, so that a process of the cluster takes names as the command does.

    The keys of object storage are among it, and Ray shows what it is given, on its dashboard and in the files that it
    exports: texts, and the fields of dataclasses. Of this it shows the name of the class.
    """

    def __init__(self, folder: Path, variables: dict[str, str], modules: tuple[str, ...]) -> None:
        self._folder, self._variables, self._modules = folder, variables, modules

    @classmethod
    def of_this_process(cls) -> Surroundings:
        """Return those of the command: its folder, which all machines of the cluster see; the environment variables of
        tpsl, and those by which object storage is reached; the modules that have registered parts (`tpsl --use`)."""
        variables = {name: value for name, value in os.environ.items() if name.startswith(_VARIABLES)}
        return cls(Path.cwd(), variables, used())

    def enter(self) -> None:
        """Make them those of this process, one of the cluster's."""
        try:
            os.chdir(self._folder)
        except OSError:
            raise RayError(
                f"{self._folder}: is not on every machine of the Ray cluster; start the command in a folder that all "
                "see"
            ) from None
        os.environ.update(self._variables)
        use(self._modules)


def surrounded(surroundings: Surroundings, work: Callable[..., Any], *given: Any) -> Any:
    """Do the work in a process of the cluster, in the surroundings of the command; what Ray is given as a function."""
    surroundings.enter()
    return work(*given)


@contextmanager
def own_errors() -> Iterator[None]:
    """Raise what the work has raised in a process of the cluster, not Ray's account of it."""
    from ray.exceptions import RayError as LostByRay
    from ray.exceptions import RayTaskError
    from ray.train.v2.api.exceptions import TrainingFailedError, WorkerGroupError

    try:
        yield
    except WorkerGroupError as error:
        raise _most_telling([failure for _, failure in sorted(error.worker_failures.items())]) from error
    except RayTaskError as error:
        raise _most_telling([error]) from error
    except (LostByRay, TrainingFailedError) as error:
        raise RayError(f"the Ray cluster has lost its processes: {_in_one_line(error)}") from error


def _most_telling(failures: Sequence[BaseException]) -> Exception:
    """Return the cause that is a sentence for the user, if there is one: the others may be that a worker was lost."""
    causes = [cause for failure in failures for cause in _causes(failure)]
    for cause in causes:
        if isinstance(cause, ValueError | OSError):
            return cause
    return RayError(f"a process of the Ray cluster has failed: {_in_one_line(causes[-1])}")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield what the work has raised, without what Ray has made of it; Ray's own classes have the cause as a part."""
    while error is not None:
        if not hasattr(error, "cause"):
            yield error
        error = getattr(error, "cause", None) or error.__cause__


def _in_one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
