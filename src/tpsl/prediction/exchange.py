"""Joint prediction: feature parties send embeddings, the label party scores them and may return the scores.

The label party asks for part after part (`Start`), each feature party answers with its share of that part, and where
the job allows it the scores come back. If any party is restarted all begin again with the first part: a new round.
Numbers cross in float32, whatever the job trains with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from tpsl.prediction.collecting import Collecting, Scoring
from tpsl.prediction.halves import Embedder
from tpsl.prediction.records import NewRecords, numbered_records
from tpsl.prediction.scores import Scores
from tpsl.training.job import PredictionConfig
from tpsl.training.observer import Watching
from tpsl.training.receiving import receive
from tpsl.transport.channel import Channel, Meeting, PeerRestarted
from tpsl.transport.checks import BadMessage, checked_tensor
from tpsl.transport.messages import Announcement, Bye, Start, TensorMessage
from tpsl.transport.peers import LABEL_PARTY

EMBEDDINGS = "embeddings to predict"
"""Feature party → label party: its share of one part of the new records; `step` is the round."""
SCORES = "scores"
"""Label party → feature party, where the job allows it: the scores of one part; `step` is the round."""
TOPICS = (EMBEDDINGS, SCORES)

MOST_NUMBERED = 10_000_000
"""The most records that a label party takes which has no list of them: memory is taken when they are announced."""


class PredictingLabelParty:
    """The label party: how it scores, its list of the records (None: it has none), and what it returns of scores.

    `keep` is called with what was collected before the feature parties are told that all is done.
    """

    def __init__(
        self,
        scoring: Scoring,
        records: NewRecords | None,
        returned: PredictionConfig,
        keep: Callable[[Collecting, NewRecords], None],
        watching: Watching,
    ) -> None:
        self._scoring, self._records, self._returned = scoring, records, returned
        self._keep, self._watching = keep, watching
        self._round = 0

    async def attend(self, meeting: Meeting) -> tuple[Collecting, NewRecords]:
        """Predict with all feature parties, through restarts; return what was collected, and of which records."""
        while True:
            channels = await meeting.gather()
            self._watching.observer.gathered(channels)
            self._round += 1
            try:
                return await self._predict(channels)
            except PeerRestarted as restarted:
                self._watching.notice(f"{restarted.peer} was restarted: beginning again")

    async def _predict(self, channels: Mapping[str, Channel]) -> tuple[Collecting, NewRecords]:
        records = numbered_records(await self._announced(channels)) if self._records is None else self._records
        collected, done = self._scoring.begin(), 0
        for part, rows in enumerate(records.parts(self._scoring.networks)):
            shares = await self._shares(channels, part, len(rows))
            if self._scoring.own is not None and records.inputs is not None:
                shares[LABEL_PARTY] = self._scoring.own.embed(records.inputs, rows)
            found = collected.add(shares)
            if found is not None and self._returned.returns != "nothing":
                answer = torch.from_numpy(self._returned.returned(found)).reshape(len(found), -1)
                for channel in channels.values():
                    await channel.send(TensorMessage(SCORES, self._round, part, answer))
            done += len(rows)
            self._watching.progress(done, len(records), "predicting")
        self._keep(collected, records)
        for channel in channels.values():
            await channel.send(Bye())
        return collected, records

    async def _announced(self, channels: Mapping[str, Channel]) -> int:
        """Return how many records the only feature party has, where the label party has no list of them."""
        (channel,) = channels.values()
        announced = (await receive(channel, self._watching.observer, Announcement)).records
        if len(announced) != 1 or not 0 < announced[0] <= MOST_NUMBERED:
            raise BadMessage(f"{channel.peer} announces {announced} records; from 1 to {MOST_NUMBERED:,} are taken")
        return announced[0]

    async def _shares(self, channels: Mapping[str, Channel], part: int, rows: int) -> dict[str, Tensor]:
        """Ask every feature party for one part; return their shares, checked."""
        for channel in channels.values():
            await channel.send(Start(self._round, part))
        shares, widths = {}, self._scoring.predictor.widths
        for name, channel in channels.items():
            message = await self._embeddings(channel)
            shares[name] = checked_tensor(message, name, self._round, part, (rows, widths[name]))
        return shares

    async def _embeddings(self, channel: Channel) -> TensorMessage:
        """Return the next answer of this round; those of earlier rounds, one at most for each, are of no use."""
        for _ in range(self._round):
            message = await receive(channel, self._watching.observer, TensorMessage, topics=(EMBEDDINGS,))
            if message.step >= self._round:
                break
        return message


class PredictingFeatureParty:
    """A feature party: what makes its share, its records, whether the label party has no list of them, and how
    many networks predict."""

    def __init__(
        self,
        embedder: Embedder,
        records: NewRecords,
        returned: PredictionConfig,
        class_names: tuple[str, ...],
        watching: Watching,
        *,
        numbered: bool = False,
        networks: int = 1,
    ) -> None:
        self.networks = networks
        self.returned, self.embedder, self.records, self.numbered = returned, embedder, records, numbered
        self.class_names, self.watching = class_names, watching

    async def attend(self, meeting: Meeting) -> Scores:
        """Answer the label party until it says goodbye, through restarts; return the scores that came back."""
        while True:
            channels = await meeting.gather()
            self.watching.observer.gathered(channels)
            (channel,) = channels.values()
            try:
                return await _Answers(self, channel).until_goodbye()
            except PeerRestarted as restarted:
                self.watching.notice(f"{restarted.peer} was restarted: beginning again")


class _Answers:
    """How far a feature party is on one channel: parts that it has sent, and parts whose scores have come back."""

    def __init__(self, role: PredictingFeatureParty, channel: Channel) -> None:
        self._role, self._channel = role, channel
        self._parts = role.records.parts(role.networks)
        self._round = self._sent = self._scored = 0
        self._scores = Scores(role.class_names)

    async def until_goodbye(self) -> Scores:
        if self._role.numbered:
            await self._channel.send(Announcement(b"", (len(self._role.records),)))
        observer = self._role.watching.observer
        while True:
            message = await receive(self._channel, observer, Start, TensorMessage, Bye, topics=(SCORES,))
            if isinstance(message, Start):
                await self._send(message)
            elif isinstance(message, TensorMessage):
                self._take(message)
            elif self._sent < len(self._parts) or self._awaits_scores:
                raise BadMessage(f"{self._channel.peer} says goodbye after {self._sent} of {len(self._parts)} parts")
            else:
                await self._channel.send(Bye())  # so that the label party does not take the end of the line for a loss
                return self._scores

    @property
    def _awaits_scores(self) -> bool:
        return self._role.returned.returns != "nothing" and self._scored < self._sent

    async def _send(self, order: Start) -> None:
        """Answer the request for the next part, or for the first part of a new round."""
        if order.round > self._round and order.step == 0:
            self._round, self._sent, self._scored = order.round, 0, 0
            self._scores = Scores(self._role.class_names)
        due = (self._round, self._sent)
        if (order.round, order.step) != due or self._awaits_scores or self._sent == len(self._parts):
            raise BadMessage(f"{self._channel.peer} asks for part {order.step}, which is not due")
        inputs, records = self._role.records.inputs, self._role.records
        assert inputs is not None  # a feature party has features
        share = self._role.embedder.embed(inputs, self._parts[self._sent])
        await self._channel.send(TensorMessage(EMBEDDINGS, self._round, self._sent, share))
        self._sent += 1
        self._role.watching.progress(sum(map(len, self._parts[: self._sent])), len(records), "predicting")

    def _take(self, message: TensorMessage) -> None:
        """Take the scores of the part that was sent last."""
        if not self._awaits_scores:
            raise BadMessage(f"{self._channel.peer} sent scores, which are not due")
        shape = (len(self._parts[self._scored]), len(self._scores.columns))
        scores = checked_tensor(message, self._channel.peer, self._round, self._scored, shape)
        if float(scores.min()) < 0 or float(scores.max()) > 1:
            raise BadMessage(f"{self._channel.peer} sent scores that do not lie between 0 and 1")
        self._scores.add(scores.numpy())
        self._scored += 1
