"""The steps of all parties at once, where all of them are in this process on one CUDA device.

Several steps are captured as a graph (`tpsl.training.device_steps`); where that is not possible one notice says why,
and the steps are taken one by one. Either way the parties' own methods see the same records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tpsl.net.asking import AtHome, PassedOver
from tpsl.split.label_party import LabelParty
from tpsl.training.device_steps import DeviceSteps
from tpsl.training.role import FeatureRole, LabelRole


@contextmanager
def joint_steps(label: LabelRole, features: Sequence[FeatureRole], asked: AtHome) -> Iterator[JointSteps | None]:
    """Give what takes the steps of these roles, of one run, at once; None on a CPU, and where every message counts.

    At the end graphs are freed: one that the garbage collector found while that of another run is captured would spoil
    it.
    """
    device = label.setup.device
    if device is None or device.type != "cuda" or type(asked) is not AtHome:
        yield None
        return
    joint = JointSteps(label, features, asked)
    try:
        yield joint
    finally:
        joint.close()


class JointSteps:
    """Takes steps of all roles in CUDA graphs, where that is possible."""

    def __init__(self, label: LabelRole, features: Sequence[FeatureRole], asked: AtHome) -> None:
        self._label, self._features, self._asked = label, features, asked
        self._captured: DeviceSteps | None = None
        self._may_capture = True

    def take(self, stretch: range) -> float | None:
        """Take the steps; the parties of all roles are built. Return how long they took, or None."""
        if not self._may_capture or stretch.start < self._label.setup.record_steps:
            return None
        if self._captured is None and (reason := obstacle(self._label, self._features)):
            self._may_capture = False
            self._label.setup.watching.notice(f"a step on the GPU takes longer than it could: {reason}")
            return None
        self._captured = self._captured or DeviceSteps(self._label, self._features)
        seconds = self._captured.take(stretch)
        self._asked.pass_over(PassedOver(stretch.stop, seconds))
        return seconds

    def close(self) -> None:
        """Free what is on the device, apart from the parties."""
        if self._captured is not None:
            self._captured.close()


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
