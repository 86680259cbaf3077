"""A role is a list of stages. Each is a file with both sides of its exchange next to each other.

A stage is `label(role)`, what the label party does in it, and `feature(role)`, what a feature party does. It finds
channels, the run's folder and the built halves in the role, and no true labels. Between two epochs `steps` calls
`evaluate` and `early_stopping` in the same way. What a tensor means is said where its topic is.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

from tpsl.training.job import Job
from tpsl.training.result import FeatureResult, TrainResult
from tpsl.training.role import FeatureRole, LabelRole, Rewound
from tpsl.training.stages import agree, collect, evaluate, farewell, hand_over, prepare, statistic, steps, wide
from tpsl.transport.channel import Meeting, PeerRestarted


class Stage(Protocol):
    """Both sides of one exchange."""

    async def label(self, role: LabelRole, /) -> Any:
        """Do the label party's part."""

    async def feature(self, role: FeatureRole, /) -> Any:
        """Do a feature party's part."""


STAGES: tuple[Stage, ...] = (agree, wide, prepare, steps, statistic, collect, farewell)
"""Split training."""
HAND_OVER: tuple[Stage, ...] = (agree, hand_over, farewell)
"""The noisy labels cross, and the feature party trains by itself."""
TOPICS = (
    steps.EMBEDDINGS,
    steps.GRADIENTS,
    wide.ESTIMATES,
    evaluate.TEST_EMBEDDINGS,
    statistic.STATISTIC_EMBEDDINGS,
    collect.HEAD_EMBEDDINGS,
    hand_over.NOISY_LABELS,
)
"""What tensors of a job may be; all others are refused before anybody looks at them."""


def stages_of(job: Job) -> tuple[Stage, ...]:
    """Return what the parties of a job do together, in order."""
    return HAND_OVER if job.hands_over else STAGES


async def attend_as_label(role: LabelRole, meeting: Meeting) -> TrainResult:
    """Be the label party until all steps are done at every party, through restarts of feature parties."""
    try:
        while True:
            role.result = role.run.result()
            done_with = role.run.confirmed_to(role.name) if role.result else ()
            asked = time.perf_counter()
            role.channels = await meeting.gather(without=done_with)
            role.begun += time.perf_counter() - asked  # to wait for others to come is not to train
            role.observer.gathered(role.channels)
            try:
                for stage in stages_of(role.job):
                    await stage.label(role)
            except PeerRestarted as restarted:
                role.require_one_worker(restarted)
                role.observer.event("restarted", peer=restarted.peer)
            else:
                assert role.result is not None  # the farewell has written it
                return role.result
    finally:
        role.close()


async def attend_as_feature(role: FeatureRole, meeting: Meeting) -> FeatureResult:
    """Be a feature party until the label party says that all is done, through restarts of the other parties."""
    try:
        while True:
            channels = await meeting.gather()
            role.observer.gathered(channels)
            (role.channel,), role.order = channels.values(), None
            try:
                return await _rounds(role)
            except PeerRestarted as restarted:
                role.require_one_worker(restarted)
                role.observer.event("restarted", peer=role.channel.peer)
    finally:
        role.close()


async def _rounds(role: FeatureRole) -> FeatureResult:
    """Do all stages, from the beginning each time that the label party orders a rewind."""
    while True:
        try:
            for stage in stages_of(role.job):
                await stage.feature(role)
        except Rewound as again:
            role.require_one_worker(again)
            role.order = again.order
        else:
            assert role.result is not None  # the farewell has written it
            return role.result
