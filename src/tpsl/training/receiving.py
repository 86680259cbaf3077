"""The next message, if it is one that is due: what both roles do with everything that arrives."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

from tpsl.training.observer import Observer
from tpsl.transport.channel import Channel, JobStopped
from tpsl.transport.checks import BadMessage
from tpsl.transport.messages import Message, Stop, TensorMessage
from tpsl.transport.peer_workers import sender_of

Kind = TypeVar("Kind", bound=Message)


async def receive(channel: Channel, observer: Observer, *kinds: type[Kind], topics: Collection[str] = ()) -> Kind:
    """Return the next message, of one of these kinds and, if it is a tensor, of one of these topics.

    A `Stop` raises JobStopped with its reason, anything else that is not due is a BadMessage.
    """
    observer.waiting_for(channel.peer)
    message = await channel.receive()
    observer.waiting_for(None)
    return checked_message(sender_of(channel), message, *kinds, topics=topics)


def checked_message(sender: str, message: Message, *kinds: type[Kind], topics: Collection[str] = ()) -> Kind:
    """Return a message if it is due, as `receive` says it."""
    if isinstance(message, Stop):
        raise JobStopped(f"{sender} stopped the job: {message.reason}")
    topic = message.topic if isinstance(message, TensorMessage) else None
    if not isinstance(message, kinds) or (topic is not None and topic not in topics):
        expected = [*topics, *(kind.__name__ for kind in kinds if kind is not TensorMessage)]
        sent = type(message).__name__ if topic is None else topic
        raise BadMessage(f"{sender} sent {sent}; expected was {' or '.join(expected)}")
    return message
