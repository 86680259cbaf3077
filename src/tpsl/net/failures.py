"""Why a party cannot go on with another one. Each class has a code that programs and tests can rely on."""

from __future__ import annotations


class NetError(ValueError):
    """A sentence for people, and a code."""

    code = "net"

    def __init__(self, sentence: str, code: str = "") -> None:
        super().__init__(sentence)
        self.code = code or type(self).code


class BadMessage(NetError):
    """A message that no honest peer sends; the sentence says who sent what in which step."""

    code = "bad-message"


class Refused(NetError):
    """The other side will not talk: another job, other records, another certificate; the sentence says which."""

    code = "refused"


class NotYet(Refused):
    """The other side is elsewhere for a while; the sentence says where. The same question may be asked again."""

    code = "not-yet"


class Busy(NetError):
    """A party has too many calls under way. The same question may be asked again."""

    code = "busy"


class JobStopped(NetError):
    """The other side ended the job; the sentence says who and why."""

    code = "stopped"


class PeerMissing(NetError):
    """A peer did not come, or did not come back, within the limit; the sentence names it and the reason."""

    code = "missing"


NET_ERRORS: tuple[type[NetError], ...] = (BadMessage, Refused, NotYet, Busy, JobStopped, PeerMissing)


class PeerRestarted(Exception):
    """A peer, or its session, is a new one: all agree again on the step to go on from."""

    def __init__(self, peer: str) -> None:
        super().__init__(f"{peer} was restarted")
        self.peer = peer


NOT_FINITE = "not-finite"
"""The code of a message, or of a stop, because training has diverged."""
