"""The steps of training: Algorithm 1 (no noise), Algorithm 3 (two draws) and section 4.2 (one draw).

Feature parties send embeddings `e_i = f(x_i)`, part by part; the label party answers each part with perturbed gradients
`g̃_i`, and both update their half (`tpsl.party.loop`). After each epoch the label party evaluates, and the noisy
hold-out may end training. Of several workers of a party each computes its rows of every part, and an update adds up what all of
them have found.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence

import numpy as np
import torch
from torch import Tensor

from tpsl.net.asking import Due, Question, Script
from tpsl.net.checks import checked_tensor
from tpsl.net.peers import LABEL_PARTY
from tpsl.net.rounding import rounded
from tpsl.party.loop import Exchanged, Gradients, Step, take_steps
from tpsl.training.role import FeatureRun, LabelRole
from tpsl.training.stages import early_stopping, evaluate

STEP = "Step"
"""Feature party → label party: `e_i = f(x_i)` for one part of a step's batch. Answer: the perturbed `g̃_i`."""


def label(role: LabelRole) -> Script:
    """Answer embeddings with gradients until all steps are done, or the noisy hold-out says that it is enough."""
    if role.result is not None:
        return
    early_stopping.apply_verdict(role)
    for stretch in role.schedule.stretches(role.done):
        if role.verdict is not None and role.verdict[1]:
            break
        begun = time.perf_counter()
        waited = yield from _answers(role, stretch)
        role.speed.seconds += time.perf_counter() - begun - waited
        role.done, role.verdict = stretch.stop, None
        if role.schedule.epoch_ends(role.done):
            yield from evaluate.label(role)
        else:
            role.checkpoint()
    early_stopping.restore_best(role)


def _answers(role: LabelRole, stretch: range) -> Generator[Due, Question, float]:
    """Answer the questions of some steps; return the seconds that labels were waited for."""
    waited, step, schedule = 0.0, stretch.start, role.schedule
    while step < stretch.stop:
        begun = time.perf_counter()
        role.vault.admit(role.party, schedule.batch(step), step)
        waited += time.perf_counter() - begun
        if role.recorder and role.is_recorded(step):
            role.recorder.record()
        records, parts = len(schedule.batch(step)), schedule.parts(step)
        for part, positions in enumerate(parts):
            question = yield role.due(STEP, part, len(positions), role.job.model.cut_width, step)
            if question.passed_over is not None:
                break
            mine = role.mine(positions)
            batch, rows = schedule.among_labelled(mine), schedule.train[mine]
            gradients = role.party.backward(batch, rows, question.tensors(), records)
            question.answer(role.answers(gradients))
        if question.passed_over is not None:
            step = question.passed_over.step
            waited += question.passed_over.uncounted
            continue
        role.party.update()
        role.count(range(step, step + 1))
        step += 1
    return waited


def feature(run: FeatureRun) -> None:
    """Send the embeddings of every party and learn from the gradients, from checkpoint to checkpoint."""
    for role in run.roles:
        early_stopping.apply_verdict(role)
    for stretch in run.schedule.stretches(run.done):
        if run.roles[0].verdict is not None and run.roles[0].verdict[1]:
            break
        begun = time.perf_counter()
        seconds = None if run.together is None else run.together.take(stretch)
        if seconds is None:
            loop, staleness = _Loop(run), run.job.training.staleness
            take_steps([role.party for role in run.roles], map(loop.step, stretch), loop.ask, loop.taken, staleness)
            seconds = time.perf_counter() - begun
        for role in run.roles:
            role.speed.seconds += seconds
            role.done, role.verdict = stretch.stop, None
        if run.schedule.epoch_ends(stretch.stop):
            evaluate.feature(run)
        for role in run.roles:
            role.checkpoint()
            early_stopping.apply_verdict(role)
    for role in run.roles:
        early_stopping.restore_best(role)


class _Loop:
    """What the loop of all feature parties in this process asks and tells."""

    def __init__(self, run: FeatureRun) -> None:
        self._run = run
        self._sent: dict[tuple[int, int], list[Tensor]] = {}
        """Of recorded steps: the embeddings as they crossed, by step and part."""

    def step(self, number: int) -> Step:
        """Return a step: this worker's rows of every part."""
        schedule, roles = self._run.schedule, self._run.roles
        mine = [roles[0].mine(positions) for positions in schedule.parts(number)]
        parts = tuple(tuple(role.schedule.train[positions] for role in roles) for positions in mine)
        return Step(number, len(schedule.batch(number)), parts)

    def ask(self, step: int, part: int, embeddings: list[Tensor]) -> Gradients:
        """Send embeddings; return what waits for the gradients."""
        answers, roles = self._run.send(STEP, part, embeddings, step), self._run.roles
        if any(role.is_recorded(step) for role in roles):
            self._sent[step, part] = [rounded(each, roles[0].job.training.wire) for each in embeddings]
        what = f"step {step}: the gradients from the label party"

        def gradients() -> list[Tensor]:
            if self._run.waits:
                roles[0].observer.waiting_for(LABEL_PARTY)
            found = answers()
            if self._run.waits:
                roles[0].observer.waiting_for(None)
            return [
                checked_tensor(found[role.name], what, len(sent), sent.shape[1])
                for role, sent in zip(roles, embeddings, strict=True)
            ]

        return gradients

    def taken(self, step: Step, exchanged: Sequence[Exchanged]) -> None:
        """Count a step, and record what crossed."""
        for place, role in enumerate(self._run.roles):
            if role.recorder and role.is_recorded(step.number):
                rows = np.concatenate([part[place] for part in step.parts])
                sent = torch.cat([self._sent[step.number, part][place] for part in range(len(step.parts))])
                role.recorder.record(rows, sent, torch.cat([part.gradients()[place] for part in exchanged]))
        for part in range(len(step.parts)):
            self._sent.pop((step.number, part), None)
        for role in self._run.roles:
            role.count(range(step.number, step.number + 1))
