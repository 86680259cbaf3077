"""The steps of all parties at once, where all of them are in this process (`tpsl.party.loop`).

What the parties compute is what they compute over a network: the same methods on the same records. On one CUDA device
several steps are captured as a graph (`tpsl.training.device_steps`); where that is not possible one notice says why.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from tpsl.data.order import Rows
from tpsl.party.label_party import LabelParty
from tpsl.party.loop import Crossed, Part, Step, take_steps
from tpsl.training.device_steps import DeviceSteps
from tpsl.training.role import FeatureRole, LabelRole, Role
from tpsl.transport.checks import require_finite
from tpsl.transport.in_process import Pause
from tpsl.transport.rounding import rounded


@contextmanager
def joint_steps(label: LabelRole, features: Sequence[FeatureRole]) -> Iterator[None]:
    """Within this block the steps of these roles, of one run, are taken at once.

    At its end the graphs are freed: one that the garbage collector found while that of another run is captured would
    spoil it.
    """
    joint = JointSteps(label, features)
    for role in (label, *features):
        role.joint = joint
    try:
        yield
    finally:
        joint.close()


class JointSteps:
    """Where the roles of one process meet before a stretch of steps: the last one to arrive takes them for all."""

    def __init__(self, label: LabelRole, features: Sequence[FeatureRole]) -> None:
        self._label, self._features = label, features
        self._arrived, self._done, self._seconds = 0, -1, 0.0
        self._captured: DeviceSteps | None = None
        device = label.setup.device
        self._may_capture = device is not None and device.type == "cuda"

    async def stretch(self, role: Role, stretch: range) -> float:
        """Have steps taken; return the seconds that this role waited."""
        begun = time.perf_counter()
        self._arrived += 1
        if self._arrived <= len(self._features):
            reason = f"{role.name} waits for the other parties to come to step {stretch.start}"
            await Pause(reason, lambda: self._done == stretch.stop)
        else:
            self._seconds = self._take(stretch)
            self._arrived, self._done = 0, stretch.stop
        return time.perf_counter() - begun - self._seconds

    def close(self) -> None:
        """Free what is on the device, apart from the parties."""
        if self._captured is not None:
            self._captured.close()

    def _take(self, stretch: range) -> float:
        """Take the steps; the parties of all roles are built. Return how long they took."""
        if self._may_capture and stretch.start >= self._label.setup.record_steps:
            if self._captured is None and (reason := obstacle(self._label, self._features)):
                self._may_capture = False
                self._label.setup.watching.notice(f"a step on the GPU takes longer than it could: {reason}")
            else:
                self._captured = self._captured or DeviceSteps(self._label, self._features)
                return self._captured.take(stretch)
        return _LoopOfRoles(self._label, self._features).take(stretch)


class _LoopOfRoles:
    """Gives the loop its steps, and tells the roles of each one that is done."""

    def __init__(self, label: LabelRole, features: Sequence[FeatureRole]) -> None:
        self._label, self._features = label, features
        self._waited = 0.0

    def take(self, stretch: range) -> float:
        """Take steps; return how long they took, without the time that labels were waited for."""
        begun, training = time.perf_counter(), self._label.job.training
        parties = [role.party for role in self._features]
        take_steps(self._label.party, parties, map(self._step, stretch), self._received, self, training.staleness)
        return time.perf_counter() - begun - self._waited

    def before(self, step: Step) -> None:
        """Have the noisy labels of the step, and record the weights that it begins with."""
        begun, label = time.perf_counter(), self._label
        label.vault.admit(label.party, label.schedule.batch(step.number), step.number)
        self._waited += time.perf_counter() - begun
        if label.recorder and step.number < label.setup.record_steps:
            label.recorder.record()

    def after(self, step: Step, crossed: Sequence[Crossed]) -> None:
        """Count the step, and record what crossed."""
        for place, role in enumerate(self._features):
            if role.recorder and step.number < role.setup.record_steps:
                rows = np.concatenate([part.feature_rows[place] for part in step.parts])
                sent = torch.cat([each.embeddings[place] for each in crossed])
                role.recorder.record(rows, sent, torch.cat([each.gradients[place] for each in crossed]))
        for each_role in (self._label, *self._features):
            each_role.count(range(step.number, step.number + 1))

    def _step(self, number: int) -> Step:
        schedule = self._label.schedule
        own = [positions for _, positions in self._label.share(schedule.parts(number))]
        return Step(number, len(schedule.batch(number)), tuple(map(self._part, own)))

    def _part(self, positions: Rows) -> Part:
        schedule = self._label.schedule
        rows = tuple(role.schedule.train[positions] for role in self._features)
        return Part(schedule.among_labelled(positions), schedule.train[positions], rows)

    def _received(self, tensor: Tensor, step: int, what: str) -> Tensor:
        """Return a tensor as it arrives."""
        arrived = rounded(tensor, self._label.job.training.wire)
        require_finite(arrived, step, what)
        return arrived


def obstacle(label: LabelRole, features: Sequence[FeatureRole]) -> str | None:
    """Return why the steps of these roles, whose parties are built, cannot be taken at once; None if they can."""
    training, own = label.job.training, label.party.own
    if label.job.has_late_labels:
        return "labels arrive while training goes on"
    if training.staleness:
        return "with training.staleness a feature party runs ahead"
    if training.wire == "float16":
        return "with training.wire float16 the host looks at every tensor"
    if type(label.party) is not LabelParty:
        return f"the label party is a {type(label.party).__name__}"
    for party in [*(role.party for role in features), *([own] if own is not None else [])]:
        if not party.inputs_are_resident:
            return "not all inputs are in the memory of the device"
    halves = [half for role in (label, *features) for half in role.halves.values()]
    return next(filter(None, (optimizer.obstacle_to_capture() for _, optimizer in halves)), None)
