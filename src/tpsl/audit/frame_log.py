"""All parties in one process, with every message made into bytes and read again, as over a network: for the audit.

The bytes of each message are a function of what the parties ask and answer, so two runs can be compared message by
message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import NamedTuple

from tpsl.net.asking import Answers, AtHome, Script
from tpsl.net.codec import decode, encode
from tpsl.net.messages import Limits, Message, WireType
from tpsl.net.peers import LABEL_PARTY

_ROOMY = Limits(rows=1 << 31, width=1 << 31)


class SentFrame(NamedTuple):
    """A message that crossed the border: who sent it to whom, what it was, and the digest of its bytes."""

    sender: str
    receiver: str
    kind: str
    step: int
    part: int
    size: int
    digest: str

    def __str__(self) -> str:
        """The message in words, as in `label → feature: Step 3, part 0`."""
        where = f" {self.step}, part {self.part}" if self.step >= 0 else ""
        return f"{self.sender} → {self.receiver}: {self.kind}{where}"


class FrameLog(AtHome):
    """The label party in this process; `watch` is told of every message before the other side sees it."""

    def __init__(
        self,
        begin: Callable[[Answers], tuple[Answers, Script]],
        dtype: WireType,
        watch: Callable[[SentFrame], None],
    ) -> None:
        super().__init__(begin, dtype)
        self._watch = watch

    def _crossed(self, method: str, messages: Answers, *, to_label: bool) -> Answers:
        return {name: self._arrived(method, name, message, to_label=to_label) for name, message in messages.items()}

    def _arrived(self, method: str, party: str, message: Message, *, to_label: bool) -> Message:
        sender, receiver = (party, LABEL_PARTY) if to_label else (LABEL_PARTY, party)
        frame = encode(message, self._dtype)
        digest = hashlib.sha256(frame).hexdigest()
        self._watch(SentFrame(sender, receiver, method, message.step, message.part, len(frame), digest))
        return decode(frame, _ROOMY, self._dtype, sender=sender)
