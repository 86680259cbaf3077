"""A party of several workers: worker 0 alone talks to the other side, and opens the vault.

Every worker runs the same stages on its rows of each part. What worker 0 receives it gives to the others, each its
rows; what all compute it gathers and sends. So the other side sees one party, however many workers it has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tpsl.net.asking import Answers, Due, Label, Question, Script, next_due
from tpsl.net.desk import Desk
from tpsl.net.failures import NET_ERRORS, NetError, PeerRestarted
from tpsl.net.messages import Message, Traffic
from tpsl.run.job import Job
from tpsl.vault import NoisyLabels
from tpsl.vault.received import received_labels
from tpsl.workers import Workers


def broadcast_noisy_labels(workers: Workers, release: Callable[[], NoisyLabels], job: Job) -> NoisyLabels:
    """Return what worker 0 releases, at every worker."""
    if not workers.are_several:
        return release()
    noisy = release() if workers.is_first else None
    private = workers.broadcast(noisy.private if noisy is not None else None)
    draws = []
    for number in range(job.privacy.draws):
        own = None if noisy is None else torch.from_numpy(noisy.draws[number].copy().view(np.uint8))
        outcomes = workers.broadcast_tensor(own).numpy().reshape(-1).view(job.mechanism.outcome_dtype)
        draws.append(outcomes.reshape(-1, *job.mechanism.outcome_shape))
    return received_labels(job.mechanism, draws, private) if noisy is None else noisy


class SharedLabel:
    """The label party, as all workers of a feature party ask it; worker 0 has the way to it."""

    def __init__(self, workers: Workers, label: Label | None) -> None:
        self._workers, self._label = workers, label

    def agree(self, said: Answers) -> Answers:
        """Begin, or begin anew."""
        label = self._label
        return _together(self._workers, None if label is None else lambda: label.agree(said))

    def ask(self, method: str, step: int, part: int, said: Answers) -> Answers:
        """Send the rows of all workers; return this worker's rows of the answer, or numbers. An answer to a question
        without rows is worker 0's."""
        label, workers = self._label, self._workers
        whole = _gathered(workers, said)
        found = _together(workers, None if label is None else lambda: label.ask(method, step, part, whole))
        has_rows = workers.broadcast(
            [name for name, message in found.items() if message.tensor is not None and whole[name].tensor is not None]
        )
        return {**found, **_scattered(workers, {name: found[name] for name in has_rows})}

    def ask_ahead(self, method: str, step: int, part: int, said: Answers) -> Callable[[], Answers]:
        """Ask; workers wait for each answer together, so nothing is asked meanwhile."""
        answers = self.ask(method, step, part, said)
        return lambda: answers


class SharedDesk:
    """Where questions come in, for all workers of the label party; worker 0 has the desk."""

    def __init__(self, workers: Workers, desk: Desk | None) -> None:
        self._workers, self._desk = workers, desk

    def gather(self, without: Collection[str] = ()) -> Answers:
        """Wait until every feature party has agreed."""
        desk = self._desk
        return _together(self._workers, None if desk is None else lambda: desk.gather(without))

    def start(self, answers: Answers) -> Mapping[str, Traffic]:
        """Begin a session."""
        return {} if self._desk is None else self._desk.start(answers)

    def answer_all(self, script: Script) -> None:
        """Answer what is due, each worker its rows, until the script ends."""
        due = next_due(script)
        while due is not None:
            due = next_due(script, self._taken(due))

    def _taken(self, due: Due) -> Question:
        desk, workers = self._desk, self._workers
        taken: list[Question] = []

        def take(desk: Desk) -> Answers:
            taken.append(desk.take(due))
            return taken[0].asked

        def give(answers: Answers) -> None:
            whole = answers if due.rows is None else _gathered(workers, answers)
            for question in taken:
                question.answer(whole)

        asked = _together(workers, None if desk is None else lambda: take(desk))
        return Question(due, asked if due.rows is None else _scattered(workers, asked), give)


def _together(workers: Workers, act: Callable[[], Answers] | None) -> Answers:
    """Have worker 0 do something; every worker gets what it returns, without tensors, or the error that it raises."""
    found: Answers = {}
    error: Exception | None = None
    told: dict[str, Any] = {}
    if act is not None:
        try:
            found = act()
            told = {"messages": [[name, m.step, m.part, list(m.numbers)] for name, m in found.items()]}
        except PeerRestarted as raised:
            error, told = raised, {"restarted": raised.peer}
        except NetError as raised:
            error, told = raised, {"failed": [type(raised).__name__, str(raised), raised.code]}
    told = workers.broadcast(told)
    if error is not None:
        raise error
    if "restarted" in told:
        raise PeerRestarted(told["restarted"])
    if "failed" in told:
        kind, *said = told["failed"]
        raise next((each for each in NET_ERRORS if each.__name__ == kind), NetError)(*said)
    if workers.is_first:
        return found
    return {name: Message(step, part, tuple(numbers)) for name, step, part, numbers in told["messages"]}


def _gathered(workers: Workers, messages: Answers) -> Answers:
    """Return messages with the rows of all workers."""
    return {
        name: message if message.tensor is None else replace(message, tensor=workers.all_gather_rows(message.tensor))
        for name, message in messages.items()
    }


def _scattered(workers: Workers, messages: Answers) -> Answers:
    """Return messages whose tensors worker 0 has, each with this worker's rows."""

    def own(whole: Tensor) -> Tensor:
        return whole[workers.own_rows(len(whole))]

    return {name: replace(m, tensor=own(workers.broadcast_tensor(m.tensor))) for name, m in messages.items()}
