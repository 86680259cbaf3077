"""How a worker of a feature party reaches those of the label party that it has parts of a batch in common with."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack

import grpc

from tpsl.transport.channel import Channel, PeerMissing
from tpsl.transport.feature_client import FeatureClient
from tpsl.transport.handshake import Agreement
from tpsl.transport.link import Link, Terms
from tpsl.transport.peer_workers import one_channel
from tpsl.transport.peers import LABEL_PARTY

_BETWEEN_LOOKS = 0.05


class LabelWorkers(ExitStack):
    """Keeps a feature party connected to the workers of the label party. Use it as a context manager."""

    def __init__(
        self,
        addresses: Sequence[str],
        party: str,
        agreement: Agreement,
        terms: Terms,
        *,
        credentials: grpc.ChannelCredentials | None,
    ) -> None:
        """Begin to connect to the addresses of the label party's workers, which are given in order."""
        super().__init__()
        self._wait = terms.patience.wait
        links: dict[int, Link] = {}
        self._clients = {
            number: self.enter_context(
                FeatureClient(
                    address,
                    party,
                    agreement,
                    terms,
                    credentials=credentials,
                    expected=(number, len(addresses)),
                    beside=links,
                )
            )
            for number, address in enumerate(addresses)
            if terms.worker.meets(number, len(addresses))
        }

    def stop(self, reason: str | None) -> None:
        """Tell the label party why the job stops, if a reason is given."""
        for client in self._clients.values():
            client.stop(reason)

    async def gather(self, without: Collection[str] = ()) -> dict[str, Channel]:
        """Wait for the label party and return the channel to it: a new one if it was restarted.

        All of its workers were started together, so those of an earlier start are waited for no more.
        """
        if LABEL_PARTY in without:
            return {}
        until = time.monotonic() + self._wait
        while True:
            links = {number: await client.link() for number, client in self._clients.items()}
            if len({link.worker.crew for link in links.values()}) == 1:
                return {LABEL_PARTY: one_channel(links)}
            if time.monotonic() > until:
                raise PeerMissing(f"the workers of the label party were not all restarted within {self._wait:g} s")
            time.sleep(_BETWEEN_LOOKS)
