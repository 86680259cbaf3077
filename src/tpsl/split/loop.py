"""Split training: Algorithms 1 and 3 and section 4.2 of the paper as one loop over the parties' own methods.

    e_i = f(x_i)       every feature party sends embeddings                   `FeatureParty.forward`
    g̃_i                the label party answers with perturbed gradients       `LabelParty.backward`, from noisy labels
    θ_L, then θ_N      both update their half                                 `update`

The loop asks the label party through `ask`: in one process that calls the label party's methods, over a network it is a
call of the service. Either way the same methods see the same numbers in the same order, so the weights are equal, bit
for bit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from torch import Tensor

from tpsl.data.order import Rows
from tpsl.split.batches import Gathered
from tpsl.split.feature_party import FeatureParty

Gradients = Callable[[], list[Tensor]]
"""Waits for the label party's answer: the gradients for each feature party."""
Ask = Callable[[int, int, list[Tensor]], Gradients]
"""Sends the embeddings of each feature party for a part of a step: `ask(step, part, embeddings)`."""


@dataclass(frozen=True)
class Step:
    """One step: its number, the size n of its batch, and for each part of it the rows in each feature party's table.

    In place of rows there may be the inputs of these records.
    """

    number: int
    records: int
    parts: tuple[tuple[Rows | Gathered, ...], ...]


@dataclass(frozen=True)
class Exchanged:
    """One part of a step: the embeddings that were sent, and what waits for the gradients."""

    embeddings: list[Tensor]
    gradients: Gradients


Watch = Callable[[Step, Sequence[Exchanged]], None]
"""Told of each step when all feature parties have updated their halves."""


def take_steps(
    features: Sequence[FeatureParty], steps: Iterable[Step], ask: Ask, watch: Watch, staleness: int = 0
) -> None:
    """Take steps with these feature parties.

    With `staleness` s they send the embeddings of up to s further steps before the gradients of this one update their
    halves. A label party that finds nothing wrong has updated its half when it has answered the last part.
    """
    under_way: deque[tuple[Step, list[Exchanged]]] = deque()
    coming = _with_following(steps)
    while True:
        for step, following in islice(coming, staleness + 1 - len(under_way)):
            under_way.append((step, _forward(features, step, following, ask)))
        if not under_way:
            return
        step, exchanged = under_way.popleft()
        for part in exchanged:
            for party, gradients in zip(features, part.gradients(), strict=True):
                party.backward(gradients, step.records)
        for party in features:
            party.update()
        watch(step, exchanged)


def _forward(
    features: Sequence[FeatureParty], step: Step, following: tuple[Rows | Gathered, ...] | None, ask: Ask
) -> list[Exchanged]:
    """Send the embeddings of a step, part by part; the inputs of the next part are read meanwhile."""
    exchanged = []
    for part, (rows, next_rows) in enumerate(zip(step.parts, (*step.parts[1:], following), strict=True)):
        embeddings = []
        for place, party in enumerate(features):
            embeddings.append(party.forward(rows[place]))
            if next_rows is not None:
                party.expect(next_rows[place])
        exchanged.append(Exchanged(embeddings, ask(step.number, part, embeddings)))
    return exchanged


def _with_following(steps: Iterable[Step]) -> Iterator[tuple[Step, tuple[Rows | Gathered, ...] | None]]:
    """Yield each step with the first part of the next one, whose inputs may be read ahead."""
    remaining = iter(steps)
    step = next(remaining, None)
    while step is not None:
        after = next(remaining, None)
        yield step, after.parts[0] if after is not None and after.parts else None
        step = after
