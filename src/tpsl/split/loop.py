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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, pairwise

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


@dataclass
class Exchanged:
    """One part of a step: the embeddings that were sent, what waits for the gradients, and these."""

    embeddings: list[Tensor]
    waiting: Gradients
    gradients: list[Tensor] = field(default_factory=list)


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
    coming = pairwise(chain(steps, (None,)))
    while True:
        for step, after in islice(coming, staleness + 1 - len(under_way)):
            assert step is not None
            under_way.append((step, _forward(features, step, after, ask)))
        if not under_way:
            return
        step, exchanged = under_way.popleft()
        for part in exchanged:
            part.gradients = part.waiting()
            for party, gradients in zip(features, part.gradients, strict=True):
                party.backward(gradients, step.records)
        for party in features:
            party.update()
        watch(step, exchanged)


def _forward(features: Sequence[FeatureParty], step: Step, after: Step | None, ask: Ask) -> list[Exchanged]:
    """Send the embeddings of a step, part by part; the inputs of the next part are read meanwhile."""
    exchanged, following = [], (*step.parts[1:], *(after.parts[:1] if after is not None else ()), None)
    for part, (rows, next_rows) in enumerate(zip(step.parts, following, strict=False)):
        embeddings = []
        for place, party in enumerate(features):
            embeddings.append(party.forward(rows[place]))
            if next_rows is not None:
                party.expect(next_rows[place])
        exchanged.append(Exchanged(embeddings, ask(step.number, part, embeddings)))
    return exchanged
