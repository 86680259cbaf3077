"""A party of several workers at the border: worker 0 alone talks to the other side.

Every worker runs the same stages on its rows of each part. What worker 0 receives it gives to the others, each its
rows; what all compute it gathers and sends. So the other side sees one party, however many workers it has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from tpsl.net.asking import Answers, Due, Label, Question, Script, next_due
from tpsl.net.desk import Desk
from tpsl.net.failures import NetError, PeerRestarted
from tpsl.net.messages import Message, Peer
from tpsl.workers import Workers


def together(workers: Workers, act: Callable[[], Answers] | None) -> Answers:
    """Have worker 0 do something; every worker gets what it returns, without tensors, or the error that it raises."""
    found: Answers = {}
    error: Exception | None = None
    if act is not None:
        try:
            found = act()
        except (NetError, PeerRestarted) as raised:
            error = raised
    told = workers.broadcast(_told(found, error))
    if error is not None:
        raise error
    if "restarted" in told:
        raise PeerRestarted(told["restarted"])
    if "failed" in told:
        raise NetError(*told["failed"])
    if workers.is_first:
        return found
    return {name: Message(step, part, tuple(numbers)) for name, step, part, numbers in told["messages"]}


def _told(found: Answers, error: Exception | None) -> dict[str, Any]:
    if isinstance(error, PeerRestarted):
        return {"restarted": error.peer}
    if isinstance(error, NetError):
        return {"failed": [str(error), error.code]}
    return {"messages": [[name, m.step, m.part, list(m.numbers)] for name, m in found.items()]}


def scattered(workers: Workers, whole: Tensor | None) -> Tensor:
    """Return this worker's rows of a tensor that worker 0 has."""
    tensor = workers.broadcast_tensor(whole)
    return tensor[workers.own_rows(len(tensor))]


class SharedLabel:
    """The label party, as all workers of a feature party ask it; worker 0 has the way to it."""

    def __init__(self, workers: Workers, label: Label | None) -> None:
        self._workers, self._label = workers, label

    def agree(self, said: Answers) -> Answers:
        """Begin, or begin anew."""
        label = self._label
        return together(self._workers, None if label is None else lambda: label.agree(said))

    def ask(self, method: str, step: int, part: int, said: Answers) -> Answers:
        """Send the rows of all workers; return this worker's rows of the answer, or numbers. An answer to a question
        without rows is worker 0's."""
        label, workers = self._label, self._workers
        whole = {name: _gathered(workers, message) for name, message in said.items()}
        found = together(workers, None if label is None else lambda: label.ask(method, step, part, whole))
        has_rows = workers.broadcast(
            [name for name, message in found.items() if message.tensor is not None and whole[name].tensor is not None]
        )
        return {
            name: replace(message, tensor=scattered(workers, message.tensor)) if name in has_rows else message
            for name, message in found.items()
        }

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
        return together(self._workers, None if desk is None else lambda: desk.gather(without))

    def start(self, answers: Answers) -> Mapping[str, Peer]:
        """Begin a session."""
        return {} if self._desk is None else self._desk.start(answers)

    def answer_all(self, script: Script) -> None:
        """Answer what is due, each worker its rows, until the script ends."""
        due = next_due(script)
        while due is not None:
            due = next_due(script, self._taken(due))

    def _taken(self, due: Due) -> Question:
        desk, workers = self._desk, self._workers
        question: Question | None = None

        def take() -> Answers:
            nonlocal question
            assert desk is not None
            question = desk.take(due)
            return question.asked

        asked = together(workers, None if desk is None else take)
        if due.rows is not None:
            asked = {name: replace(said, tensor=scattered(workers, said.tensor)) for name, said in asked.items()}

        def give(answers: Answers) -> None:
            if due.rows is not None:
                answers = {name: _gathered(workers, answer) for name, answer in answers.items()}
            if question is not None:
                question.answer(answers)

        return Question(due, asked, give)


def _gathered(workers: Workers, message: Message) -> Message:
    """Return a message with the rows of all workers."""
    return message if message.tensor is None else replace(message, tensor=workers.all_gather_rows(message.tensor))
