"""Agree on the step to go on from, at the beginning and after each restart of a party.

A party that was killed has lost its state. So the label party orders a `Rewind`, every party says which checkpoints it
has (`Position`), and all go on from the newest common one (`Start`). Each party keeps its last two checkpoints and
never is more than one ahead, so a common one exists.
"""

from __future__ import annotations

from tpsl.training.checkpoint import saved_steps
from tpsl.training.receiving import receive
from tpsl.training.role import FeatureRole, LabelRole
from tpsl.training.stages.collect import HEAD_EMBEDDINGS
from tpsl.training.stages.evaluate import TEST_EMBEDDINGS
from tpsl.training.stages.statistic import STATISTIC_EMBEDDINGS, statistic_parts
from tpsl.training.stages.steps import EMBEDDINGS
from tpsl.transport.channel import Channel
from tpsl.transport.checks import BadMessage
from tpsl.transport.messages import Bye, Finished, Position, Rewind, Start, TensorMessage

_UNDER_WAY = (EMBEDDINGS, TEST_EMBEDDINGS, STATISTIC_EMBEDDINGS, HEAD_EMBEDDINGS)
"""Tensors that may be under way from a feature party when it is told to rewind."""


async def label(role: LabelRole) -> None:
    """Find the newest step that every party has a checkpoint of, and tell all to start there."""
    role.rounds += 1
    await role.send(Rewind(role.rounds))
    common = {0, *saved_steps(role.folder / "checkpoints")}
    for channel in role.channels.values():
        common &= {0, *(await _position(role, channel)).checkpoints}
    role.done = max(common)
    await role.send(Start(role.rounds, role.done))


async def feature(role: FeatureRole) -> None:
    """Offer the own checkpoints, and accept one of them or the beginning."""
    order = role.order or await receive(role.channel, role.observer, Rewind)
    role.order = None
    offered = sorted(saved_steps(role.folder / "checkpoints"))
    await role.channel.send(Position(order.round, tuple(offered)))
    start = await role.receive(Start)
    if start.round != order.round or start.step not in (0, *offered):
        raise BadMessage(f"{role.channel.peer} wants to start at step {start.step}, which was not offered")
    role.done = start.step


async def _position(role: LabelRole, channel: Channel) -> Position:
    """Return the answer to this round's rewind; what the party sent before it came is of no use any more."""
    settings, schedule = role.job.training, role.schedule
    steps = (1 + settings.staleness) * settings.micro_batches
    parts = len(schedule.test_parts()) + len(statistic_parts(schedule)) + len(schedule.head_parts())
    for _ in range(steps + parts + role.rounds + 2):
        message = await receive(channel, role.observer, TensorMessage, Finished, Bye, Position, topics=_UNDER_WAY)
        if isinstance(message, Position) and message.round == role.rounds:
            return message
    raise BadMessage(f"{channel.peer} goes on sending and does not say where it stands")
