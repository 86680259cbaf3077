"""Split training in one process: Algorithms 1 and 3 and section 4.2 as one loop over the parties' own methods.

    embeddings  e_i = f(x_i)            of every feature party          `FeatureParty.forward`
    gradients   g̃_i                     from noisy labels alone         `LabelParty.backward`
    updates     θ_L, then every θ_N                                     `update`

Over a network the same methods are called in the same order on the same numbers, so both give the same weights, bit for
bit. What crosses the border is rounded as on the wire, and checked as a message is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from torch import Tensor

from tpsl.data.order import Rows
from tpsl.party.feature_party import FeatureParty
from tpsl.party.label_party import LabelParty


@dataclass(frozen=True)
class Part:
    """One part of a batch: its places among the noisy labels, and its rows in the table of every party."""

    labelled: Rows
    label_rows: Rows
    feature_rows: tuple[Rows, ...]


@dataclass(frozen=True)
class Step:
    """One step: its number, the size n of its batch, and the parts of the batch."""

    number: int
    records: int
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Crossed:
    """What crossed the border for one part, as it arrived: embeddings and gradients of each feature party."""

    embeddings: list[Tensor]
    gradients: list[Tensor]


AsReceived = Callable[[Tensor, int, str], Tensor]
"""Returns a tensor as it arrives at the other side: rounded as the wire does, and checked; of which step, and what."""


class StepWatch(Protocol):
    """Told of every step."""

    def before(self, step: Step) -> None:
        """The label party takes this step next: its noisy labels are needed."""

    def after(self, step: Step, crossed: Sequence[Crossed]) -> None:
        """All parties have updated their halves; the tensors of each part have crossed."""


def take_steps(
    label: LabelParty,
    features: Sequence[FeatureParty],
    steps: Iterable[Step],
    as_received: AsReceived,
    watch: StepWatch,
    staleness: int = 0,
) -> None:
    """Take steps with all parties.

    With `staleness` s the feature parties send the embeddings of up to s further steps before the gradients of this
    one update their halves.
    """
    under_way: deque[tuple[Step, list[Crossed]]] = deque()
    coming = _with_following(steps)
    while True:
        for step, following in islice(coming, staleness + 1 - len(under_way)):
            watch.before(step)
            under_way.append((step, _exchange(label, features, step, following, as_received)))
        if not under_way:
            return
        step, crossed = under_way.popleft()
        for each in crossed:
            for party, gradients in zip(features, each.gradients, strict=True):
                party.backward(gradients, step.records)
        for party in features:
            party.update()
        watch.after(step, crossed)


def _exchange(
    label: LabelParty,
    features: Sequence[FeatureParty],
    step: Step,
    following: Part | None,
    as_received: AsReceived,
) -> list[Crossed]:
    """Send the embeddings of a step and answer them with gradients, part by part, and update the top half."""
    crossed = []
    for part, next_part in zip(step.parts, (*step.parts[1:], following), strict=True):
        embeddings = []
        for place, party in enumerate(features):
            embeddings.append(as_received(party.forward(part.feature_rows[place]), step.number, "embeddings"))
            if next_part is not None:
                party.expect(next_part.feature_rows[place])
        gradients = label.backward(part.labelled, part.label_rows, embeddings, step.records)
        crossed.append(Crossed(embeddings, [as_received(each, step.number, "gradients") for each in gradients]))
    label.update()
    return crossed


def _with_following(steps: Iterable[Step]) -> Iterator[tuple[Step, Part | None]]:
    """Yield each step with the first part of the next one, whose inputs may be read ahead."""
    remaining = iter(steps)
    step = next(remaining, None)
    while step is not None:
        after = next(remaining, None)
        yield step, after.parts[0] if after is not None and after.parts else None
        step = after
