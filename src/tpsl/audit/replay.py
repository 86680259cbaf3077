"""Record and replay: flip true labels, keep every noisy label; nothing that was sent, and no weight, may change.

This is the sharpest test of "everything is post-processing of the noisy labels": it needs no statistics.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tpsl.audit.folder import new_folder
from tpsl.data.dataset import Dataset, load
from tpsl.mechanisms import RandomWords, secure_words, seeded_words
from tpsl.training.build import LabelPartyBuilder, build_label_party
from tpsl.training.job import Job
from tpsl.training.loop import ALL_STEPS, Notice, Progress, train
from tpsl.vault import Vault

_COMPARED = ("*/transcript/*", "label/trajectory.f32", "*/*.safetensors", "label/predictions/*")
"""What crossed the border, the label party's weights before each step, all final weights and predictions."""
_CHUNK = 1 << 22


@dataclass(frozen=True)
class Difference:
    """A file that is not the same before and after the flip."""

    file: str
    first_byte: int | None
    """The position of the first byte that differs; None if the file is there only once."""


@dataclass(frozen=True)
class ReplayResult:
    """Whether any byte depends on true labels other than through the noisy ones."""

    passed: bool
    flipped: int
    """True labels that were changed, of training and of test records."""
    files: int
    bytes: int
    differences: tuple[Difference, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-able data."""
        return {**asdict(self), "differences": [asdict(difference) for difference in self.differences]}


def replay(
    job: Job,
    folder: Path,
    *,
    seed: int | None = None,
    data: Dataset | None = None,
    make_label_party: LabelPartyBuilder = build_label_party,
    progress: Progress = lambda done, total, note: None,
    notice: Notice = lambda text: None,
) -> ReplayResult:
    """Train a job twice on one release, the second time with a random half of the true labels flipped; compare.

    Works at the label party, in a new folder with a vault of its own. Labels of test records are flipped too: the test
    metrics may change, what is trained and sent may not. A `seed` repeats the choice of the labels to flip;
    `make_label_party` makes the label party that is put to the test.
    """
    new_folder(folder)
    original = load(job.data) if data is None else data
    changed = flip_half(original, secure_words() if seed is None else seeded_words(seed, "replay"))
    vault = folder / "vault"
    for run, labelled in (("before", original), ("after", changed)):
        if run == "after":
            with Vault.open(vault) as opened:
                ids = changed.ids.take(pa.array(changed.train))
                opened.add([(ids, changed.labels[changed.train], None)])
            notice("training again with half of the true labels flipped")
        half = 0 if run == "before" else 1

        def both(done: int, total: int, note: str, half: int = half) -> None:
            progress(half * total + done, 2 * total, note)

        train(
            job,
            folder / run,
            vault=vault,
            record_steps=ALL_STEPS,
            progress=both,
            notice=notice,
            data=labelled,
            make_label_party=make_label_party,
        )
    files = sorted({path.relative_to(folder / run) for run in ("before", "after") for path in _files(folder / run)})
    found = ((file, _first_difference(folder / "before" / file, folder / "after" / file)) for file in files)
    differences = tuple(Difference(str(file), at) for file, at in found if at != -1)
    return ReplayResult(
        passed=not differences,
        flipped=int((original.labels != changed.labels).sum()),
        files=len(files),
        bytes=sum(path.stat().st_size for path in _files(folder / "before")),
        differences=differences,
    )


def flip_half(data: Dataset, words: RandomWords) -> Dataset:
    """Return the data with a random half of its labels moved to another class."""
    moved = (words.words(len(data)) & np.uint64(1)).astype(np.int64)
    others = (words.words(len(data)) % np.uint64(data.classes - 1)).astype(np.int64)
    return replace(data, labels=(data.labels + moved * (1 + others)) % data.classes)


def _files(run: Path) -> Iterator[Path]:
    return (path for pattern in _COMPARED for path in run.glob(pattern))


def _first_difference(one: Path, other: Path) -> int | None:
    """Return the position of the first byte that differs, -1 if there is none, None if a file is missing."""
    if not (one.exists() and other.exists()):
        return None
    with one.open("rb") as a, other.open("rb") as b:
        position = 0
        while True:
            left, right = a.read(_CHUNK), b.read(_CHUNK)
            if left != right:
                shorter = min(len(left), len(right))
                unequal = np.frombuffer(left[:shorter], np.uint8) != np.frombuffer(right[:shorter], np.uint8)
                return position + (int(unequal.argmax()) if unequal.any() else shorter)
            if not left:
                return -1
            position += len(left)
