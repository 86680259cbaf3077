"""Agree on the step to go on from, at the beginning and after each restart of a party.

A party that was killed has lost its state. So every feature party says which checkpoints it has, and the label party
answers with the newest that all parties have. Each party keeps its last two checkpoints and is never more than one
ahead, so a common one exists. After a step that was judged, the answer repeats the verdict.
"""

from __future__ import annotations

from collections.abc import Mapping

from tpsl.net.asking import Answers
from tpsl.net.failures import BadMessage
from tpsl.net.messages import Message
from tpsl.net.peers import LABEL_PARTY
from tpsl.training.checkpoint import saved_steps
from tpsl.training.role import FeatureRun, LabelRole
from tpsl.training.stages import evaluate


def label(role: LabelRole, said: Mapping[str, Message]) -> Answers:
    """Find the newest step that every party has a checkpoint of, and tell all to start there."""
    common = {0, *saved_steps(role.folder / "checkpoints")}
    for message in said.values():
        common &= {0, *message.numbers}
    role.done = role.workers.broadcast(max(common))
    role.verdict = evaluate.verdict(role)
    return dict.fromkeys(said, Message(step=role.done, numbers=evaluate.as_numbers(role.verdict)))


def feature(run: FeatureRun) -> None:
    """Say which checkpoints there are, and accept one of them or the beginning."""
    offered = {role.name: tuple(sorted(saved_steps(role.folder / "checkpoints"))) for role in run.roles}
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
