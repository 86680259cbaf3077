from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from tpsl.alignment.parties import align_as
from tpsl.net.failures import PeerMissing, Refused
from tpsl.run.local import Local, LocalError
from tpsl.run.observer import Fact, Observer, Watching


@pytest.mark.parametrize("parties", [1, 2, 3, 4])
def test_every_list_is_blinded_by_everyone_in_the_rounds_that_there_are(make_terms: Any, parties: int) -> None:
    terms = make_terms(parties)
    for owner in terms.circle:
        blinders = [
            party for round_ in range(terms.rounds) for party in terms.circle if terms.owner(party, round_) == owner
        ]
        assert blinders[0] == owner
        assert sorted(blinders) == sorted(terms.circle)


class Listening(Observer):
    """Knows where the label party listens."""

    def __init__(self) -> None:
        self.address: Queue[str] = Queue()

    def event(self, name: str, **facts: Fact) -> None:
        self.address.put(str(facts["address"]))


def test_other_terms_are_refused_at_the_handshake(tmp_path: Path, make_terms: Any, make_table: Any) -> None:
    table, observer = make_table([{"id": "1"}]), Listening()

    def label() -> None:
        local = Local(listen="127.0.0.1:0", wait=1.0)
        watching = Watching(observer)
        align_as("label", make_terms(), table, local, tmp_path / "label", watching=watching, insecure_loopback=True)

    with ThreadPoolExecutor(1) as threads:
        ended = threads.submit(label)
        local, other = Local(connect=observer.address.get(timeout=60), wait=5.0), make_terms(mode="both")
        sentence = "alignment.mode differs: the label party has '\"label-only\"', feature party 'party0' has '\"both\"'"
        with pytest.raises(Refused, match=sentence):
            align_as("party0", other, table, local, tmp_path / "party0", insecure_loopback=True)
        with pytest.raises(PeerMissing, match="feature party 'party0' did not come within 1 s"):
            ended.result()


def test_parties_need_addresses_and_certificates(tmp_path: Path, make_terms: Any, make_table: Any) -> None:
    terms, table = make_terms(), make_table([{"id": "1"}])
    with pytest.raises(LocalError, match="needs an address to listen at"):
        align_as("label", terms, table, Local(), tmp_path, insecure_loopback=True)
    with pytest.raises(LocalError, match="needs the label party's address"):
        align_as("party0", terms, table, Local(), tmp_path, insecure_loopback=True)
    with pytest.raises(LocalError, match="certificate folder"):
        align_as("label", terms, table, Local(listen="127.0.0.1:0"), tmp_path)
