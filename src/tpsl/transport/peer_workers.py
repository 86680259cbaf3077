"""The workers of a peer, each at the end of a channel of its own.

What concerns the whole peer goes to all of its workers, and must come equal from all of them; a part of a batch goes to
the worker that has it: part p is with worker p mod n of a party of n workers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from tpsl.transport.channel import Channel, Traffic
from tpsl.transport.checks import BadMessage
from tpsl.transport.link import Link
from tpsl.transport.messages import Message, Stop, TensorMessage
from tpsl.transport.peers import ONLY_WORKER

_BETWEEN_LOOKS = 0.005


class PeerWorkers:
    """The channels to those workers of a peer, by their numbers, that have parts of a batch in common with this one.

    As a channel it is the one to all of them.
    """

    def __init__(self, links: Mapping[int, Link]) -> None:
        self.links = dict(sorted(links.items()))
        first = next(iter(self.links.values()))
        self.peer, self.count = first.peer, first.worker.count

    @property
    def traffic(self) -> Traffic:
        """What went through all of the channels so far."""
        each = [link.traffic for link in self.links.values()]
        return Traffic(*(sum(vars(traffic)[name] for traffic in each) for name in vars(Traffic())))

    @property
    def failure(self) -> Exception | None:
        """What has ended one of the channels for good, if anything has."""
        return next((link.failure for link in self.links.values() if link.failure is not None), None)

    async def send(self, message: Message) -> None:
        """Hand a message over to every worker."""
        for link in self.links.values():
            await link.send(message)

    async def receive(self) -> Message:
        """Return the next message of all workers, which must say the same; one of them may stop the job."""
        received = [await link.receive() for link in self.links.values()]
        first = next((message for message in received if isinstance(message, Stop)), received[0])
        if isinstance(first, Stop):
            return first
        if any(isinstance(message, TensorMessage) or message != first for message in received):
            raise BadMessage(f"the workers of {self.peer} do not say the same")
        return first


def one_channel(links: Mapping[int, Link]) -> Channel:
    """Return the channel to a peer: that of its only worker, or that to all of them."""
    workers = PeerWorkers(links)
    return workers if workers.count > 1 else workers.links[0]


def workers_of(peer: Channel) -> dict[int, Channel]:
    """Return the channels to the workers of a peer, by their numbers."""
    return dict(peer.links) if isinstance(peer, PeerWorkers) else {0: peer}


def sender_of(channel: Channel) -> str:
    """Return who sends through a channel, as sentences say it: the party and, of several workers, which one."""
    worker = channel.worker if isinstance(channel, Link) else ONLY_WORKER
    return f"{channel.peer} ({worker})" if worker.count > 1 else channel.peer


async def receive_from_any(peer: Channel) -> tuple[int, Message]:
    """Return the next message of whichever worker of a peer has sent one, and the worker's number."""
    if not isinstance(peer, PeerWorkers):
        return 0, await peer.receive()
    while True:
        for number, link in peer.links.items():
            if link.has_news():
                return number, await link.receive()
        time.sleep(_BETWEEN_LOOKS)


def worker_count(peer: Channel) -> int:
    """Return how many workers a peer has."""
    return peer.count if isinstance(peer, PeerWorkers) else 1


def to_part(peer: Channel, part: int) -> Channel:
    """Return the channel to the worker of a peer that has this part of a batch."""
    return peer.links[part % peer.count] if isinstance(peer, PeerWorkers) else peer
