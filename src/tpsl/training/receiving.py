"""The next message, if it is one that is due: what both roles do with everything that arrives."""

from __future__ import annotations

from typing import TypeVar

from tpsl.training.observer import Observer
from tpsl.transport import BadMessage, Channel, JobStopped, Message, Stop

Kind = TypeVar("Kind", bound=Message)


async def receive(channel: Channel, observer: Observer, *kinds: type[Kind]) -> Kind:
    """Return the next message; a `Stop` raises JobStopped with its reason, any other kind is a BadMessage."""
    observer.waiting_for(channel.peer)
    message = await channel.receive()
    observer.waiting_for(None)
    if isinstance(message, Stop):
        raise JobStopped(f"{channel.peer} stopped the job: {message.reason}")
    if not isinstance(message, kinds):
        raise BadMessage(
            f"{channel.peer} sent {type(message).__name__}; expected was {' or '.join(kind.__name__ for kind in kinds)}"
        )
    return message
