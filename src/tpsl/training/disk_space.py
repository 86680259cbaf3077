"""A full disk ends nothing: the side says which file does not fit, waits for space and goes on from its checkpoint.

While it waits its peers see it as lost, like a process that was killed: its connections end without a reason, and they
wait for its return. Of several workers the one whose file does not fit waits, and the others wait for it; when there is
space, all of them are started again.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from time import sleep
from typing import TypeVar

from tpsl.progress import Notice
from tpsl.vault import VaultFull
from tpsl.workers import ALONE, PartyInterrupted, Workers

Answer = TypeVar("Answer")

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # seconds
_LEAST_SPACE = 1 << 20  # bytes
_FILES_OF_A_CHECKPOINT = 4
"""How often the size of the file that did not fit: weights come with what their optimiser keeps."""


def is_for_want_of_space(error: BaseException) -> bool:
    """Whether the error says that a disk is full, or a quota used up."""
    return isinstance(error, VaultFull) or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT))


def with_space(
    act: Callable[[], Answer], places: Sequence[Path], wait: float, notice: Notice, workers: Workers = ALONE
) -> Answer:
    """Do something that writes to these places; each time the disk is full, do it again when there is space.

    Waits `wait` seconds in all, then the error is raised. One of several workers cannot do again alone what all do
    together: when there is space it ends (`PartyInterrupted`), so that all workers are started again.
    """
    left, pause = wait, _FIRST_PAUSE
    while True:
        try:
            return act()
        except (OSError, VaultFull) as error:
            if not is_for_want_of_space(error) or left <= 0:
                raise
            needed = max(_LEAST_SPACE, _FILES_OF_A_CHECKPOINT * getattr(error, "size", 0))
            notice(f"{error}; waiting up to {left:g} s for space")
        waited, has_space = 0.0, False
        begun = time.monotonic()
        while waited < left and not has_space:
            sleep(min(pause, left - waited))
            waited = time.monotonic() - begun
            has_space = all(_has_space(place, needed) for place in places)
        if has_space and workers.are_several:
            raise PartyInterrupted("there is space again: the workers of this party start again")
        if has_space:
            notice("there is space again: going on")
        left -= waited
        pause = min(2 * pause, _LONGEST_PAUSE)


def _has_space(place: Path, size: int) -> bool:
    """Whether this many bytes can be had there: asked of the file system, which knows quotas too."""
    folder = next(folder for folder in (place, *place.absolute().parents) if folder.is_dir())
    probe = folder / ".space.new"
    try:
        with probe.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        if is_for_want_of_space(error):
            return False
        raise
    finally:
        probe.unlink(missing_ok=True)
    return True
