"""Agree on the step to go on from, at the beginning and after each restart of a party.

A party that was killed has lost its state. So the label party orders a `Rewind`, every party says which checkpoints it
has (`Position`), and all go on from the newest common one (`Start`). Each party keeps its last two checkpoints and
never is more than one ahead, so a common one exists.

Where parties have several workers every pair of them that has parts of a batch in common does so, and the first worker
of the label party decides. A worker that hears of a restart begins anew with those that were started again, until it
has told the others of its party that it is ready. From then on nobody can tell how far they are, so that a restart of
a peer ends all workers of the party, which begin anew together.
"""

from __future__ import annotations

from math import lcm

from tpsl.training.checkpoint import saved_steps
from tpsl.training.receiving import checked_message, receive
from tpsl.training.role import FeatureRole, LabelRole
from tpsl.training.stages.collect import HEAD_EMBEDDINGS
from tpsl.training.stages.evaluate import TEST_EMBEDDINGS
from tpsl.training.stages.statistic import STATISTIC_EMBEDDINGS, statistic_parts
from tpsl.training.stages.steps import EMBEDDINGS
from tpsl.transport.channel import Channel, PeerRestarted
from tpsl.transport.checks import BadMessage
from tpsl.transport.messages import Bye, Finished, Position, Rewind, Start, TensorMessage
from tpsl.transport.peer_workers import receive_from_any, worker_count, workers_of
from tpsl.workers import PartyInterrupted

MOST_PARTS = 1 << 12
"""The most workers among which the parts of a batch go round."""
_UNDER_WAY = (EMBEDDINGS, TEST_EMBEDDINGS, STATISTIC_EMBEDDINGS, HEAD_EMBEDDINGS)
"""Tensors that may be under way from a feature party when it is told to rewind."""


async def label(role: LabelRole) -> None:
    """Find the newest step that every party has a checkpoint of, and tell all to start there."""
    role.rounds, role.is_ready = role.rounds + 1, False
    await role.send(Rewind(role.rounds))
    common = {0, *saved_steps(role.folder / "checkpoints")}
    peers = [channel for peer in role.channels.values() for channel in workers_of(peer).values()]
    for channel in peers:
        common &= {0, *(await _position(role, channel)).checkpoints}
    role.wait_until_ready(peers)
    counts = {name: worker_count(channel) for name, channel in role.channels.items()}
    role.done, told_first = role.workers.broadcast([max(common), counts])
    for name, count in counts.items():
        if told_first.get(name) != count:
            raise PartyInterrupted(
                f"{name} has come with {count} workers, and to worker 0 of this party with {told_first.get(name)}"
            )
    role.schedule.division = division = lcm(role.workers.count, *counts.values())
    if division > MOST_PARTS:
        largest = max(counts, key=lambda name: counts[name])
        raise BadMessage(
            f"a batch cannot be divided among {division:,} workers, of which {largest} has {counts[largest]}; "
            f"the most are {MOST_PARTS:,}"
        )
    await _send_all(peers, Start(role.rounds, role.done, division))


async def _send_all(peers: list[Channel], start: Start) -> None:
    """Send to every worker, also if one of them was restarted: the others of its party must not wait for it."""
    restarted = None
    for channel in peers:
        try:
            await channel.send(start)
        except PeerRestarted as one:
            restarted = one
    if restarted is not None:
        raise restarted


async def feature(role: FeatureRole) -> None:
    """Offer the own checkpoints, and accept one of them or the beginning, the same from all of the label party."""
    role.is_ready = False
    offered = tuple(sorted(saved_steps(role.folder / "checkpoints")))
    peers = workers_of(role.channel)
    rounds, starts = dict[int, int](), dict[int, Start]()
    if role.order is not None:
        rounds[0], role.order = role.order.round, None
        await role.channel.send(Position(rounds[0], offered))
    while len(starts) < len(peers):
        role.observer.waiting_for(role.channel.peer)
        number, message = await receive_from_any(role.channel)
        role.observer.waiting_for(None)
        due = checked_message(role.channel.peer, message, Rewind, Start)
        if isinstance(due, Rewind):
            rounds[number] = due.round
            starts.pop(number, None)
            await peers[number].send(Position(due.round, offered))
        elif isinstance(due, Start):
            starts[number] = _checked_start(role, due, rounds.get(number), offered)
    role.wait_until_ready(peers.values())
    decided = [[start.step, start.division] for start in starts.values()]
    role.done, role.schedule.division = role.workers.broadcast(decided[0])
    if any(each != [role.done, role.schedule.division] for each in decided):
        raise BadMessage(f"the workers of {role.channel.peer} want to start at different steps")


def _checked_start(role: FeatureRole, start: Start, ordered: int | None, offered: tuple[int, ...]) -> Start:
    """Return where to start, if it is an answer to what was offered in this round."""
    peer, count = role.channel.peer, lcm(role.workers.count, worker_count(role.channel))
    if start.round != ordered or start.step not in (0, *offered):
        raise BadMessage(f"{peer} wants to start at step {start.step}, which was not offered")
    if not 1 <= start.division <= MOST_PARTS or start.division % count:
        raise BadMessage(f"{peer} wants to divide a batch among {start.division} workers, not a multiple of {count}")
    return start


async def _position(role: LabelRole, channel: Channel) -> Position:
    """Return the answer to this round's rewind; what the party sent before it came is of no use any more."""
    settings, schedule = role.job.training, role.schedule
    steps = (1 + settings.staleness) * settings.micro_batches * schedule.division
    parts = len(schedule.test_parts()) + len(statistic_parts(schedule))
    parts += len(schedule.head_parts()) if settings.head == "local" else 0
    for _ in range(steps + parts + role.rounds + 2):
        message = await receive(channel, role.observer, TensorMessage, Finished, Bye, Position, topics=_UNDER_WAY)
        if isinstance(message, Position) and message.round == role.rounds:
            return message
    raise BadMessage(f"{channel.peer} goes on sending and does not say where it stands")
