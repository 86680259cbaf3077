"""Record and replay: flip true labels, keep every noisy label; nothing that was sent, and no weight, may change.

This is the sharpest test of "everything is post-processing of the noisy labels": it needs no statistics. Labels are
flipped in the source, before anything is read from it, and every message passes through the code that makes bytes of
it for a network.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import IO, NamedTuple

import numpy as np

from tpsl.audit.canaries import new_folder
from tpsl.data.dataset import Dataset
from tpsl.data.encoder import EncoderState
from tpsl.data.sides import Relabelling
from tpsl.data.true_labels import reveal
from tpsl.mechanisms import RandomWords, secure_words, seeded_words
from tpsl.net.asking import Answers, AtHome, Script
from tpsl.net.codec import decode, encode
from tpsl.net.messages import LABEL_PARTY, Limits, Message, WireType
from tpsl.run.build import LabelPartyBuilder, build_label_party
from tpsl.run.job import Job
from tpsl.run.job_agreement import agreement
from tpsl.run.observer import UNWATCHED, Watching
from tpsl.run.one_process import ALL_STEPS, load_records, train_together
from tpsl.run.own_parts import OwnParts
from tpsl.run.run_folder import RunFolder
from tpsl.run.schedule import Schedule
from tpsl.run.setup import RunSetup
from tpsl.run.vaults import VaultChoice
from tpsl.vault import Vault

_COMPARED = ("*/transcript/*", "label/trajectory.f32", "*/*.safetensors", "label/predictions/*")
"""What crossed the border, the label party's weights before each step, all final weights and predictions."""
_CHUNK = 1 << 22
_FRAMES = "frames.tsv"
_ROOMY = Limits(rows=1 << 31, width=1 << 31)


class SentFrame(NamedTuple):
    """A message that crossed the border: who sent it to whom, what it was, and the digest of its bytes."""

    sender: str
    receiver: str
    kind: str
    step: int
    part: int
    size: int
    digest: str

    def __str__(self) -> str:
        """The message in words, as in `label → feature: Step 3, part 0`."""
        where = f" {self.step}, part {self.part}" if self.step >= 0 else ""
        return f"{self.sender} → {self.receiver}: {self.kind}{where}"


class FrameLog(AtHome):
    """The label party in this process, every message made into bytes and read again as over a network.

    `watch` is told of every message before the other side sees it.
    """

    def __init__(
        self,
        begin: Callable[[Answers], tuple[Answers, Script]],
        dtype: WireType,
        watch: Callable[[SentFrame], None],
    ) -> None:
        super().__init__(begin, dtype)
        self._watch = watch

    def _crossed(self, method: str, messages: Answers, *, to_label: bool) -> Answers:
        return {name: self._arrived(method, name, message, to_label=to_label) for name, message in messages.items()}

    def _arrived(self, method: str, party: str, message: Message, *, to_label: bool) -> Message:
        sender, receiver = (party, LABEL_PARTY) if to_label else (LABEL_PARTY, party)
        frame = encode(message, self._dtype)
        digest = hashlib.sha256(frame).hexdigest()
        self._watch(SentFrame(sender, receiver, method, message.step, message.part, len(frame), digest))
        return decode(frame, _ROOMY, self._dtype, sender=sender)


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
    frames: int = 0
    """Messages that crossed the border, the handshake's terms counted as one."""
    frame_bytes: int = 0
    first_message: str | None = None
    """The first message that is not the same, in words; None if all are."""

    @property
    def accusations(self) -> tuple[str, ...]:
        """What depends on true labels, in a sentence; none if nothing does."""
        if self.passed:
            return ()
        found = []
        if self.first_message is not None:
            found.append(f"the first message that changes is {self.first_message}")
        if self.differences:
            found.append(f"{len(self.differences)} files differ, the first is {self.differences[0].file}")
        return (f"true labels leak: {'; '.join(found)}",)


def replay(
    job: Job,
    folder: Path,
    *,
    seed: int | None = None,
    data: Dataset | None = None,
    changed: Dataset | None = None,
    own: Mapping[str, OwnParts] = MappingProxyType({}),
    make_label_party: LabelPartyBuilder = build_label_party,
    watching: Watching = UNWATCHED,
) -> ReplayResult:
    """Train a job twice on one release, the second time with a random half of the true labels flipped; compare.

    Works at the label party, in a new folder with a vault of its own. Labels of test records are flipped too: the test
    metrics may change, what is trained and sent may not. Labels are flipped in the source of the data, before it is
    read; where `data` is given, in the data, unless `changed` is given too. A `seed` repeats the choice of the labels
    to flip; `own` is what each party brings itself, by its name, and `make_label_party` makes the label party that is
    put to the test.
    """
    words = secure_words() if seed is None else seeded_words(seed, "replay")
    if data is None:
        data, changed = load_records(job, own), flipped_at_the_source(job, words, own)
    elif changed is None:
        changed = flip_half(data, words)
    setup = RunSetup(job, RunFolder(folder / "before"), own, record_steps=ALL_STEPS, watching=watching)
    return replay_run(setup, data, changed, words, make_label_party)


def replay_run(
    setup: RunSetup,
    data: Dataset,
    changed: Dataset,
    words: RandomWords,
    make_label_party: LabelPartyBuilder = build_label_party,
) -> ReplayResult:
    """Do what `replay` does for a run that is not there yet, in a new folder; it may start from an earlier one."""
    folder, watching = setup.run.path.parent, setup.watching
    new_folder(folder)
    vault = folder / "vault"
    _store(vault, data)
    for half, (run, labelled) in enumerate((("before", data), ("after", changed))):
        if run == "after":
            _store(vault, changed)
            watching.notice("training again with half of the true labels flipped")

        def both(done: int, total: int, note: str, half: int = half) -> None:
            watching.progress(half * total + done, 2 * total, note)

        with (folder / f"{run}-{_FRAMES}").open("w", encoding="utf-8") as file:
            take = partial(_write_frame, file)
            take(_terms(setup.job, labelled))
            this = replace(setup, run=RunFolder(folder / run), watching=replace(watching, progress=both))
            choice = VaultChoice(vault, scratch=True)
            train_together(this, choice, labelled, make_label_party, partial(FrameLog, watch=take))
    return _compared(folder, int((reveal(data.labels) != reveal(changed.labels)).sum()))


def flipped_at_the_source(
    job: Job,
    words: RandomWords,
    own: Mapping[str, OwnParts] = MappingProxyType({}),
    encoders: Mapping[str, EncoderState] = MappingProxyType({}),
) -> Dataset:
    """Return the job's data as they are read from a source in which half of the labels are others."""
    relabelling = Relabelling(int(words.words(1)[0] >> np.uint64(1)))
    return load_records(job, own, relabelling=relabelling, encoders=encoders)


def _store(vault: Path, data: Dataset) -> None:
    """Have the training labels in the vault, before any of them is asked for."""
    records = data.label_side.records
    batch = (records.training_ids, reveal(data.labels)[data.train], records.training_units)
    if not Vault.exists(vault):
        Vault.create(
            vault, classes=data.classes, batches=[batch], counts_people=records.ids_are_new, scratch=True
        ).close()
        return
    with Vault.open(vault) as opened:
        opened.add([batch])


def _write_frame(file: IO[str], frame: SentFrame) -> None:
    """Write a line for a frame that crosses: who, to whom, what, how long, and the digest of its bytes."""
    file.write("\t".join(map(str, tuple(frame))) + "\n")


def _terms(job: Job, data: Dataset) -> SentFrame:
    """Return what the handshake compares, as a frame: the records and their order must not depend on labels either."""
    terms = agreement(job, data.ids, Schedule(job, data.train, data.test))
    content = json.dumps([dict(terms.fields), terms.ids.hex()]).encode()
    return SentFrame("label", "everybody", "handshake", -1, -1, len(content), hashlib.sha256(content).hexdigest())


def _frames(path: Path) -> Iterator[SentFrame]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            sender, receiver, kind, step, part, size, digest = line.rstrip("\n").split("\t")
            yield SentFrame(sender, receiver, kind, int(step), int(part), int(size), digest)


def _compared(folder: Path, flipped: int) -> ReplayResult:
    """Compare all frames and files of the two runs."""
    first, frames, frame_bytes = None, 0, 0
    for one, other in zip_longest(*(_frames(folder / f"{run}-{_FRAMES}") for run in ("before", "after"))):
        frames, frame_bytes = frames + (one is not None), frame_bytes + (one.size if one else 0)
        if first is None and one != other:
            first = str(one or other)
    files = sorted({path.relative_to(folder / run) for run in ("before", "after") for path in _files(folder / run)})
    found = ((file, _first_difference(folder / "before" / file, folder / "after" / file)) for file in files)
    differences = tuple(Difference(str(file), at) for file, at in found if at != -1)
    return ReplayResult(
        passed=not differences and first is None,
        flipped=flipped,
        files=len(files),
        bytes=sum(path.stat().st_size for path in _files(folder / "before")),
        differences=differences,
        frames=frames,
        frame_bytes=frame_bytes,
        first_message=first,
    )


def flip_half(data: Dataset, words: RandomWords) -> Dataset:
    """Return the data with a random half of its labels moved to another class."""
    moved = (words.words(len(data)) & np.uint64(1)).astype(np.int64)
    others = (words.words(len(data)) % np.uint64(data.classes - 1)).astype(np.int64)
    return data.with_labels((reveal(data.labels) + moved * (1 + others)) % data.classes)


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
