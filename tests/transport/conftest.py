"""Every transport the conformance tests run over; a new one is one entry in TRANSPORTS."""

import functools
import tempfile
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tpsl.transport.channel import Channel, run_alone
from tpsl.transport.feature_client import FeatureClient
from tpsl.transport.frames import Limits
from tpsl.transport.handshake import Agreement
from tpsl.transport.in_process import pair, run_together
from tpsl.transport.label_server import LabelServer
from tpsl.transport.link import Patience, Terms
from tpsl.transport.linked import linked_pair
from tpsl.transport.messages import WireType

from tpsl.net.certificates import create_authority, issue
from tpsl.net.credentials import Certificates

Role = Callable[[Channel], Coroutine[Any, Any, Any]]
Transport = Callable[[Role, Role, WireType], tuple[Any, Any]]

TOPICS = ("embeddings", "gradients", "estimates", "test embeddings", "head embeddings")
LIMITS = Limits(rows=8192, width=512, topics=TOPICS)


def in_two_threads(label: Coroutine[Any, Any, Any], feature: Coroutine[Any, Any, Any]) -> tuple[Any, Any]:
    """Run two roles whose channels block, each in a thread of its own."""
    with ThreadPoolExecutor(2) as threads:
        ends = [threads.submit(run_alone, role) for role in (label, feature)]
        return ends[0].result(), ends[1].result()


def in_process(label: Role, feature: Role, dtype: WireType) -> tuple[Any, Any]:
    label_end, feature_end = pair(("label", "airport"), dtype)
    label_result, feature_result = run_together(label(label_end), feature(feature_end))
    return label_result, feature_result


def through_links(label: Role, feature: Role, dtype: WireType) -> tuple[Any, Any]:
    label_end, feature_end = linked_pair(("label", "airport"), dtype, LIMITS, lambda frame: None)
    label_result, feature_result = run_together(label(label_end), feature(feature_end))
    return label_result, feature_result


@functools.cache
def certificate_folders() -> tempfile.TemporaryDirectory[str]:
    """Certificate folders of the label party and of two feature parties, made once."""
    made = tempfile.TemporaryDirectory()
    folder = Path(made.name)
    create_authority(folder / "authority")
    issue(folder / "authority", folder / "label", "label", label=True)
    for party in ("airport", "bank"):
        issue(folder / "authority", folder / party, party, label=False)
    return made


def over_grpc(label: Role, feature: Role, dtype: WireType) -> tuple[Any, Any]:
    """Over loopback with mutual TLS."""
    folder = Path(certificate_folders().name)
    server, client = Certificates.load(folder / "label").server(), Certificates.load(folder / "airport").channel()
    agreement = Agreement({"job": "conformance"}, b"ids")
    limits = replace(LIMITS, window=8 << 20)
    terms = Terms(limits, dtype, Patience(5, 20), lambda peer, state: None)

    async def label_role(port: int) -> Any:
        return await label((await listening.gather())["airport"])

    async def feature_role(port: int) -> Any:
        with FeatureClient(f"127.0.0.1:{port}", "airport", agreement, terms, credentials=client) as connecting:
            return await feature((await connecting.gather())["label"])

    with LabelServer("127.0.0.1:0", ["airport"], agreement, terms, credentials=server) as listening:
        return in_two_threads(label_role(listening.port), feature_role(listening.port))


TRANSPORTS: dict[str, Transport] = {
    "in process": in_process,
    "links": through_links,
    "grpc": over_grpc,
}


@pytest.fixture(scope="session")
def certificates() -> Path:
    """A folder with the certificate folders `authority`, `label`, `airport` and `bank`."""
    return Path(certificate_folders().name)


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> Transport:
    """Runs a role of the label party and one of the feature party 'airport' at the two ends of a channel."""
    return TRANSPORTS[request.param]
