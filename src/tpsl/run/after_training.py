"""What the label party computes from true labels: the test metrics and the local head.

How long this takes depends on the labels: sorting takes longer for some mixtures of classes, and the local head stops
early. A peer that is connected, or sees the port close or the process end, could measure it, and ε says nothing of
that. So a label party that listens (`tpsl.run.over_network`) does none of it: `evaluate_run` does, in a process of
its own when the label party chooses (`tpsl label evaluate RUN`). In one process there is nobody to measure; there each
epoch is evaluated when it ends. Both give the same numbers.
"""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from tpsl.data.out_of_core import taken
from tpsl.data.sides import LabelSide
from tpsl.data.true_labels import reveal
from tpsl.heads.local_training import Columns, HoldOut, train_local_head
from tpsl.net.messages import LABEL_PARTY
from tpsl.progress import Progress
from tpsl.run.evaluation import TEST_CURVES, TEST_METRICS, TestCurves, evaluate
from tpsl.run.job import Job
from tpsl.run.local import Local
from tpsl.run.observer import UNWATCHED, Watching
from tpsl.run.result import TrainResult
from tpsl.run.run_folder import NOT_PRIVATE, RunFolder, write_note
from tpsl.run.schedule import Schedule
from tpsl.run.setup import RunSetup
from tpsl.run.warm_start import StartingPoint

Entry = dict[str, Any]


def is_complete(run: RunFolder, job: Job) -> bool:
    """Whether a finished run has all that is computed from true labels."""
    result, entries = run.result(), run.metrics()
    if result is None or run.lacks_local_head(job) or not all(map(_is_evaluated, entries)):
        return False
    return result.as_dict() == _with_test_metrics(result, entries).as_dict()


def evaluate_run(
    run: RunFolder, local: Local, watching: Watching = UNWATCHED, side: LabelSide | None = None
) -> TrainResult:
    """Add to the label party's finished run what is computed from true labels, and return the whole result.

    Nothing is released or sent. `side` are the run's records and labels, if they are loaded already.
    """
    job, result = run.job(), run.finished_result()
    if is_complete(run, job):
        return result
    own = {LABEL_PARTY: run.own_parts(LABEL_PARTY)}
    side = load_true_labels(run, local, watching.progress) if side is None else side
    with run.started(job, [LABEL_PARTY], moved=True, own=own):
        setup = RunSetup(job, run, own, torch.device(local.device), watching=watching)
        return AfterTraining(setup, side).complete()


def load_true_labels(run: RunFolder, local: Local, progress: Progress) -> LabelSide:
    """Load the label party's records of a finished run, with their labels; raise if they are not those of the run."""
    own, start = {LABEL_PARTY: run.own_parts(LABEL_PARTY)}, StartingPoint.of_run(run.path)
    side = RunSetup(run.job(), run, own, watching=Watching(progress=progress), start=start).load_labels(local)
    run.require_records(LABEL_PARTY, side.records.ids)
    return side


class AfterTraining:
    """Evaluates a run and trains its local head.

    Besides `tpsl.run.releases` only this part of `tpsl.run` reads true labels. All of it can be done again
    after a crash, and none of it is sent.
    """

    def __init__(self, setup: RunSetup, side: LabelSide) -> None:
        self._job, self._run, self._device, self._watching = setup.job, setup.run, setup.device, setup.watching
        self._records, self._labels = side.records, side.labels

    def complete(self) -> TrainResult:
        """Evaluate a finished run, train its local head, if the job has one, and return the whole result."""
        self.evaluate()
        result = self._run.finished_result()
        evaluated = _with_test_metrics(result, self._run.metrics())
        if not math.isnan(evaluated.test_log_loss):  # there is a true label to compare with
            labels, predicted = (
                taken(reveal(self._labels), self._records.test),
                self._run.predictions(result.kept_epoch),
            )
            curves = TestCurves.of(predicted["test"], labels, self._records.classes)
            write_note(self._run.label / TEST_CURVES, curves)
        if evaluated.as_dict() != result.as_dict():
            self._run.finish(evaluated)
        self._train_local_head()
        self._watching.observer.event("finished")
        return evaluated

    def evaluate(self) -> None:
        """Compare the predictions of each epoch that was not evaluated yet with the true labels of the test records."""
        entries = self._run.metrics()
        due = [entry for entry in entries if not _is_evaluated(entry)]
        if not due:
            return
        labels = taken(reveal(self._labels), self._records.test)
        for entry in due:
            entry |= asdict(evaluate(self._run.predictions(entry["epoch"])["test"], labels))
        self._run.write_metrics(entries)
        for entry in due:
            self._watching.observer.event(
                "evaluated", **{name: entry[name] for name in ("epoch", "step", *TEST_METRICS)}
            )

    def _train_local_head(self) -> None:
        """Train the head on true labels, if the job has one and it is not there yet. It never leaves this party."""
        if not self._run.lacks_local_head(self._job):
            return
        path = self._run.label / NOT_PRIVATE / "inputs.f32"
        train, test, labels = self._records.train, self._records.test, reveal(self._labels)
        inputs = np.memmap(path, dtype=np.float32, mode="r").reshape(len(train) + len(test), -1)
        held_out = Schedule(self._job, train, test).held_out
        head = train_local_head(
            inputs[: len(train)],
            labels[train],
            self._records.classes,
            self._job.training.seed,
            self._watching.progress,
            self._device,
            HoldOut(held_out, *self._head_columns()) if len(held_out) else None,
        )
        found = evaluate(head.predict(inputs[len(train) :]), labels[test])
        self._run.finish_local_head(save(head.state_dict()), asdict(found))
        path.unlink()
        self._watching.observer.event("local head", **asdict(found))

    def _head_columns(self) -> tuple[Columns, Columns]:
        """Return which inputs of the local head no record's own noisy label had a part in, and the private logits.

        A feature party's share is its frozen embedding, if any, and its cut; after them come the logits and the label
        party's own cut. In a cut only the scores of the wide part are clean. Without gradients there are no labels.
        """
        model, clean, end = self._job.model, list[int](), 0
        if not self._job.trains:
            return np.arange(0), np.arange(0)

        def scores(party: str, cut: int) -> range:
            width = model.share_width(party)
            return range(cut + width - 1, cut + model.cut_width(party), width) if model.wide else range(0)

        for party in self._job.data.feature_parties:
            begin, end = end, end + self._job.head_width(party)
            cut = end - model.cut_width(party)
            clean += [*range(begin, cut), *scores(party, cut)]
        logits, own = end, end + (1 if self._records.classes == 2 else self._records.classes)
        if self._records.features is not None:
            clean += scores(LABEL_PARTY, own)
        return np.array(clean, np.int64), np.arange(logits, own)


def _is_evaluated(entry: Entry) -> bool:
    return TEST_METRICS[0] in entry


def _with_test_metrics(result: TrainResult, entries: list[Entry]) -> TrainResult:
    """Return the result with the test metrics of the epoch whose weights were kept."""
    kept: Entry = next((entry for entry in entries if entry.get("epoch") == result.kept_epoch), {})
    return replace(result, **{name: kept[name] for name in TEST_METRICS if name in kept})
