"""A run is a sequence of stages. Each is a file with both sides of its exchange next to each other.

A stage is `label(role)`, the label party's part of the script: a generator that yields what is due and answers it, and
`feature(run)`, what the feature parties ask. A stage finds the run's folder and the built halves in the roles, and no
true labels. Over a network and in one process the same functions run: `attend_as_label` answers what comes to a desk,
`AtHome` what is asked in the same process.

A party that was killed has lost its state. So at the beginning, and after each restart of a party, every feature party
says which checkpoints it has, and the label party answers with the newest that all parties have. Each party keeps its
last two checkpoints and is never more than one ahead, so a common one exists. After a step with a verdict, the answer
repeats the verdict.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Protocol

from tpsl.net.asking import Answers, Script, in_turn
from tpsl.net.desk import Desk
from tpsl.net.failures import BadMessage, PeerRestarted
from tpsl.net.messages import LABEL_PARTY, Message
from tpsl.run.checkpoint import saved_steps
from tpsl.run.job import Job
from tpsl.run.ranks import SharedDesk
from tpsl.run.result import FeatureResult, TrainResult
from tpsl.run.role import FeatureRun, LabelRole
from tpsl.run.stages import collect, evaluate, farewell, hand_over, prepare, steps


class Stage(Protocol):
    """Both sides of one exchange."""

    def label(self, role: LabelRole, /) -> Script:
        """Yield what is due in this stage, and answer it."""

    def feature(self, run: FeatureRun, /) -> None:
        """Ask what the feature parties ask in this stage."""


STAGES: tuple[Stage, ...] = (prepare, steps, collect, farewell)
"""Split training, after all parties have agreed on a step."""
HAND_OVER: tuple[Stage, ...] = (hand_over, farewell)
"""The noisy labels cross, and the feature party trains alone."""
METHODS = (
    prepare.ESTIMATES,
    steps.STEP,
    evaluate.EVALUATE,
    collect.STATISTIC,
    collect.HEAD,
    hand_over.NOISY_LABELS,
    farewell.FINISH,
)
"""The questions of a job, apart from `Hello`, `Agree` and `Stop`."""


def stages_of(job: Job) -> tuple[Stage, ...]:
    """Return what the parties of a job do together, in order."""
    return HAND_OVER if job.hands_over else STAGES


def begin(role: LabelRole, said: Mapping[str, Message]) -> tuple[Answers, Script]:
    """Begin at the newest step that every party has a checkpoint of; return the answers and the script from there."""
    role.result, role.present = role.run.result(), tuple(said)
    common = {0, *saved_steps(role.checkpoints)}
    for message in said.values():
        common &= {0, *message.numbers}
    role.done = role.workers.broadcast(max(common))
    role.verdict = evaluate.verdict(role)
    answer = Message(step=role.done, numbers=evaluate.as_numbers(role.verdict))
    return dict.fromkeys(said, answer), in_turn(stage.label(role) for stage in stages_of(role.job))


def attend_as_label(role: LabelRole, desk: Desk | SharedDesk) -> TrainResult:
    """Be the label party until all steps are done at every party, through restarts of feature parties."""
    try:
        while True:
            done_with = role.run.confirmed_to(role.name) if role.run.result() else ()
            asked = time.perf_counter()
            said = desk.gather(without=done_with)
            role.begun += time.perf_counter() - asked  # to wait for others to come is not to train
            answers, script = begin(role, said)
            role.observer.gathered(desk.start(answers))
            try:
                desk.answer_all(script)
            except PeerRestarted as restarted:
                role.observer.event("restarted", peer=restarted.peer)
            else:
                assert role.result is not None  # the farewell has written it
                return role.result
    finally:
        role.close()


def attend_as_features(run: FeatureRun) -> list[FeatureResult]:
    """Be feature parties until the label party says that all is done, through restarts of the other parties."""
    try:
        while True:
            try:
                _agree(run)
                for stage in stages_of(run.job):
                    stage.feature(run)
            except PeerRestarted as restarted:
                for role in run.roles:
                    role.observer.event("restarted", peer=restarted.peer)
            else:
                return [role.result for role in run.roles if role.result is not None]
    finally:
        for role in run.roles:
            role.close()


def _agree(run: FeatureRun) -> None:
    """Say which checkpoints there are, and accept one of them or the beginning."""
    offered = {role.name: tuple(sorted(saved_steps(role.checkpoints))) for role in run.roles}
    for role in run.roles if run.waits else ():
        role.observer.waiting_for(LABEL_PARTY)
    answers = run.label.agree({name: Message(numbers=steps) for name, steps in offered.items()})
    for role in run.roles:
        answer = answers[role.name]
        role.observer.waiting_for(None)
        if run.workers.is_first and answer.step not in (0, *offered[role.name]):
            raise BadMessage(f"the label party wants to start at step {answer.step}, which was not offered")
        role.done, role.result = answer.step, None
        evaluate.hear(role, answer)
