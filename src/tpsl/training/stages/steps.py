"""The steps of training: Algorithm 1 (no noise), Algorithm 3 (two draws) and section 4.2 (one draw).

Feature parties send embeddings `e_i = f(x_i)`, part by part; the label party answers each part with perturbed gradients
`g̃_i`, and both update their half. With `staleness` a feature party runs ahead: it sends the embeddings of later steps
before the gradients of this one have come. After each epoch the label party evaluates, and the noisy hold-out may end
training. Where a party has several workers each does its parts of a batch, and an update adds up what all of them have
found.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Coroutine
from itertools import zip_longest
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from tpsl.training.role import FeatureRole, LabelRole, Role
from tpsl.training.stages import early_stopping, evaluate
from tpsl.transport.channel import MESSAGE_OVERHEAD, WINDOW
from tpsl.transport.checks import checked_tensor
from tpsl.transport.messages import TensorMessage
from tpsl.transport.peer_workers import sender_of, to_part
from tpsl.transport.rounding import rounded, wire_bytes

EMBEDDINGS = "embeddings"
"""Feature party → label party: `e_i = f(x_i)` for one part of a step's batch."""
GRADIENTS = "gradients"
"""Label party → feature party: the perturbed `g̃_i` for one part of a step's batch."""

AnyRole = TypeVar("AnyRole", bound=Role)


async def label(role: LabelRole) -> None:
    """Answer embeddings with gradients until training ends; a finished run only repeats its last verdict."""
    if role.result is None:
        await _train(role, _answer, evaluate.label, early_stopping.label)
    else:
        await early_stopping.label(role)


async def feature(role: FeatureRole) -> None:
    """Send embeddings and learn from the gradients until training ends."""
    await _train(role, _ask, evaluate.feature, early_stopping.feature)


async def _train(
    role: AnyRole,
    stretch_of_steps: Callable[[AnyRole, range], Coroutine[Any, Any, float]],
    evaluate: Callable[[AnyRole], Coroutine[Any, Any, None]],
    stops: Callable[[AnyRole], Coroutine[Any, Any, bool]],
) -> None:
    """Train from checkpoint to checkpoint until all steps are done, or the noisy hold-out says that it is enough."""
    ended = await stops(role)
    for stretch in role.schedule.stretches(role.done):
        if ended:
            break
        begun = time.perf_counter()
        waited = await (stretch_of_steps if role.joint is None else role.joint.stretch)(role, stretch)
        role.speed.seconds += time.perf_counter() - begun - waited
        role.done = stretch.stop
        if role.schedule.epoch_ends(role.done):
            await evaluate(role)
        role.checkpoint()
        ended = await stops(role)
    early_stopping.restore_best(role)


async def _answer(role: LabelRole, stretch: range) -> float:
    """Do some steps as the label party; return the seconds that labels were waited for."""
    waited = 0.0
    for step in stretch:
        begun = time.perf_counter()
        role.vault.admit(role.party, role.schedule.batch(step), step)
        waited += time.perf_counter() - begun
        if role.recorder and step < role.setup.record_steps:
            role.recorder.record()
        records = len(role.schedule.batch(step))
        for part, positions in role.share(role.schedule.parts(step)):
            received = await role.tensors(EMBEDDINGS, step, part, len(positions), role.job.model.cut_width)
            batch, rows = role.schedule.among_labelled(positions), role.schedule.train[positions]
            gradients = role.party.backward(batch, rows, received, records)
            for channel, gradient in zip(role.channels.values(), gradients, strict=True):
                await to_part(channel, part).send(TensorMessage(GRADIENTS, step, part, gradient))
        role.party.update()
        role.count(range(step, step + 1))
    return waited


async def _ask(role: FeatureRole, stretch: range) -> float:
    """Do some steps as a feature party, which never waits for labels."""
    under_way, ahead = _UnderWay(role, stretch), stretch.start
    for step in stretch:
        while ahead < min(step + 1 + role.job.training.staleness, stretch.stop):
            await under_way.forward(ahead)
            ahead += 1
        await under_way.backward(step)
        role.count(range(step, step + 1))
    return 0.0


class _UnderWay:
    """What a feature party has sent and what has come back, within one stretch of steps."""

    def __init__(self, role: FeatureRole, stretch: range) -> None:
        self._role, self._stretch = role, stretch
        self._sent: deque[list[Tensor]] = deque()
        self._early: deque[TensorMessage] = deque()
        self._unanswered: deque[int] = deque()
        """The parts that were sent and have no gradients yet."""
        # Neither side ever waits to send: otherwise both could, each for the other to receive.
        part = role.schedule.part_rows, role.party.bottom.width
        if role.workers.are_several:  # the same number at all workers, and what `one_process.in_step` counts
            part = role.schedule.largest_part, role.job.widest_share
        part_bytes = wire_bytes(part, role.job.training.wire)
        self._most_unanswered = max(2, WINDOW // (part_bytes + 2 * MESSAGE_OVERHEAD))

    async def forward(self, step: int) -> None:
        """Compute `e_i = f(x_i)` and send it, part by part."""
        role, sent = self._role, []
        parts = role.share(role.schedule.parts(step))
        following = role.share(role.schedule.parts(step + 1))[:1] if step + 1 in self._stretch else []
        for (part, positions), coming in zip_longest(parts, [*parts[1:], *following]):
            embeddings = role.party.forward(role.schedule.train[positions])
            if coming is not None:
                role.party.expect(role.schedule.train[coming[1]])
            if len(self._unanswered) == self._most_unanswered:
                self._early.append(await self._gradients())
            await role.send_part(EMBEDDINGS, step, part, embeddings)
            self._unanswered.append(part)
            if self._is_recorded(step):
                sent.append(rounded(embeddings, role.job.training.wire))
        self._sent.append(sent)

    async def backward(self, step: int) -> None:
        """Receive `g̃_i`, part by part in the same order, and update the bottom half."""
        role, records, own, received = self._role, len(self._role.schedule.batch(step)), [], []
        for part, positions in role.share(role.schedule.parts(step)):
            message = self._early.popleft() if self._early else await self._gradients()
            shape = (len(positions), role.party.bottom.width)
            gradients = checked_tensor(message, sender_of(to_part(role.channel, part)), step, part, shape)
            role.party.backward(gradients, records)
            if self._is_recorded(step):
                own.append(positions)
                received.append(gradients)
        role.party.update()
        sent = self._sent.popleft()
        if role.recorder and self._is_recorded(step):
            role.recorder.record(role.schedule.train[np.concatenate(own)], torch.cat(sent), torch.cat(received))

    def _is_recorded(self, step: int) -> bool:
        return self._role.recorder is not None and step < self._role.setup.record_steps

    async def _gradients(self) -> TensorMessage:
        part = self._unanswered.popleft()
        return await self._role.receive(TensorMessage, GRADIENTS, to_part(self._role.channel, part))
