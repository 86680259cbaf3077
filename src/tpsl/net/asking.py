"""Questions and answers, as the two sides of a job see them.

The feature parties ask. `Label` is whom they ask: the label party in the same process (`AtHome`), or over a network
(`tpsl.net.client`). The label party's side is a script: a generator that yields what is due next, gets the question
when every feature party has asked it, and answers it. So the script reads from top to bottom, and the same one serves
one process and a network.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from torch import Tensor

from tpsl.net.failures import BadMessage
from tpsl.net.messages import Message, WireType, described
from tpsl.net.rounding import checked_tensor, require_finite, rounded


@dataclass(frozen=True)
class Due:
    """The question that the label party expects next."""

    method: str
    step: int = 0
    part: int = 0
    one_of: tuple[str, ...] = ()
    """The parties one of which asks it; none are named: every feature party asks it."""
    rows: int | None = None
    """How many rows the tensor in the question has; None: there is none."""
    widths: Mapping[str, int | range] = field(default_factory=dict)
    """How many numbers each row has, by party."""
    is_quick: bool = False
    """Whether the answer may be computed in a thread of the network: it takes a moment and waits for nothing."""

    def require(self, message: Message, sender: str) -> None:
        """Raise BadMessage unless the tensor in a question has the shape that is due, or is missing where none is."""
        if self.rows is not None:
            what = f"step {self.step}: the {self.method} numbers from {sender}"
            checked_tensor(message, what, self.rows, self.widths[sender])
        elif message.tensor is not None:
            raise BadMessage(f"{described(sender)} sent numbers with {self.method}, which has none")


NOTHING = Message()
Answers = Mapping[str, Message]
"""What each feature party gets, by name."""


class PassedOver(NamedTuple):
    """Steps that the parties' own methods have taken: the one that comes next, and how long they took."""

    step: int
    seconds: float


@dataclass
class Question:
    """What the feature parties have asked, by party in the job's order. It is answered once."""

    due: Due
    asked: Mapping[str, Message]
    give: Callable[[Answers], None]
    """Gives every party its answer."""
    passed_over: PassedOver | None = None
    """In one process: no question, but that steps were taken without any."""

    def tensors(self) -> list[Tensor]:
        """Return what the parties have sent, in the job's order."""
        return [message.tensor for message in self.asked.values() if message.tensor is not None]

    def answer(self, answers: Answers) -> None:
        """Give every party its answer."""
        step, part = self.due.step, self.due.part
        self.give({name: replace(answer, step=step, part=part) for name, answer in answers.items()})

    def answer_all(self, answer: Message = NOTHING) -> None:
        """Give every party the same answer."""
        self.answer(dict.fromkeys(self.asked, answer))


Script = Generator[Due | None, Question, None]
"""The label party's side of a job. It yields None where what it has answered may leave before it goes on."""


def in_turn(scripts: Iterable[Script]) -> Script:
    """Return the script that consists of these."""
    for script in scripts:
        yield from script


def next_due(script: Script, question: Question | None = None) -> Due | None:
    """Have a script go on; return what is due next, or None at its end."""
    try:
        due = script.send(question)  # type: ignore[arg-type]  # None starts a generator
        while due is None:
            due = next(script)
    except StopIteration:
        return None
    return due


class Label(Protocol):
    """The label party, as the feature parties of this process ask it: all of a job, or one over a network."""

    def agree(self, said: Answers) -> Answers:
        """Begin, or begin anew: say where each party stands, and return where all start."""

    def ask(self, method: str, step: int, part: int, said: Answers) -> Answers:
        """Ask, and return the answer to each party."""

    def ask_ahead(self, method: str, step: int, part: int, said: Answers) -> Callable[[], Answers]:
        """Ask, and return what waits for the answer: other questions may be asked meanwhile."""


class AtHome:
    """The label party in this process. What crosses the border is rounded and checked as on a network.

    `begin` takes what the parties say and returns the answers, and the script of the label party.
    """

    def __init__(self, begin: Callable[[Answers], tuple[Answers, Script]], dtype: WireType) -> None:
        self._begin, self._dtype = begin, dtype
        self._script: Script | None = None
        self._due: Due | None = None
        self._given: Answers = {}

    def agree(self, said: Answers) -> Answers:
        """Begin the script."""
        answers, self._script = self._begin(self._crossed("Agree", said, to_label=True))
        self._due = next_due(self._script)
        return self._crossed("Agree", answers, to_label=False)

    def ask(self, method: str, step: int, part: int, said: Answers) -> Answers:
        """Have the script answer; it goes on to what is due next."""
        due, script = self._due, self._script
        if script is None or due is None or (method, step, part) != (due.method, due.step, due.part):
            raise RuntimeError(f"{method} of step {step}, part {part} was asked, and due is {due}")
        said = {name: replace(message, step=step, part=part) for name, message in said.items()}
        question = Question(due, self._crossed(method, said, to_label=True), self._give)
        try:  # as `next_due` does, in one call less of each step
            self._due = script.send(question)
            while self._due is None:
                self._due = next(script)
        except StopIteration:
            self._due = None
        return self._crossed(method, self._given, to_label=False)

    def ask_ahead(self, method: str, step: int, part: int, said: Answers) -> Callable[[], Answers]:
        """Have the script answer at once."""
        answers = self.ask(method, step, part, said)
        return lambda: answers

    def pass_over(self, steps: PassedOver) -> None:
        """Have the script go on behind steps that were taken with the parties' own methods."""
        assert self._script is not None and self._due is not None
        self._due = next_due(self._script, Question(self._due, {}, self._give, steps))

    def _give(self, answers: Answers) -> None:
        self._given = answers

    def _crossed(self, method: str, messages: Answers, *, to_label: bool) -> Answers:
        """Return messages as they arrive at the other side."""
        return {
            name: self._arrived(method, name, message, to_label=to_label) if message.tensor is not None else message
            for name, message in messages.items()
        }

    def _arrived(self, method: str, party: str, message: Message, *, to_label: bool) -> Message:
        assert message.tensor is not None
        arrived = rounded(message.tensor, self._dtype)
        sender = party if to_label else "the label party"
        require_finite(arrived, f"step {message.step}: the {method} numbers from {sender}")
        return replace(message, tensor=arrived)
