"""The local file of one side: paths, errors, options over it, and the party's own data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tpsl.run.job import Job, make_job
from tpsl.run.local import (
    Local,
    LocalError,
    connect_address,
    load_local,
    own_data,
)
from tpsl.workers import ALONE, Workers


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    content = (
        "listen: 0.0.0.0:7443\ncertificates: certs/label\nout: ../run\nvault: /abs/vault\ndata: d.csv\nthreads: 2\n"
    )
    write(tmp_path / "here" / "label.yaml", content)
    monkeypatch.chdir(tmp_path)
    local = load_local(Path("here/label.yaml"))
    assert local.certificates == tmp_path / "here" / "certs" / "label"
    assert local.out is not None and local.out.resolve() == tmp_path / "run"
    assert (local.vault, local.data) == (Path("/abs/vault"), tmp_path / "here" / "d.csv")
    assert (local.listen, local.threads) == ("0.0.0.0:7443", 2)


def test_an_empty_file_has_the_defaults(tmp_path: Path) -> None:
    local = load_local(write(tmp_path / "local.yaml", ""))
    assert local == Local()
    assert (local.device, local.wait, local.silence, local.metrics, local.out) == ("cpu", 3600, 15, None, None)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("lisen: 0.0.0.0:1", "local.yaml: lisen: there is no such key; `tpsl help keys` lists them, got '0.0.0.0:1'"),
        ("listen: 7443", "local.yaml: listen: Input should be a valid string, got 7443"),
        ("listen: localhost", "local.yaml: listen: an address is HOST:PORT, as in 127.0.0.1:7443 or [::1]:7443, got"),
        ("connect: ':7443'", "local.yaml: connect: an address is HOST:PORT"),
        ("connect: 'host:'", "local.yaml: connect: an address is HOST:PORT"),
        ("connect: 'host:7443,'", "local.yaml: connect: an address is HOST:PORT"),
        ("connect: 'host:7443, host:7444'", "local.yaml: connect: an address is HOST:PORT"),
        ("connect: host:65536", "local.yaml: connect: an address is HOST:PORT"),
        ("connect: host:0", "local.yaml: connect: nobody can be reached at port 0, got 'host:0'"),
        ("connect: '::1:7443'", "local.yaml: connect: an address is HOST:PORT, as in 127.0.0.1:7443 or [::1]:7443"),
        ("connect: '[::1:7443'", "local.yaml: connect: an address is HOST:PORT"),
        ("connect: https://label:7443", "local.yaml: connect: an address is HOST:PORT"),
        ("connect: label:٧٤", "local.yaml: connect: an address is HOST:PORT"),
        ("threads: 0", "local.yaml: threads: Input should be greater than or equal to 1, got 0"),
        ("threads: true", "local.yaml: threads: Input should be a valid integer, got True"),
        ("threads: '2'", "local.yaml: threads: Input should be a valid integer, got '2'"),
        ("device: tpu", "local.yaml: device: Input should be 'cpu' or 'cuda', got 'tpu'"),
        ("silence: 0", "local.yaml: silence: Input should be greater than 0, got 0"),
        ("silence: .nan", "local.yaml: silence: Input should be a finite number, got nan"),
        ("wait: .inf", "local.yaml: wait: Input should be a finite number, got inf"),
        ("wait: -1", "local.yaml: wait: Input should be greater than or equal to 0, got -1"),
        ("metrics: localhost", "local.yaml: metrics: an address is HOST:PORT"),
        ("metrics: 127.0.0.1:65536", "local.yaml: metrics: an address is HOST:PORT"),
        ("out: [1]", "local.yaml: out: "),
        ("out: 7", "local.yaml: out: "),
        ("1: 2", "local.yaml: 1: "),
        ("- listen", "local.yaml: a local file is a mapping with keys such as listen, connect"),
        ("a: [", "local.yaml: is not YAML ("),
        ("a: \x00", "local.yaml: is not YAML ("),
    ],
)
def test_errors_are_one_sentence_with_file_and_key(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(LocalError) as failure:
        load_local(write(tmp_path / "local.yaml", text))
    assert str(failure.value).startswith(f"{tmp_path}/{sentence}")
    assert "\n" not in str(failure.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r"no\.yaml: cannot be read \(No such file or directory\)"):
        load_local(tmp_path / "no.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"out: \xe9")
    with pytest.raises(LocalError, match=r"latin\.yaml: is not YAML"):
        load_local(tmp_path / "latin.yaml")


@pytest.mark.parametrize("address", ["127.0.0.1:7443", "[::1]:7443", "label.example.org:1", "[::]:65535"])
def test_addresses(address: str) -> None:
    assert Local(connect=address).connect == address
    assert Local(listen="[::1]:0").listen == "[::1]:0"


def test_options_override_the_file_and_are_checked_too() -> None:
    local = Local(silence=5.0, out=Path("run"), connect="a:1")
    changed = local.overridden(connect="b:2", out=None, threads=3, certificates=Path("certs/a"), silence=None)
    assert changed == Local(silence=5.0, out=Path("run"), connect="b:2", threads=3, certificates=Path("certs/a"))
    assert local.overridden() == local
    with pytest.raises(LocalError, match="options: silence: Input should be greater than 0, got -1"):
        local.overridden(silence=-1.0)
    with pytest.raises(LocalError, match="options: listen: an address is HOST:PORT"):
        local.overridden(listen="here")


def table_job() -> Job:
    features = [{"path": f"/job/{party}.csv", "party": party, "numeric": ["x"]} for party in ("airport", "bank")]
    data = {"source": "table", "features": features, "label": {"path": "/job/label.csv", "label": "late"}}
    return make_job({"data": data}, {}, "test")


def paths(job: Job) -> list[str]:
    data: Any = job.data
    return [str(file.path) for file in (*data.features, data.label)]


@pytest.mark.parametrize(
    ("party", "expected"),
    [
        ("airport", ["/my/file.csv", "/job/bank.csv", "/job/label.csv"]),
        ("bank", ["/job/airport.csv", "/my/file.csv", "/job/label.csv"]),
        ("label", ["/job/airport.csv", "/job/bank.csv", "/my/file.csv"]),
    ],
)
def test_only_the_partys_own_file_moves(party: str, expected: list[str]) -> None:
    job = table_job()
    moved = own_data(job, party, Path("/my/file.csv"))
    assert paths(moved) == expected
    assert paths(job) == ["/job/airport.csv", "/job/bank.csv", "/job/label.csv"]
    back = own_data(moved, party, Path("/job") / f"{party}.csv")
    assert back == job, "nothing but the path differs"
    assert Job.model_validate(yaml.safe_load(moved.to_yaml())) == moved


@pytest.mark.parametrize("source", ["criteo", "avazu"])
def test_a_click_log_is_each_partys_own_copy(source: str) -> None:
    job = make_job({"data": {"source": source, "path": "/job/log"}}, {}, "test")
    for party in ("feature", "label"):
        data: Any = own_data(job, party, Path("/my/log")).data
        assert (data.source, data.path) == (source, Path("/my/log"))


def test_without_a_path_the_job_stays() -> None:
    for job in (table_job(), Job()):
        assert own_data(job, "label", None) is job


def test_data_without_files_and_unknown_parties_are_errors() -> None:
    for source in ("flights", "synthetic"):
        job = make_job({"data": {"source": source}}, {}, "test")
        with pytest.raises(LocalError, match=rf"'{source}' need no file, but a data path was given: /my/file\.csv"):
            own_data(job, "label", Path("/my/file.csv"))
    with pytest.raises(LocalError, match="no party 'shop' in the job, only label, airport, bank"):
        own_data(table_job(), "shop", Path("/my/file.csv"))


def test_a_local_file_names_its_party_and_its_own_parts(tmp_path: Path) -> None:
    file = tmp_path / "local.yaml"
    file.write_text(
        "party: left\nbottom: networks:convolutions\ninputs: {factory: 'digits:left', arguments: {blur: 1}}\n"
    )
    local = load_local(file)
    parts = local.own_parts()
    assert local.party == "left" and parts.top is None
    assert parts.bottom is not None and parts.bottom.factory == "networks:convolutions"
    assert parts.inputs is not None and parts.inputs.arguments == {"blur": 1}
    assert local.overridden(wait=2.0).own_parts() == parts
    file.write_text("bottom: networks.convolutions\n")
    with pytest.raises(LocalError, match=r"local.yaml: bottom.factory: .*got 'networks.convolutions'"):
        load_local(file)


def test_of_the_workers_on_a_machine_the_first_serves_metrics() -> None:
    local = Local(metrics="0.0.0.0:9101")
    assert local.metrics_address(ALONE) == local.metrics_address(Workers(2, 4, 0)) == ("0.0.0.0", 9101)
    assert local.metrics_address(Workers(1, 4, 1)) is None
    assert Local().metrics_address(ALONE) is None


def test_a_feature_party_finds_the_label_party_at_one_address() -> None:
    assert connect_address(Local(connect="one:7443")) == "one:7443"
    with pytest.raises(ValueError, match="an address is HOST:PORT"):
        Local(connect="one:7443,one:7444")


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("8080", "127.0.0.1:8080"),
        ("'8080'", "127.0.0.1:8080"),
        ("0", "127.0.0.1:0"),
        ("0.0.0.0:8080", "0.0.0.0:8080"),
        ("'[::1]:8080'", "[::1]:8080"),
        ("scores.example:443", "scores.example:443"),
        ("true", None),
        ("70000", None),
        ("-1", None),
        ("8080.5", None),
        ("scores.example", None),
        ("http://scores.example:80", None),
    ],
)
def test_applications_ask_at_a_port_of_this_machine_or_at_an_address(
    given: str, address: str | None, tmp_path: Path
) -> None:
    (tmp_path / "local.yaml").write_text(f"http: {given}\nhttp_token: secret/token\n")
    if address is None:
        with pytest.raises(LocalError, match="http"):
            load_local(tmp_path / "local.yaml")
    else:
        local = load_local(tmp_path / "local.yaml")
        assert (local.http, local.http_token) == (address, tmp_path / "secret" / "token")
