"""`tpsl ui`'s service, by real requests: what it shows, what it refuses, and that it changes nothing."""

from __future__ import annotations

import html
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tpsl.report import watching
from tpsl.report.ledgers import _read_ledger, runs_in
from tpsl.report.live_page import LivePage
from tpsl.report.run_list import spent_on
from tpsl.report.run_reading import read_run, read_view
from tpsl.report.watching import WatchedFolder
from tpsl.run.observer import PROGRESS
from tpsl.run.run_folder import RunError

from .live_service import Service, rows_in, within


@pytest.fixture(scope="module")
def service(runs: Path) -> Iterator[Service]:
    """One for the tests that only read."""
    started = Service(runs)
    yield started
    started.stop()


def test_what_is_shown_is_what_a_report_shows(service: Service, runs: Path) -> None:
    shown = set(service.names())
    for name in ("laplace", "stopped"):
        assert service.view(name) == read_run(runs / name)
    # The runs of an audit lie in a folder of their own.
    assert shown == {path.relative_to(runs).as_posix() for path in runs_in(runs)}
    assert "laplace" in shown and any(name.startswith("audit/") for name in shown)


def test_the_page_runs_its_one_script_and_asks_here_alone(service: Service) -> None:
    status, content, headers = service.ask(service.prefix)
    assert status == 200 and headers["content-type"] == "text/html; charset=utf-8"
    assert headers["content-security-policy"] == "frame-ancestors 'none'"
    assert headers["x-content-type-options"] == "nosniff" and "access-control-allow-origin" not in headers
    policy = html.unescape(content.decode().split('http-equiv="Content-Security-Policy" content="')[1].split('"')[0])
    assert policy.startswith("default-src 'none'; ") and "script-src 'sha256-" in policy
    assert "connect-src 'self'; " in policy and content.count(b"<script") == 1


def test_a_run_has_a_page_of_its_own(service: Service) -> None:
    name = next(name for name in service.names() if name.startswith("audit/"))
    for written in (quote(name), quote(name, safe="")):
        status, content, headers = service.ask(f"{service.prefix}runs/{written}")
        assert status == 200 and headers["content-security-policy"] == "frame-ancestors 'none'"
        assert b"<script" not in content and b"connect-src" not in content
        assert f'href="{service.prefix}">‹ All runs</a>'.encode() in content


def test_names_that_are_not_unicode_are_shown_and_told_apart(serve: Any, copied: Any) -> None:
    run = copied("laplace")
    for name in (b"caf\xe9", b"caf\xe8"):
        shutil.copytree(run, run.parent / os.fsdecode(name))
    service = serve(run.parent)
    assert service.names() == ["caf�", "caf� (2)", "laplace"]
    for name in service.names():
        assert service.ask(f"{service.prefix}runs/{quote(name)}")[0] == 200


def test_only_what_has_changed_is_sent_and_read(serve: Any, copied: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = copied("laplace")
    copied("discrete")
    service = serve(run.parent)
    _, _, headers = service.ask(f"{service.prefix}list")
    status, content, again = service.ask(f"{service.prefix}list", If_None_Match=headers["etag"])
    assert (status, content, again["etag"]) == (304, b"", headers["etag"])
    read: list[str] = []
    real = read_view
    monkeypatch.setattr(
        "tpsl.report.watching.read_view",
        lambda path, party, name, **memory: read.append(name) or real(path, party, name, **memory),
    )
    metrics = run / "label" / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:2]))
    assert within(60, lambda: service.ask(f"{service.prefix}list")[2]["etag"] != headers["etag"])
    assert [len(service.view(name).curves) for name in ("discrete", "laplace")] == [3, 2]
    assert read == ["laplace"]
    # How far a run is changes every second: the list says so, and the run is not read again.
    before = service.ask(f"{service.prefix}list")[2]["etag"]
    (run / "label" / PROGRESS).write_text(
        '{"step": 3, "steps": 9, "samples_per_second": 10.0, "seconds_left": 6.5, "more": 1}'
    )
    assert within(60, lambda: service.ask(f"{service.prefix}list")[2]["etag"] != before)
    assert read == ["laplace"]


def test_a_new_run_shows_within_two_seconds_and_moves(serve: Any, runs: Path, tmp_path: Path) -> None:
    service = serve(tmp_path)
    assert "There are no runs here yet" in service.list()
    shutil.copytree(runs / "stopped", tmp_path / "group" / "run")
    assert within(60, lambda: service.names() == ["group/run"])
    assert "finished" not in service.rows()["group/run"]["State"].split()
    shutil.copy(runs / "discrete" / "result.json", tmp_path / "group" / "run" / "result.json")
    assert within(60, lambda: service.rows()["group/run"]["State"] == "finished")
    shutil.rmtree(tmp_path / "group")
    assert within(60, lambda: service.names() == [])


def test_a_run_whose_vault_is_being_written_is_shown_without_waiting(serve: Any, copied: Any) -> None:
    run = copied("stopped")
    journal = run / "label" / "vault" / "vault.sqlite-journal"
    journal.write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(504))  # as of a writer, or of one that was killed
    service = serve(run.parent)
    shown = service.view("stopped")
    assert shown.ledger is None and shown.ledger_note.startswith("The vault is being written")
    assert shown.promise.epsilon_text == "0.5"
    assert journal.exists()
    (spent,) = spent_on(service.live.watched.snapshot())
    assert spent.notes == [shown.ledger_note] and spent.total.epsilon == 0.5
    assert shown.ledger_note in service.list()
    journal.unlink()
    assert within(60, lambda: service.view("stopped").ledger is not None)


def test_a_link_to_nothing_hides_no_change(copied: Any) -> None:
    run = copied("laplace")
    (run / "label" / "a-link").symlink_to(run / "nowhere")
    (run / "label" / "b-link").symlink_to(run / "label" / "b-link")
    watched = WatchedFolder(run)
    versions = {watched.snapshot().runs[0].version}
    for number, name in enumerate(("attacks.json", "metrics.jsonl", "top.safetensors"), start=1):
        os.utime(run / "label" / name, (number, number))
        watched._last = None
        versions.add(watched.snapshot().runs[0].version)
    assert len(versions) == 4


def test_a_run_that_cannot_be_read_costs_one_sentence_and_no_other_run(serve: Any, copied: Any) -> None:
    good, bad, worse = copied("laplace"), copied("discrete"), copied("stopped")
    (bad / "result.json").write_text("{")
    (worse / "label" / "metrics.jsonl").write_text('{"epoch": 1, "step": []}')
    service = serve(good.parent)
    assert service.names() == ["laplace"]
    assert f"Not shown: {bad / 'result.json'}: is damaged" in service.list()
    assert f"; {worse}" in service.list()


def test_the_page_of_a_feature_party_holds_nothing_of_labels(serve: Any, runs: Path) -> None:
    service = serve(runs, "feature")
    result = service.view("laplace")
    assert result.party == "feature" and result.auc is result.attacks is None and not result.curves
    auc = json.loads((runs / "laplace" / "result.json").read_text())["test_auc"]
    for place in ("", "list", "runs/laplace"):
        status, content, _ = service.ask(service.prefix + place)
        assert status == 200 and b"feature" in content
        assert str(auc).encode() not in content
    assert "Total ε of the records" not in service.list()
    assert all(not {"Test AUC", "Attack AUC"} & row.keys() for row in service.rows().values())


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "0.0.0.0", "localhost:80@evil", "", "::1"]
)
def test_another_name_of_this_machine_is_refused(service: Service, host: str) -> None:
    for path in ("", "list", "runs/laplace"):
        status, content, _ = service.ask(service.prefix + path, Host=host)
        assert status == 403 and b"ledger" not in content


def test_own_names_are_served_also_through_a_tunnel(service: Service) -> None:
    for host in (f"127.0.0.1:{service.port}", f"localhost:{service.port}", "LOCALHOST:9000", "localhost"):
        assert service.ask(f"{service.prefix}list", Host=host)[0] == 200


def test_two_hosts_or_none_are_refused(service: Service) -> None:
    for hosts in (b"", b"Host: localhost\r\nHost: evil.example\r\n"):
        with socket.create_connection(("127.0.0.1", service.port), timeout=10) as connection:
            connection.sendall(b"GET " + service.prefix.encode() + b"list HTTP/1.1\r\n" + hosts + b"\r\n")
            assert connection.makefile("rb").readline().split()[1] == b"403"


def test_other_sites_get_nothing_through_the_readers_browser(service: Service) -> None:
    data = f"{service.prefix}list"
    for site in ("cross-site", "same-site"):  # the second is another port of this machine
        for mode in ("no-cors", "cors", "same-origin", "websocket"):
            assert service.ask(data, Sec_Fetch_Site=site, Sec_Fetch_Mode=mode)[0] == 403
    status, _, headers = service.ask(data, Sec_Fetch_Site="same-origin", Sec_Fetch_Mode="cors", Origin="null")
    assert status == 200 and not any(name.startswith("access-control") for name in headers)
    assert headers["cross-origin-resource-policy"] == "same-origin" and headers["x-frame-options"] == "DENY"
    # A link to the page is not an attack.
    assert service.ask(service.prefix, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_only_get_is_answered(service: Service, method: str) -> None:
    status, _, headers = service.ask(f"{service.prefix}list", method)
    assert (status, headers["allow"]) == (405, "GET")


def test_no_path_leads_out_of_the_page(service: Service, runs: Path) -> None:
    secret = service.prefix.strip("/")
    for path in (
        f"/{secret}/../{secret}/assets/../../page.py",
        f"/{secret}/assets/page.js",
        f"/{secret}/runs/../../etc/passwd",
        f"/{secret}/runs/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        f"/{secret}/runs/laplace/job.yaml",
        f"/{secret}/runs/{quote(str(runs / 'laplace'), safe='')}",
        f"/{secret}/runs/%00",
        f"/{secret}/runs/",
        f"/{secret}/list/",
        f"/{secret}",
        "/etc/passwd",
        "//",
    ):
        assert service.ask(path)[0] == 404, path


def test_without_the_secret_there_is_nothing(service: Service) -> None:
    for path in ("/", "/list", f"/{'x' * 22}/list", f"/{service.prefix[1:-2]}/list"):
        status, content, _ = service.ask(path)
        assert status == 404 and service.prefix.strip("/").encode() not in content
    assert len(service.prefix) == 24  # 128 bits


def test_it_listens_on_this_machine_alone(service: Service) -> None:
    assert service.live.server_address[0] == "127.0.0.1"
    with pytest.raises(ValueError, match=rf"cannot be served on 127\.0\.0\.1:{service.port} \(Address already in use"):
        LivePage(service.live.watched, service.port)


def test_nothing_in_the_folder_changes(serve: Any, copied: Any) -> None:
    run = copied("laplace")

    def state() -> list[tuple[str, int, int]]:
        paths = sorted(run.parent.rglob("*"))
        return [(str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in paths]

    before = state()
    service = serve(run.parent)
    for path in ("", "list", "runs/laplace"):
        assert service.ask(service.prefix + path)[0] == 200
    assert state() == before


def test_folders_that_are_no_business_of_ours_are_left_alone(copied: Any, tmp_path: Path) -> None:
    run = copied("laplace")
    (run.parent / "link").symlink_to(run)
    (run.parent / "loop").symlink_to(run.parent)
    shutil.copytree(run, run.parent / ".hidden" / "run")
    shutil.copytree(run, run.parent / "a/b/c/d/e/f/too-deep")
    assert list(runs_in(run.parent)) == [run]
    assert list(runs_in(run)) == [run]
    with pytest.raises(RunError, match="there is no such folder"):
        WatchedFolder(tmp_path / "absent")


LAYOUTS = {
    "runs of one machine": (["runs/eps-1", "runs/none"], []),
    "a run for each party": (["runs/flights-label", "runs/flights-feature", "runs/one"], ["flights.yaml"]),
    "your own data": (
        ["bank/run", "bank/wider", "shop/run"],
        [
            "job.yaml",
            "bank/job.yaml",
            "bank/wider.yaml",
            "bank/certs/ca.pem",
            "bank/vault/vault.sqlite",
            "shop/job.yaml",
        ],
    ),
    "two people, two terminals": (
        ["airline/run", "airport/run", "try/run"],
        ["try/job.yaml", "try/vault/vault.sqlite", "try/certs/label/ca.pem", "airline/job.yaml", "airport/job.yaml"],
    ),
    "beside its job": (["run"], ["job.yaml", "vault/vault.sqlite"]),
    "tries": (["tries/half", "tries/two"], []),
    "demo": (["runs/demo/paper", "runs/demo/plain", "runs/demo/tpsl"], ["runs/demo/report.html"]),
    "one each day": (
        ["runs/2026-11-16", "runs/2026-11-17"],
        ["job.yaml", "label.yaml", "runs/2026-11-17/hand-over/job.yaml"],
    ),
    "tuned": (["runs/small/runs/0123456789", "runs/small/runs/abcdef", "runs/best"], ["runs/small/best.yaml"]),
}
"""How the pages of the documentation lay out runs, and what else lies there."""


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_of_the_guides_shows_its_runs(copied: Any, tmp_path: Path, name: str) -> None:
    run, place = copied("stopped"), tmp_path / "place"
    expected, others = LAYOUTS[name]
    for folder in expected:
        shutil.copytree(run, place / folder)
    for other in others:
        (place / other).parent.mkdir(parents=True, exist_ok=True)
        (place / other).write_text((run / "job.yaml").read_text() if other.endswith("job.yaml") else "")
    snapshot = WatchedFolder(place).snapshot()
    assert [view.name for view in snapshot.views] == sorted(expected)
    assert snapshot.problems == ()
    for top in {folder.split("/")[0] for folder in expected}:  # as who is in the party's own folder
        inner = [folder.removeprefix(f"{top}/") for folder in sorted(expected) if folder.startswith(f"{top}/")]
        assert [view.name for view in WatchedFolder(place / top).snapshot().views] == (inner or [top])


def test_a_feature_party_finds_the_runs_of_its_own_machine(runs: Path, tmp_path: Path) -> None:
    """Its folder has its own half and no other, whatever its name is in the job."""
    place = tmp_path / "shop"
    for name in ("run", "trees"):
        shutil.copytree(runs / "laplace", place / name, ignore=shutil.ignore_patterns("label", "result.json"))
        shutil.copytree(runs / "laplace" / "feature", place / name / "feature", dirs_exist_ok=True)
    for party in ("feature", "label"):
        snapshot = WatchedFolder(place, party).snapshot()
        assert [view.name for view in snapshot.views] == (["run", "trees"] if party == "feature" else [])
    assert snapshot.problems[0].endswith("a feature party's page is made with --for feature")


def test_a_folder_with_a_job_and_no_run_is_named_as_before(copied: Any, tmp_path: Path) -> None:
    run, place = copied("stopped"), tmp_path / "place"
    (place / "data").mkdir(parents=True)
    shutil.copy(run / "job.yaml", place / "data")
    assert WatchedFolder(place).snapshot().problems[0].startswith(f"{place / 'data'}: has no folder of the label party")


def test_three_hundred_runs_load_in_under_two_seconds(serve: Any, many_runs: Path) -> None:
    service = serve(many_runs)
    # The processor's time, of service and reader: that of the wall is also what else runs on the machine.
    begun, opened = time.process_time(), _read_ledger.cache_info().misses
    status, content, _ = service.ask(service.prefix)
    took = time.process_time() - begun
    assert _read_ledger.cache_info().misses - opened <= 3  # one for each vault, however many runs have released from it
    assert status == 200 and len(rows_in(content.decode())) == 300
    assert took < 2.0, f"{took:.2f} s"
    begun = time.process_time()
    time.sleep(0.35)  # as long as one snapshot is shared
    assert len(service.rows()) == 300
    assert time.process_time() - begun < 1.0
    assert len(content) < 600_000


def test_what_the_page_shows_is_at_most_two_seconds_old() -> None:
    """It asks every second, and is answered from a look that is a third of a second old at most."""
    script = (Path(watching.__file__).parent / "assets" / "runs.js").read_text()
    assert "const EVERY = 1000;" in script and 1 + watching._KEPT < 2
