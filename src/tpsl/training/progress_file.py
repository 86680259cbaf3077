"""How far a running party is, in a small file in its own folder, for those who look at the run: `tpsl ui` does.

    RUN/<any party>/progress.json    while the run goes on, written at most once a second; gone when its process ends

Nothing in it depends on labels: steps and speed are what every party sees of itself.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, TypeAdapter, ValidationError

from tpsl.files import draft_of, open_private, read_plain
from tpsl.progress import Pace
from tpsl.training.observer import Observer

PROGRESS = "progress.json"
_EVERY = 1.0  # seconds between two writes
_WINDOW = 60.0  # seconds over which the speed is averaged
_MOST_BYTES = 1 << 12  # a longer file is none of ours
Finite = Annotated[float | None, AfterValidator(lambda value: value if value is None or math.isfinite(value) else None)]


@dataclass(frozen=True)
class RunProgress:
    """How far a party is, how fast, and how long the rest takes at this speed."""

    step: int
    steps: int
    """In all; a run that stops early has fewer."""
    samples_per_second: Finite = None
    seconds_left: Finite = None
    """Unknown until there is a speed."""

    @classmethod
    def read(cls, party_folder: Path) -> RunProgress | None:
        """Return what a party's folder says; None where nothing runs, or where the file cannot be read."""
        try:
            return _PARSER.validate_json(read_plain(party_folder / PROGRESS, _MOST_BYTES), strict=True)
        except (OSError, ValidationError):
            return None


_PARSER = TypeAdapter(RunProgress)


class ProgressFile(Observer):
    """Keeps the file up to date.

    The file is replaced whole, and nobody waits for the disk: it is worth nothing after a power failure. Where it
    cannot be written, on a full disk for instance, training goes on without it.
    """

    def __init__(self, party_folder: Path, every: float = _EVERY) -> None:
        self._path, self._every = party_folder / PROGRESS, every
        self._pace, self._written = Pace(_WINDOW), -math.inf

    def at_step(self, done: int, total: int, records: int) -> None:
        """Write how far the party is, unless that was done a moment ago."""
        now = time.monotonic()
        if now - self._written < self._every:
            return
        self._written = now
        self._pace.add(done, records)
        left = self._pace.seconds_left(total)
        known = () if left is None else (round(self._pace.per_second[1], 1), round(left, 1))
        self._write(_PARSER.dump_json(RunProgress(done, total, *known)))

    def close(self) -> None:
        """Remove the file, if it is this observer's: nothing runs any more."""
        if self._written >= 0:
            self._path.unlink(missing_ok=True)

    def _write(self, content: bytes) -> None:
        draft = draft_of(self._path)
        with suppress(OSError):  # the party has no folder yet, or no room
            with open_private(draft, "wb") as file:
                file.write(content)
            draft.replace(self._path)
