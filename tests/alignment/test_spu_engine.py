"""The engine `spu`: with spu itself where TPSL_SPU_PYTHON names an interpreter that has it, else with a stand-in.

The stand-in takes the place of the interpreter. It says its keys in the clear, but talks and ends as spu does, so that
everything around spu is the real thing.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.ports import free_port

from tpsl.alignment import spu_process
from tpsl.alignment.errors import AlignmentError
from tpsl.alignment.key_table import KeyTable
from tpsl.alignment.roles import AlignmentResult, align_as_feature, align_as_label, align_together
from tpsl.alignment.terms import TUNNEL, AlignmentTerms
from tpsl.alignment.tunnel import Tunnel, started
from tpsl.files import DiskFull
from tpsl.training.local import Local, LocalError
from tpsl.training.observer import UNWATCHED, Watching
from tpsl.transport.certificates import create_authority, issue
from tpsl.transport.channel import JobStopped, PeerMissing, Refused, run_alone
from tpsl.transport.checks import BadMessage
from tpsl.transport.in_process import pair
from tpsl.transport.messages import TensorMessage

LABEL, FEATURE = "label", "party0"
SPU = os.environ.get("TPSL_SPU_PYTHON")
needs_spu = pytest.mark.skipif(SPU is None, reason="TPSL_SPU_PYTHON names no interpreter with spu")

STAND_IN = r"""
import csv, os, socket, sys
if sys.argv[-1] == "--version":
    print("stand-in 1")
    sys.exit()
TROUBLE
door = socket.socket(socket.AF_UNIX)
door.bind("own")
door.listen(1)
mine = socket.socket(socket.AF_UNIX)
mine.connect("peer")
theirs = door.accept()[0]
rows = list(csv.DictReader(open("keys.csv")))
mine.sendall("".join([f"{len(rows)}\n", *(row["key"] + "\n" for row in rows)]).encode())
lines = theirs.makefile()
received = {lines.readline().strip() for _ in range(int(lines.readline()))}
with open("found.csv", "w") as found:
    print("key,place", file=found)
    for row in rows:
        if row["key"] in received or LIE:
            print(row["key"], row["place"], sep=",", file=found)
"""

RECORDS: dict[str, list[dict[str, str]]] = {
    LABEL: [{"email": "a", "phone": "1"}, {"email": "b"}, {"phone": "3"}, {"email": "d", "phone": "5"}, {"email": "y"}],
    FEATURE: [{"phone": "5"}, {"email": "b", "phone": "9"}, {"phone": "3"}, {"email": "a"}, {"email": "d"}],
}
PAIRS = [(0, 3), (1, 1), (2, 2), (3, 4)]
"""Rows of the label party and of the feature party that are the same records."""


@pytest.fixture
def stand_in(tmp_path: Path) -> Callable[..., Path]:
    def make(name: str = "python", *, trouble: str = "", lie: str = "False") -> Path:
        program, shell = tmp_path / f"{name}.py", tmp_path / name
        program.write_text(STAND_IN.replace("TROUBLE", trouble).replace("LIE", lie))
        shell.write_text(f'#!/bin/sh\nexec {sys.executable} {program} "$@"\n')
        shell.chmod(0o700)
        return shell

    return make


Found = dict[str, AlignmentResult | BaseException]


def aligned(
    path: Path,
    terms: AlignmentTerms,
    tables: Mapping[str, KeyTable],
    locals_: Mapping[str, Any],
    watching: Watching = UNWATCHED,
) -> Found:
    """Be both parties, in threads, over loopback; return what each has found, or why it has not."""
    address = f"127.0.0.1:{free_port()}"
    files = {name: Local.model_validate({"wait": 20.0, **own}) for name, own in locals_.items()}

    def be(party: str) -> AlignmentResult:
        common = {"folder": path / party, "insecure_loopback": files[party].certificates is None}
        if party == LABEL:
            local = files[party].overridden(listen=address)
            return align_as_label(terms, tables[party], local, watching=watching, **common)
        return align_as_feature(terms, party, tables[party], files[party].overridden(connect=address), **common)

    with ThreadPoolExecutor(2) as pool:
        futures = {party: pool.submit(be, party) for party in (LABEL, FEATURE)}
        return {party: future.exception() or future.result() for party, future in futures.items()}


@pytest.fixture
def terms(make_terms: Any) -> AlignmentTerms:
    made: AlignmentTerms = make_terms(keys=("email", "phone"), mode="both", engine="spu")
    return made


@pytest.fixture
def tables(make_table: Any) -> dict[str, KeyTable]:
    return {party: make_table(records) for party, records in RECORDS.items()}


def pairs(found: Found) -> list[tuple[int, int]]:
    results = {party: each for party, each in found.items() if isinstance(each, AlignmentResult)}
    assert len(results) == 2, found
    label, feature = (results[party].alignment for party in (LABEL, FEATURE))
    assert label.digest == feature.digest and label.ids().equals(feature.ids())
    assert label.matched == feature.matched == len(label)
    return sorted(zip(label.rows.tolist(), feature.rows.tolist(), strict=True))


def test_both_parties_find_the_common_records_by_the_first_key_that_both_have(
    tmp_path: Path, terms: AlignmentTerms, tables: Any, stand_in: Any
) -> None:
    local = {"spu_python": stand_in()}
    found = aligned(tmp_path, terms, tables, {LABEL: local, FEATURE: local})
    assert pairs(found) == PAIRS
    assert not [*tmp_path.rglob("keys.csv")], "what was needed on the way is gone"
    assert found[LABEL].bytes_sent == found[FEATURE].bytes_received > 0


def test_records_keep_the_order_of_the_feature_party_where_the_terms_want_it(
    tmp_path: Path, make_terms: Any, tables: Any, stand_in: Any
) -> None:
    timed = make_terms(keys=("email", "phone"), mode="both", engine="spu", order="time")
    local = {"spu_python": stand_in()}
    found = aligned(tmp_path, timed, tables, {LABEL: local, FEATURE: local})
    assert pairs(found) == PAIRS
    assert found[FEATURE].alignment.rows.tolist() == [1, 2, 3, 4]


class Trouble:
    """An error of the label party when it is told how many records were found to be common."""

    def __init__(self, error: Exception) -> None:
        self.error: Exception | None = error

    def notice(self, sentence: str) -> None:
        error, said = self.error, sentence.endswith("has 4 records to align")
        if error is not None and said:
            self.error = None
            raise error


def test_what_spu_has_found_is_kept_for_a_process_that_takes_the_alignment_up(
    tmp_path: Path, terms: AlignmentTerms, tables: Any, stand_in: Any
) -> None:
    locals_ = {party: {"spu_python": stand_in()} for party in RECORDS}
    found = aligned(tmp_path, terms, tables, locals_, Watching(notice=Trouble(ValueError("a bug")).notice))
    assert str(found[LABEL]) == "a bug" and isinstance(found[FEATURE], JobStopped)
    spent = {party: {"spu_python": stand_in("spent", trouble="sys.exit(3)")} for party in RECORDS}
    assert pairs(aligned(tmp_path, terms, tables, spent)) == PAIRS, "spu is not asked again"


def test_a_party_whose_disk_is_full_ends_and_is_waited_for(
    tmp_path: Path, terms: AlignmentTerms, tables: Any, stand_in: Any
) -> None:
    locals_ = {party: {"spu_python": stand_in(), "wait": 5.0} for party in RECORDS}
    found = aligned(tmp_path, terms, tables, locals_, Watching(notice=Trouble(DiskFull(tmp_path)).notice))
    assert isinstance(found[LABEL], DiskFull) and isinstance(found[FEATURE], PeerMissing)
    assert pairs(aligned(tmp_path, terms, tables, locals_)) == PAIRS


def test_a_program_that_fails_stops_both_parties(
    tmp_path: Path, terms: AlignmentTerms, tables: Any, stand_in: Any
) -> None:
    for name, trouble in {
        "at once": "sys.exit(3)",
        "later": "import atexit; atexit.register(lambda: os._exit(3))",
    }.items():
        broken, path = {"spu_python": stand_in("broken", trouble=trouble)}, tmp_path / name
        found = aligned(path, terms, tables, {LABEL: {"spu_python": stand_in()}, FEATURE: broken})
        assert isinstance(found[FEATURE], AlignmentError) and "has failed (status 3)" in str(found[FEATURE])
        assert isinstance(found[LABEL], JobStopped)
        again = aligned(path, terms, tables, {LABEL: {"spu_python": stand_in(), "wait": 0.1}, FEATURE: broken})
        assert all("remove it at both parties" in str(each) for each in again.values()), "one list, one answer"


def test_a_party_that_calls_other_records_common_is_noticed(
    tmp_path: Path, terms: AlignmentTerms, tables: Any, stand_in: Any
) -> None:
    liar = stand_in("liar", lie="row['place'] == '0'")
    found = aligned(tmp_path, terms, tables, {LABEL: {"spu_python": stand_in()}, FEATURE: {"spu_python": liar}})
    assert isinstance(found[LABEL], BadMessage) and "are not those that spu has found" in str(found[LABEL])


def test_the_random_key_is_never_common(tmp_path: Path, terms: AlignmentTerms, tables: Any, stand_in: Any) -> None:
    liar = stand_in("liar", lie="True")
    found = aligned(tmp_path, terms, tables, {LABEL: {"spu_python": stand_in()}, FEATURE: {"spu_python": liar}})
    assert "has found 6 records that are not all different ones of 5" in str(found[FEATURE])


def test_parties_without_a_common_record_are_told(
    tmp_path: Path, make_terms: Any, make_table: Any, stand_in: Any
) -> None:
    local = {"spu_python": stand_in()}
    strangers = {LABEL: make_table([{"id": "1"}]), FEATURE: make_table([{"id": "2"}])}
    found = aligned(tmp_path, make_terms(mode="both", engine="spu"), strangers, {LABEL: local, FEATURE: local})
    assert {str(each) for each in found.values()} == {"the parties have no record in common"}


def test_parties_need_the_same_version(tmp_path: Path, terms: AlignmentTerms, tables: Any, stand_in: Any) -> None:
    other = stand_in("other")
    program = tmp_path / "other.py"
    program.write_text(program.read_text().replace("stand-in 1", "stand-in 2"))
    found = aligned(tmp_path, terms, tables, {LABEL: {"spu_python": stand_in()}, FEATURE: {"spu_python": other}})
    assert any("take the same version" in str(each) for each in found.values())


def test_what_the_engine_cannot_do_is_one_sentence(
    tmp_path: Path, terms: AlignmentTerms, tables: Any, make_terms: Any
) -> None:
    for parties, mode in ((1, "label-only"), (1, "size"), (2, "both")):
        with pytest.raises(AlignmentError, match="needs the engine ecdh"):
            make_terms(parties, mode=mode, engine="spu")
    with pytest.raises(AlignmentError, match="processes of their own"):
        align_together(terms, tables, {name: tmp_path / name for name in tables})
    for local, sentence in (
        ({}, "`spu_python` in the local file"),
        ({"spu_python": tmp_path / "absent"}, "absent cannot run spu"),
        (
            {"spu_python": Path(sys.executable)},
            "cannot run spu \\((ModuleNotFoundError|OSError: the kernel has no Landlock)",
        ),
    ):
        file = Local.model_validate({**local, "listen": "127.0.0.1:0"})
        with pytest.raises(LocalError, match=sentence):
            align_as_label(terms, tables[LABEL], file, tmp_path / "x", insecure_loopback=True)


@pytest.mark.parametrize(("step", "part", "width"), [(1, 0, 1), (0, 2, 1), (0, 0, 2)])
def test_bytes_that_no_program_has_sent_are_refused(
    tmp_path: Path, stand_in: Any, step: int, part: int, width: int
) -> None:
    here, there = pair((LABEL, FEATURE), "uint8")
    run_alone(there.send(TensorMessage(TUNNEL, step, part, torch.zeros((3, width), dtype=torch.uint8))))
    with started([str(stand_in())], tmp_path, 0) as program, pytest.raises(BadMessage, match="third connection"):
        run_alone(Tunnel(here, UNWATCHED.observer, 0, at_once=100, in_all=100).carry(program))
    assert program.process.returncode != 0


def test_a_flood_is_refused(tmp_path: Path, stand_in: Any) -> None:
    here, there = pair((LABEL, FEATURE), "uint8")
    for _ in range(2):
        run_alone(there.send(TensorMessage(TUNNEL, 0, 0, torch.zeros((51, 1), dtype=torch.uint8))))
    with started([str(stand_in())], tmp_path, 0) as program, pytest.raises(BadMessage, match="more than the 100 bytes"):
        run_alone(Tunnel(here, UNWATCHED.observer, 0, at_once=100, in_all=100).carry(program))


CONFINED = """
import os, socket, sys
sys.path.insert(0, SOURCE)
import spu_process
spu_process.confine(os.getcwd())
def tried(what):
    try:
        what()
        print("done")
    except OSError as error:
        print(type(error).__name__)
tried(lambda: open("mine", "w"))
tried(lambda: os.listdir("/usr"))
tried(lambda: open(SECRET))
tried(lambda: open(SECRET, "w"))
tried(lambda: os.listdir(f"/proc/{os.getppid()}/fd"))
tried(lambda: socket.create_connection(("127.0.0.1", 9)))
"""


def test_the_process_of_spu_reaches_its_folder_only(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("label 1")
    work = tmp_path / "work"
    work.mkdir()
    source = str(Path(spu_process.__file__).parent)
    program = CONFINED.replace("SOURCE", repr(source)).replace("SECRET", repr(str(tmp_path / "secret")))
    said = subprocess.run([sys.executable, "-I", "-c", program], cwd=work, capture_output=True, text=True)
    if "the kernel has no Landlock" in said.stderr:
        pytest.skip("the kernel has no Landlock")
    can_refuse_tcp = tuple(map(int, platform.release().split(".")[:2])) >= (6, 7)
    connecting = "PermissionError" if can_refuse_tcp else "ConnectionRefusedError"
    assert said.stdout.split() == ["done", "done", *["PermissionError"] * 3, connecting], said.stderr
    assert (tmp_path / "secret").read_text() == "label 1"


@needs_spu
def test_spu_itself_over_mutual_tls(tmp_path: Path, make_terms: Any, make_table: Any, tables: Any) -> None:
    create_authority(tmp_path / "authority")
    locals_ = {party: {"certificates": tmp_path / "certs" / party, "spu_python": Path(str(SPU))} for party in RECORDS}
    for party in RECORDS:
        issue(tmp_path / "authority", tmp_path / "certs" / party, party, label=party == LABEL)
    found = aligned(tmp_path, make_terms(keys=("email", "phone"), mode="both", engine="spu"), tables, locals_)
    assert pairs(found) == PAIRS


def test_a_peer_without_certificate_is_refused(
    tmp_path: Path, terms: AlignmentTerms, tables: Any, stand_in: Any
) -> None:
    create_authority(tmp_path / "authority")
    issue(tmp_path / "authority", tmp_path / "certs", LABEL, label=True)
    local = {"spu_python": stand_in(), "wait": 2.0}
    found = aligned(tmp_path, terms, tables, {LABEL: {**local, "certificates": tmp_path / "certs"}, FEATURE: local})
    assert all(isinstance(each, PeerMissing | Refused) for each in found.values())
    assert not [*tmp_path.rglob("keys.csv")], "nothing was begun"
