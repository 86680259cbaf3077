"""The steps of all parties at once, where all of them are in this process on one CUDA device.

What the parties compute is what they compute when they talk: the same methods on the same records. But nothing leaves
the device, and nobody waits for it (`tpsl.training.device_steps`). What that does not cover takes the way of messages,
and one notice says why. So do recorded steps, silently.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tpsl.party.label_party import LabelParty
from tpsl.training.device_steps import DeviceSteps
from tpsl.training.role import FeatureRole, LabelRole, Role
from tpsl.transport.in_process import Pause


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
        self._steps: DeviceSteps | None = None
        self._are_possible = True

    async def stretch(self, role: Role, stretch: range) -> float | None:
        """Have steps taken; return the seconds that this role waited, None if its steps are still to do."""
        if not self._are_possible or stretch.start < role.setup.record_steps:
            return None
        begun = time.perf_counter()
        self._arrived += 1
        if self._arrived <= len(self._features):
            reason = f"{role.name} waits for the other parties to come to step {stretch.start}"
            await Pause(reason, lambda: self._done == stretch.stop)
        else:
            self._take(stretch)
            self._arrived, self._done = 0, stretch.stop
        return time.perf_counter() - begun - self._seconds if self._are_possible else None

    def close(self) -> None:
        """Free what is on the device, apart from the parties."""
        if self._steps is not None:
            self._steps.close()

    def _take(self, stretch: range) -> None:
        """Take the steps, or say why not; the parties of all roles are built."""
        if self._steps is None and (reason := obstacle(self._label, self._features)):
            self._are_possible = False
            self._label.setup.watching.notice(f"a step on the GPU takes longer than it could: {reason}")
            return
        if self._steps is None:
            self._steps = DeviceSteps(self._label, self._features)
        self._seconds = self._steps.take(stretch)


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
