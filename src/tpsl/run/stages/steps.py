"""The steps of training: Algorithm 1 (no noise), Algorithm 3 (two draws) and section 4.2 (one draw).

Feature parties send embeddings `e_i = f(x_i)`, part by part; the label party answers each part with perturbed gradients
`g̃_i`, and both update their half (`tpsl.split.loop`). After each epoch the label party evaluates, and the noisy
hold-out may end training. Of several workers of a party each computes its rows of every part, and an update adds up
what all of them have found.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from tpsl.net.asking import Answers, Due, Script
from tpsl.net.codec import CPU
from tpsl.net.messages import LABEL_PARTY, Message
from tpsl.net.rounding import checked_tensor, rounded
from tpsl.run.role import FeatureRun, LabelRole
from tpsl.run.stages import evaluate
from tpsl.split.loop import Exchanged, Gradients, Step, take_steps

STEP = "Step"
"""Feature party → label party: `e_i = f(x_i)` for one part of a step's batch. Answer: the perturbed `g̃_i`."""


def label(role: LabelRole) -> Script:
    """Answer embeddings with gradients until all steps are done, or the noisy hold-out says that it is enough."""
    if role.result is not None:
        return
    evaluate.apply_verdict(role)
    schedule, widths = role.schedule, role.widths(role.job.model.cut_width)
    is_quick = (role.setup.device or CPU).type == "cpu"
    for stretch in schedule.stretches(role.done):
        if role.verdict is not None and role.verdict[1]:
            break
        begun, step = 0.0, stretch.start  # the time begins with the first question
        while step < stretch.stop:
            if role.recorder and role.is_recorded(step):
                role.recorder.record()
            records = len(schedule.batch(step))
            for part, positions in enumerate(schedule.parts(step)):
                question = yield Due(STEP, step, part, rows=len(positions), widths=widths, is_quick=is_quick)
                begun = begun if part or step > stretch.start else time.perf_counter()
                if question.passed_over is not None:
                    break
                mine = role.mine(positions) if role.workers.count > 1 else positions
                batch, rows = schedule.among_labelled(mine), schedule.train[mine]
                gradients = role.party.backward(batch, rows, question.tensors(), records)
                question.answer({name: Message(tensor=g) for name, g in zip(role.present, gradients, strict=True)})
            if question.passed_over is None:
                yield None  # the gradients leave before the label party updates its half
                role.party.update()
                step += 1
                role.speed.count(step, records)
            else:
                step = question.passed_over.step
                begun = time.perf_counter() - question.passed_over.seconds
        role.speed.seconds += time.perf_counter() - begun
        role.done, role.verdict = stretch.stop, None
        if schedule.epoch_ends(role.done):
            yield from evaluate.label(role)
        else:
            role.checkpoint()
    evaluate.restore_best(role)


def feature(run: FeatureRun) -> None:
    """Send the embeddings of every party and learn from the gradients, from checkpoint to checkpoint."""
    parties, staleness = [role.party for role in run.roles], run.job.training.staleness
    for role in run.roles:
        evaluate.apply_verdict(role)
    for stretch in run.schedule.stretches(run.done):
        if run.roles[0].verdict is not None and run.roles[0].verdict[1]:
            break
        begun = time.perf_counter()
        seconds = None if run.together is None else run.together.take(stretch)
        if seconds is None:
            crossing = _Crossing(run)
            take_steps(parties, map(crossing.step, stretch), crossing.ask, crossing.taken, staleness)
            seconds = time.perf_counter() - begun
        for role in run.roles:
            role.speed.seconds += seconds
            role.done, role.verdict = stretch.stop, None
        if run.schedule.epoch_ends(stretch.stop):
            evaluate.feature(run)
        for role in run.roles:
            role.checkpoint()
            evaluate.apply_verdict(role)
    for role in run.roles:
        evaluate.restore_best(role)


class _Crossing:
    """What crosses in the steps of all feature parties in this process; recorded where the run records."""

    def __init__(self, run: FeatureRun) -> None:
        self._roles, self._label, self._waits = run.roles, run.label, run.waits
        settings = run.job.training
        self._asks_ahead = settings.staleness > 0 or settings.micro_batches > 1
        self._wire, self._observer = settings.wire, run.roles[0].observer
        self._recorded = max(role.setup.record_steps if role.recorder else 0 for role in run.roles)
        self._sent: dict[tuple[int, int], list[Tensor]] = {}
        """Of recorded steps: the embeddings as they crossed, by step and part."""

    def step(self, number: int) -> Step:
        """Return a step: this worker's rows of every part."""
        first, roles = self._roles[0], self._roles
        parts = first.schedule.parts(number)
        if first.workers.count > 1:
            parts = [first.mine(positions) for positions in parts]
        rows = tuple([tuple([role.schedule.train[positions] for role in roles]) for positions in parts])
        return Step(number, len(first.schedule.batch(number)), rows)

    def ask(self, step: int, part: int, embeddings: list[Tensor]) -> Gradients:
        """Send embeddings; return what waits for the gradients."""
        said = {role.name: Message(tensor=sent) for role, sent in zip(self._roles, embeddings, strict=True)}
        if step < self._recorded:
            self._sent[step, part] = [rounded(each, self._wire) for each in embeddings]
        if self._asks_ahead:
            answers = self._label.ask_ahead(STEP, step, part, said)
        else:
            answers = partial(self._label.ask, STEP, step, part, said)
        return partial(self._gradients, answers, embeddings)

    def _gradients(self, answers: Callable[[], Answers], embeddings: list[Tensor]) -> list[Tensor]:
        if self._waits:
            self._observer.waiting_for(LABEL_PARTY)
        found = answers()
        if self._waits:
            self._observer.waiting_for(None)
        what = "the gradients from the label party"
        return [
            checked_tensor(found[role.name], what, len(sent), sent.shape[1])
            for role, sent in zip(self._roles, embeddings, strict=True)
        ]

    def taken(self, step: Step, exchanged: Sequence[Exchanged]) -> None:
        """Count a step, and record what crossed."""
        for place, role in enumerate(self._roles):
            if step.number < self._recorded and role.recorder and role.is_recorded(step.number):
                rows = np.concatenate([part[place] for part in step.parts])
                sent = torch.cat([self._sent[step.number, part][place] for part in range(len(step.parts))])
                role.recorder.record(rows, sent, torch.cat([part.gradients[place] for part in exchanged]))
            role.speed.count(step.number + 1, step.records)
        for part in range(len(step.parts)) if self._sent else ():
            self._sent.pop((step.number, part), None)
