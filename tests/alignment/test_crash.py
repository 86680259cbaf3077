"""Crash drill: three parties align over mutual TLS and are killed with SIGKILL again and again.

Kills come before single file operations, and a party that was killed is started again with the same command; what comes
out must be right. TPSL_DRILL_KILLS says how many kills (4 by default).
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_port

from tpsl.alignment.keys import KeyTable
from tpsl.data.aligned import UNKNOWN, Alignment
from tpsl.net.certificates import create_authority, issue
from tpsl.run.local import Local

KILLS = int(os.environ.get("TPSL_DRILL_KILLS", "4"))
LIMIT = 120.0
"""Seconds for what takes a few when nothing is broken."""
LABEL = "label"
LISTS = {LABEL: range(20, 60), "party0": range(0, 50), "party1": [*range(45), *range(90, 95)]}

FORKS = multiprocessing.get_context("forkserver")
pytestmark = pytest.mark.usefixtures("forks")  # so that a kill costs no start of torch

PARTY = r"""
import os, signal, sys, time
from tpsl.alignment import terms as terms_module
from tpsl.alignment.parties import align_as
from tpsl.run.observer import Watching

os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)

def say(*words):
    os.write(2, f"{time.time() % 1000:7.3f} {party} [{os.getpid()}] {' '.join(map(str, words))}\n".encode())

operations = 0

def count(event, arguments):
    global operations
    if event in EVENTS and any(FOLDER in str(argument) for argument in arguments):
        operations += 1
        if operations == deadly:
            say("killed before", event, arguments)
            os.kill(os.getpid(), signal.SIGKILL)

EVENTS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree")
FOLDER = str(folder)
terms_module.POINTS_AT_ONCE = 16
sys.addaudithook(count)
say("starts")
watching = Watching(notice=say, connections=say)
align_as(party, terms, table, local, folder, watching=watching)
say("ends after", operations, "file operations")
operations_done.value = operations
"""


class Party:
    """One party as a process that kills itself when it is told to."""

    def __init__(self, name: str, terms: Any, table: KeyTable, path: Path, **local: Any) -> None:
        self.operations_done = FORKS.Value("q", 0, lock=False)
        self.folder, self.log = path / f"alignment-{name}", path / "log.txt"
        self._scope = {
            "party": name,
            "terms": terms,
            "table": table,
            "folder": self.folder,
            "log": str(self.log),
            "local": Local(certificates=path / "certs" / name, wait=LIMIT, silence=3.0, **local),
            "operations_done": self.operations_done,
        }

    def start(self, deadly: int = 0) -> None:
        self.process = FORKS.Process(target=exec, args=(PARTY, {**self._scope, "deadly": deadly}))
        self.process.start()


class Alignments:
    """The same lists, aligned in a new folder each time."""

    def __init__(self, path: Path, terms: Any, make_table: Any) -> None:
        self._path, self._terms = path, terms
        self._tables = {name: make_table([{"id": str(number)} for number in LISTS[name]]) for name in LISTS}

    def align(self, name: str, deadly: Mapping[str, list[int]]) -> dict[str, Party]:
        """Align, killing each party before the operations with these numbers, counted from each of its starts."""
        path = self._path / name
        create_authority(path / "certs" / "authority")
        for party in LISTS:
            issue(path / "certs" / "authority", path / "certs" / party, party)
        address, left = f"127.0.0.1:{free_port()}", {party: [*deadly.get(party, [])] for party in LISTS}
        parties = {}
        for party, table in self._tables.items():
            where = {"listen" if party == LABEL else "connect": address}
            parties[party] = Party(party, self._terms, table, path, **where)
        for party, each in parties.items():
            each.start(left[party].pop(0) if left[party] else 0)
        begun = time.monotonic()
        try:
            while any(each.process.exitcode != 0 for each in parties.values()):
                for party, each in parties.items():
                    ended = each.process.exitcode  # asked once: a new process may be killed at once, too
                    log = each.log.read_text() if each.log.exists() else ""
                    assert ended in (None, 0, -signal.SIGKILL), log
                    if ended == -signal.SIGKILL:
                        each.start(left[party].pop(0) if left[party] else 0)
                    assert time.monotonic() - begun < LIMIT, log
                time.sleep(0.01)
        finally:
            for each in parties.values():
                each.process.kill()
                each.process.join()
        self._check(parties)
        return parties

    def _check(self, parties: Mapping[str, Party]) -> None:
        found = {name: Alignment.load(party.folder) for name, party in parties.items()}
        assert len({each.digest for each in found.values()}) == 1
        common = {*range(45)}
        records = {
            name: [None if row == UNKNOWN else LISTS[name][row] for row in each.rows] for name, each in found.items()
        }
        assert set(records["party0"]) == common and len(records["party0"]) == len(common)
        assert records["party1"] == records["party0"]
        known = set(LISTS[LABEL]) & common
        assert records[LABEL] == [each if each in known else None for each in records["party0"]]
        for party in parties.values():
            assert {each.name for each in party.folder.iterdir()} == {".lock", "alignment.json", "rows.npy"}


def test_killed_parties_go_on(tmp_path: Path, make_terms: Any, make_table: Any) -> None:
    alignments = Alignments(tmp_path, make_terms(2), make_table)
    undisturbed = alignments.align("undisturbed", {})
    operations = {name: party.operations_done.value for name, party in undisturbed.items()}
    assert min(operations.values()) > 20
    draw = random.Random(5)
    for number in range(0, KILLS, 4):
        deadly: dict[str, list[int]] = {name: [] for name in LISTS}
        for _ in range(min(4, KILLS - number)):
            name = draw.choice([*LISTS])
            deadly[name].append(draw.randint(1, operations[name]))
        alignments.align(f"kills from {number}", deadly)
