"""The label party's requests by key: each is scored when every party with a bottom half has contributed its part.

A request begins with the first part that comes and lives for `deadline` seconds. Scores are computed once; whoever
asks for them within that time gets the same ones. All of it is bounded: for each party, so that none can crowd out
another, the requests that it began and the bytes of its parts that wait; for all together, scores that are kept.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from tpsl.net.messages import LABEL_PARTY, described
from tpsl.net.scoring_pb2 import ScoreRequest
from tpsl.serving.batching import MOST_RECORDS, Array, Batcher
from tpsl.serving.models import LabelModel, Records, Versions
from tpsl.serving.refusals import Reason, Refusal

MOST_OPEN_PER_PARTY = 2048
MOST_WAITING_BYTES = 64 << 20
"""Of one party: its shares, or the label party's own records."""
MOST_KEPT = 16384
LONGEST_KEY = 128


@dataclass
class _Request:
    key: str
    opener: str
    scores: asyncio.Future[Array]
    model: LabelModel | None = None
    records: int | None = None
    shares: dict[str, Array] = field(default_factory=dict)
    own: Records | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    """The bytes of each party's part."""
    contributed: dict[str, bytes] = field(default_factory=dict)
    """The digest of each party's part; empty for the label party's own."""

    def missing(self) -> list[str]:
        """Return the parties that have not contributed yet; without any share nobody knows who else is needed."""
        if self.model is None:
            return ["any feature party"]
        needed = [*self.model.versions, *([LABEL_PARTY] if self.model.own is not None else [])]
        return [described(party) for party in needed if party not in self.contributed]


class Gathering:
    """Collects the parts of requests and lets the batcher score those that are complete."""

    def __init__(self, versions: Versions[LabelModel], batcher: Batcher, deadline: float) -> None:
        self._versions, self._batcher, self.deadline = versions, batcher, deadline
        self._requests: dict[str, _Request] = {}
        """By key, the oldest first."""
        self._open: Counter[str] = Counter()
        self._waiting_bytes: Counter[str] = Counter()
        self._closed = False

    def model(self, party: str, version: str) -> LabelModel:
        """Return the model that goes with this version of a feature party's half."""
        known = {model.versions[party]: model for model in self._versions.held if party in model.versions}
        if not known:
            raise Refusal(Reason.FORBIDDEN, f"{party!r} is not a feature party of this model")
        if version not in known:
            names = " and ".join(name[:16] for name in known)
            raise Refusal(
                Reason.UNKNOWN_VERSION,
                f"the half of {party!r} has the version {version[:16]!r}; this service goes with {names}",
            )
        return known[version]

    def contribute(self, model: LabelModel, share: ScoreRequest) -> asyncio.Future[Array]:
        """Take a feature party's share; returns the scores to be. It is hostile until it has been checked here.

        The same share again is the same request: a caller that has lost its connection may repeat it.
        """
        party, numbers = share.party, _checked_numbers(share, model.predictor.widths[share.party])
        request = self._request(share.key, party)
        if request.model not in (None, model):
            raise Refusal(Reason.KEY_IN_USE, f"the key {share.key!r} holds shares of another version of the model")
        digest = hashlib.blake2b(share.numbers, digest_size=16).digest()
        if party in request.contributed:
            if request.contributed[party] != digest:
                raise Refusal(Reason.KEY_IN_USE, f"the key {share.key!r} holds another share of yours already")
            return request.scores
        self._hold(request, party, share.records, numbers.nbytes)
        request.model, request.shares[party], request.contributed[party] = model, numbers, digest
        self._score_if_complete(request)
        return request.scores

    def ask(self, key: str, records: Records | None, size: int) -> asyncio.Future[Array]:
        """Ask for the scores of a key as the label party, with its own records where its half reads some.

        Where they were given already, the first ones count. `size` is that of the text that they came as.
        """
        needs_records = self._versions.newest.own is not None
        if needs_records != (records is not None):
            has = "has features of its own: send" if needs_records else "has no features of its own: leave out"
            raise Refusal(Reason.MALFORMED, f'the label party {has} "records"')
        request = self._request(key, LABEL_PARTY)
        if records is not None and LABEL_PARTY not in request.contributed:
            self._hold(request, LABEL_PARTY, len(records), size)
            request.own, request.contributed[LABEL_PARTY] = records, b""
            self._score_if_complete(request)
        return request.scores

    async def wait(self, scores: asyncio.Future[Array]) -> Array:
        """Return scores when they are there; the request goes on for others if this one stops waiting."""
        found = await asyncio.shield(scores)
        if not np.isfinite(found).all():
            raise Refusal(Reason.BAD_PEER, "a share of this request holds numbers so large that it has no score")
        return found

    def close(self) -> None:
        """Refuse what is not complete, and new requests."""
        self._closed = True
        for request in [waiting for waiting in self._requests.values() if waiting.missing()]:
            self._drop(request, _stopping())

    def _request(self, key: str, opener: str) -> _Request:
        found = self._requests.get(checked_key(key))
        if found is not None:
            return found
        if self._closed:
            raise _stopping()
        if self._open[opener] >= MOST_OPEN_PER_PARTY:
            raise Refusal(Reason.BUSY, f"{self._open[opener]:,} requests of {opener} wait for other parties")
        if len(self._requests) >= MOST_KEPT:
            self._expire(next(iter(self._requests.values())))
        loop = asyncio.get_running_loop()
        request = _Request(key, opener, loop.create_future())
        request.scores.add_done_callback(lambda _: self._close_request(request))
        loop.call_later(self.deadline, self._expire, request)
        self._requests[key] = request
        self._open[opener] += 1
        return request

    def _hold(self, request: _Request, party: str, records: int, size: int) -> None:
        """Count the bytes of a party's part, which has so many records as all others, until the request is done."""
        if request.records not in (None, records):
            raise Refusal(
                Reason.MALFORMED, f"the key {request.key!r} has {request.records} records elsewhere, not {records}"
            )
        if self._waiting_bytes[party] + size > MOST_WAITING_BYTES:
            raise Refusal(Reason.BUSY, f"too many bytes of {party} wait for other parties; ask again later")
        request.records = records
        self._waiting_bytes[party] += size
        request.sizes[party] = size

    def _score_if_complete(self, request: _Request) -> None:
        if request.missing() or request.scores.done():
            return
        assert request.model is not None
        arrays = [request.shares[party] for party in request.model.versions]
        try:
            if request.model.own is not None and request.own is not None:
                arrays += request.model.own.encode(request.own)
            self._batcher.submit(request.model, arrays, request.scores)
        except Exception as error:  # whoever completes a request is not told what is wrong with the parts of others
            self._drop(request, error)

    def _close_request(self, request: _Request) -> None:
        """Keep nothing of a request that was scored, or is refused, but the scores and who has contributed."""
        if not request.scores.cancelled():
            request.scores.exception()  # asyncio complains of errors that nobody has looked at
        self._open[request.opener] -= 1
        self._waiting_bytes.subtract(request.sizes)
        request.shares, request.own = {}, None

    def _drop(self, request: _Request, reason: Exception) -> None:
        if self._requests.get(request.key) is request:
            del self._requests[request.key]
        if not request.scores.done():
            request.scores.set_exception(reason)

    def _expire(self, request: _Request) -> None:
        missing = " and ".join(request.missing())
        sentence = f"nothing came from {missing} under the key {request.key!r} within {self.deadline:g} s"
        self._drop(request, Refusal(Reason.TOO_LATE, sentence))


def checked_key(key: str) -> str:
    """Return what names a request, if it can be that."""
    if not 0 < len(key) <= LONGEST_KEY or not key.isprintable():
        raise Refusal(Reason.MALFORMED, f"a key is a text of 1 to {LONGEST_KEY} printable characters")
    return key


def _stopping() -> Refusal:
    return Refusal(Reason.UNREACHABLE, "the label party's service is stopping; ask again")


def _checked_numbers(share: ScoreRequest, width: int) -> Array:
    """Return a share as an array of its width, if it is one and finite."""
    if not 0 < share.records <= MOST_RECORDS:
        raise Refusal(Reason.MALFORMED, f"a request has 1 to {MOST_RECORDS:,} records, not {share.records:,}")
    if len(share.numbers) != share.records * width * 4:
        raise Refusal(
            Reason.MALFORMED,
            f"a share of {share.records} records of width {width} has {share.records * width * 4:,} bytes, "
            f"not {len(share.numbers):,}",
        )
    numbers = np.frombuffer(share.numbers, dtype="<f4").reshape(share.records, width).copy()
    if not np.isfinite(numbers).all():
        raise Refusal(Reason.MALFORMED, "a share holds numbers that are not finite")
    return numbers
