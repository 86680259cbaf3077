"""How a long-running command ends when it is told to: Ctrl-C and SIGTERM close what is open and say how to go on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from tpsl.cli.console import notice

STATUS = 128 + signal.SIGTERM
"""The exit status that a shell gives to a program ended by SIGTERM."""


class Terminated(KeyboardInterrupt):
    """SIGTERM has come; all that Ctrl-C would close is closed on the way out."""


def exit_status(ended_by: signal.Signals) -> int:
    """Return the exit status of a service that has ended in order: by SIGTERM as `stoppable` has it, by Ctrl-C none."""
    return STATUS if ended_by == signal.SIGTERM else 0


@contextmanager
def stoppable(advice: str, *, log_json: bool = False) -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, with the advice as the last line; its exit status is 143.

    With `log_json` the line is left to the log, which `tpsl.cli.live.Live` writes: each of its lines is a JSON object.
    """

    terminated: list[Terminated] = []

    def terminate(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what is being closed is closed to the end
        terminated.append(Terminated(f"terminated; {advice}"))
        raise terminated[0]

    if threading.current_thread() is not threading.main_thread():  # only there Python has signals
        yield
        return
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except KeyboardInterrupt:  # a library may have made one of its own of what was raised above
        if not terminated:
            notice(advice)
            raise
        if not log_json:
            notice(str(terminated[0]))
        raise typer.Exit(STATUS) from None
    finally:
        signal.signal(signal.SIGTERM, before)
