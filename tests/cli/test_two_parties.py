"""Two organisations as users run them: `tpsl certs`, `tpsl label serve`, `tpsl feature join`, each a process."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from tpsl.vault import Vault

SCRIPT = Path(sys.executable).with_name("tpsl")
LIMIT = 120.0
SMALL = {
    "privacy": {"mechanism": "discrete", "epsilon": 1.0},
    "model": {"embedding_dim": 4, "bottom": [16, 8], "top": [8]},
    "training": {"batch_size": 256, "epochs": 2, "checkpoint_every": 5},
}
FLIGHTS = {"data": {"source": "flights", "rows": 4000}, **SMALL}


class Program:
    """One running command; its log is JSON lines on stderr."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        command = [str(SCRIPT), *map(str, arguments), "--log-json", "--json", "--threads", "1"]
        self.log = folder / f"log-{time.monotonic_ns()}.txt"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True)

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = [line for line in self.log.read_text().splitlines() if line.startswith("{") and line.endswith("}")]
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def wait_for(self, name: str, **facts: str) -> dict[str, Any]:
        """Wait for an event whose facts match these patterns."""
        until = time.monotonic() + LIMIT
        while time.monotonic() < until:
            for event in self.events(name):
                if all(re.search(pattern, str(event.get(fact))) for fact, pattern in facts.items()):
                    return event
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise AssertionError(f"no event {name} {facts} in:\n{self.log.read_text()}")

    def result(self) -> dict[str, Any]:
        stdout, _ = self.process.communicate(timeout=LIMIT)
        assert self.process.returncode == 0, self.log.read_text()
        content: dict[str, Any] = json.loads(stdout)
        return content

    def error(self) -> str:
        stdout, _ = self.process.communicate(timeout=LIMIT)
        assert self.process.returncode == 1, stdout + self.log.read_text()
        assert stdout == ""
        assert "Traceback" not in self.log.read_text()
        return self.log.read_text().splitlines()[-1]


class Office:
    """A folder with a job, certificates, and the programs that run in it."""

    def __init__(self, folder: Path, job: dict[str, Any]) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        (folder / "job.yaml").write_text(yaml.safe_dump(job))
        self.programs: list[Program] = []
        self.port = "0"

    def tpsl(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(SCRIPT), *map(str, arguments)], cwd=self.folder, capture_output=True, text=True, timeout=LIMIT
        )

    def serve(self, *options: object, job: str = "job.yaml", secure: bool = True) -> Program:
        how = ["--certs", "certs/label"] if secure else ["--insecure-loopback"]
        program = Program(self.folder, "label", "serve", job, "--listen", f"127.0.0.1:{self.port}", *how, *options)
        self.programs.append(program)
        return program

    def listening(self, program: Program) -> Program:
        self.port = str(program.wait_for("listening")["address"]).rpartition(":")[2]
        return program

    def join(self, party: str, *options: object, job: str = "job.yaml", secure: bool = True) -> Program:
        how = ["--certs", f"certs/{party}"] if secure else ["--insecure-loopback", "--party", party]
        program = Program(self.folder, "feature", "join", job, "--connect", f"127.0.0.1:{self.port}", *how, *options)
        self.programs.append(program)
        return program

    def weights(self, run: str) -> dict[str, bytes]:
        root = self.folder / run
        return {str(file.relative_to(root)): file.read_bytes() for file in sorted(root.glob("*/*.safetensors"))}


@pytest.fixture
def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Office]:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    place = Office(tmp_path / "office", FLIGHTS)
    yield place
    for program in place.programs:
        program.process.kill()
        program.process.wait()


def test_two_programs_train_the_weights_of_one(office: Office) -> None:
    made = office.tpsl("certs", "job.yaml")
    assert made.returncode == 0, made.stderr
    label = office.listening(office.serve("--metrics-port", "0"))
    feature = office.join("feature", "--metrics-port", "0", "--record-transcript")
    labels, features = label.result(), feature.result()
    assert labels["steps"] == features["steps"] == 26
    assert "test_auc" in labels
    assert not any("auc" in key or "loss" in key or "epsilon" in key for key in features)
    # One process with the same vault: the same noisy labels, so the same weights, bit for bit.
    one = office.tpsl(
        "train", "job.yaml", "--out", "one", "--vault", "runs/job-label/label/vault", "--record-transcript"
    )
    assert one.returncode == 0, one.stderr
    assert {**office.weights("runs/job-label"), **office.weights("runs/job-feature")} == office.weights("one")
    for name in ("embeddings.f32", "gradients.f32", "rows.i64"):
        crossed = [office.folder / run / "feature" / "transcript" / name for run in ("one", "runs/job-feature")]
        assert crossed[0].read_bytes() == crossed[1].read_bytes()
    # Each side's folder holds its own party's and nothing of the other's.
    assert not (office.folder / "runs" / "job-label" / "feature").exists()
    assert not (office.folder / "runs" / "job-feature" / "label").exists()
    log = feature.log.read_text()
    assert "auc" not in log
    assert "loss" not in log
    # Both again: finished, nothing to do.
    assert office.serve().result()["test_auc"] == labels["test_auc"]
    assert office.join("feature").result() == features


def test_two_feature_parties_and_a_label_party_with_features(office: Office) -> None:
    assert office.tpsl("data", "flights", "--out", "data", "--rows", "3000", "--layout", "natural").returncode == 0
    content = yaml.safe_load((office.folder / "data" / "job.yaml").read_text()) | SMALL
    assert content["data"]["label"]["categorical"], "the airline has features of its own"
    (airport,) = content["data"]["features"]
    fields = airport["categorical"], airport["numeric"]
    content["data"]["features"] = [
        {**airport, "party": "airport", "numeric": []},
        {**airport, "party": "weather", "categorical": [], "numeric": fields[1]},
    ]
    (office.folder / "data" / "job.yaml").write_text(yaml.safe_dump(content))
    # Each party has a copy of the job in a folder of its own, with its own file and no other.
    own = {"label": content["data"]["label"]["path"], "airport": airport["path"], "weather": airport["path"]}
    for party, file in own.items():
        (office.folder / party).mkdir()
        shutil.copy(office.folder / "data" / "job.yaml", office.folder / party)
        shutil.copy(office.folder / "data" / file, office.folder / party)
    assert office.tpsl("certs", "data/job.yaml").returncode == 0
    label = office.listening(office.serve(job="label/job.yaml"))
    parties = [office.join(name, job=f"{name}/job.yaml") for name in ("weather", "airport")]
    result = label.result()
    for party in parties:
        party.result()
    assert result["train_records"] == 2400
    one = office.tpsl("train", "data/job.yaml", "--out", "one", "--vault", "runs/job-label/label/vault")
    assert one.returncode == 0, one.stderr
    apart = [office.weights(f"runs/job-{party}") for party in ("label", "airport", "weather")]
    assert {**apart[0], **apart[1], **apart[2]} == office.weights("one")
    assert set(office.weights("one")) >= {"label/bottom.safetensors", "weather/bottom.safetensors"}


def test_another_job_is_refused_with_the_field_that_differs(office: Office) -> None:
    office.tpsl("certs", "job.yaml")
    other = {**FLIGHTS, "training": {**FLIGHTS["training"], "epochs": 3}}
    (office.folder / "other.yaml").write_text(yaml.safe_dump(other))
    label = office.listening(office.serve())
    sentence = office.join("feature", job="other.yaml").error()
    assert "job.training.epochs differs: the label party has '2', feature party 'feature' has '3'" in sentence
    label.wait_for("refused", peer="feature", reason="job.training.epochs differs")
    # No labels were released for a peer that does not agree.
    assert not (office.folder / "runs" / "job-label" / "label" / "vault").exists()
    # The label party is still there for the right one.
    office.join("feature").result()
    label.result()
    with Vault.open(office.folder / "runs" / "job-label" / "label" / "vault") as vault:
        assert [entry.kind for entry in vault.ledger().entries].count("released") == 1


def test_other_records_are_refused(office: Office) -> None:
    office.tpsl("certs", "job.yaml")
    office.tpsl("data", "flights", "--out", "data", "--rows", "3000")
    label = office.listening(office.serve(job="data/job.yaml"))
    (path,) = (office.folder / "data").glob("airport*.parquet")
    table = pq.read_table(path)
    pq.write_table(table.slice(1), office.folder / "fewer.parquet")
    ids = table.column(0).to_pylist()
    pq.write_table(table.set_column(0, table.schema.field(0).name, [["x", *ids[1:]]]), office.folder / "other.parquet")
    for file, sentence in (
        ("fewer", "number of records differs: the label party has '3000'"),
        ("other", "record ids differ"),
    ):
        ended = office.join("feature", "--data", f"{file}.parquet", "--out", file, job="data/job.yaml").error()
        assert sentence in ended
    assert label.process.poll() is None
    label.process.send_signal(signal.SIGINT)
    assert label.process.wait(LIMIT) == 130


def test_a_party_that_does_not_come_is_named(office: Office) -> None:
    office.tpsl("certs", "job.yaml")
    assert "feature party 'feature' did not come within 1 s" in office.serve("--wait", "1").error()
    office.port = "9"
    assert "could not be reached within 1 s" in office.join("feature", "--wait", "1").error()


def test_without_tls_only_on_this_machine(office: Office) -> None:
    label = office.listening(office.serve(secure=False))
    feature = office.join("feature", secure=False)
    label.result(), feature.result()
    office.port = "7"
    far = office.tpsl("label", "serve", "job.yaml", "--listen", "0.0.0.0:0", "--insecure-loopback", "--out", "far")
    assert far.returncode == 1
    assert "only a loopback address will do" in far.stderr
    bare = office.tpsl("label", "serve", "job.yaml", "--listen", "127.0.0.1:0", "--out", "bare")
    assert bare.returncode == 1
    assert "mutual TLS needs this party's certificate folder" in bare.stderr


def test_a_killed_side_is_waited_for_and_goes_on(office: Office) -> None:
    """The short form of the drill: each side is killed once with SIGKILL; the weights are those of one process."""
    (office.folder / "job.yaml").write_text(
        yaml.safe_dump({**FLIGHTS, "training": {**FLIGHTS["training"], "epochs": 40}})
    )
    office.tpsl("certs", "job.yaml")
    label = office.listening(office.serve())
    feature = office.join("feature")
    feature.wait_for("checkpoint", step="..")
    feature.process.kill()
    label.wait_for("lost", peer="feature")
    feature = office.join("feature")
    feature.wait_for("resumed")
    feature.wait_for("checkpoint", step="..")
    label.process.kill()
    feature.wait_for("lost", peer="label")
    label = office.listening(office.serve())
    label.result(), feature.result()
    assert len(feature.events("resumed")) >= 2
    one = office.tpsl("train", "job.yaml", "--out", "one", "--vault", "runs/job-label/label/vault")
    assert one.returncode == 0, one.stderr
    assert {**office.weights("runs/job-label"), **office.weights("runs/job-feature")} == office.weights("one")
    with Vault.open(office.folder / "runs" / "job-label" / "label" / "vault") as vault:
        assert [entry.kind for entry in vault.ledger().entries].count("released") == 1


def test_metrics_of_the_feature_side_know_nothing_of_labels(office: Office) -> None:
    (office.folder / "job.yaml").write_text(
        yaml.safe_dump({**FLIGHTS, "training": {**FLIGHTS["training"], "epochs": 60}})
    )
    office.tpsl("certs", "job.yaml")
    label = office.listening(office.serve("--metrics-port", "0"))
    feature = office.join("feature", "--metrics-port", "0")
    label.wait_for("epoch")
    pages = []
    for program in (label, feature):
        address = re.search(r"http://\S+", program.wait_for("notice", text="metrics at")["text"])
        assert address
        with urllib.request.urlopen(address[0], timeout=10) as page:
            pages.append(page.read().decode())
    assert "tpsl_test_auc" in pages[0]
    assert "auc" not in pages[1]
    assert re.search(r"^tpsl_bytes_sent_total [1-9]", pages[1], re.MULTILINE)
