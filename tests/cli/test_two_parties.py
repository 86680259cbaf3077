"""Two organisations as users run them: `tpsl certs`, `tpsl label serve`, `tpsl feature join`, each a process."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from tests.ports import free_port

from tpsl.vault import Vault, the_vault

SMALL = {
    "privacy": {"mechanism": "discrete", "epsilon": 1.0},
    "model": {"embedding_dim": 4, "bottom": [16, 8], "top": [8]},
    "training": {"batch_size": 256, "epochs": 2, "checkpoint_every": 5, "patience": 0},
}
SYNTHETIC = {"data": {"source": "synthetic", "rows": 4000, "numeric_fields": 3, "categorical_fields": 2}, **SMALL}

LOGGED = ("--set=local.log=json", "--set=local.threads=1")


class Office:
    """A folder with a job, certificates, and the programs that run in it."""

    def __init__(self, programs: Callable[..., Any], folder: Path, certificates: Path) -> None:
        self.programs, self.folder = programs, folder
        folder.mkdir()
        shutil.copytree(certificates, folder / "certs")
        self.port = "0"
        self.write_job(SYNTHETIC)

    def write_job(self, job: dict[str, Any], name: str = "job.yaml", **training: int) -> None:
        content = {**job, "training": {**job["training"], **training}}
        (self.folder / name).write_text(yaml.safe_dump(content))

    def tpsl(self, *arguments: object, **how: bool) -> Any:
        return self.programs(self.folder, *arguments, "--json", **how)

    def serve(self, *options: object, job: str = "job.yaml", secure: bool = True, **how: bool) -> Any:
        door = ["--certs", "certs/label"] if secure else ["--set=local.insecure_loopback=true"]
        address = f"127.0.0.1:{self.port}"
        return self.tpsl("label", "serve", job, "--listen", address, *door, *LOGGED, *options, **how)

    def listening(self, program: Any) -> Any:
        self.port = str(program.wait_for("listening")["address"]).rpartition(":")[2]
        return program

    def join(self, party: str, *options: object, job: str = "job.yaml", secure: bool = True, **how: bool) -> Any:
        door = ["--certs", f"certs/{party}"] if secure else ["--set=local.insecure_loopback=true", "--party", party]
        address = f"127.0.0.1:{self.port}"
        return self.tpsl("feature", "join", job, "--connect", address, *door, *LOGGED, *options, **how)

    def evaluate(self, run: str = "runs/job-label") -> dict[str, Any]:
        """Return the label party's result with what it computes from true labels."""
        result: dict[str, Any] = self.tpsl("label", "evaluate", run, "--set=local.threads=1").result()
        return result

    def train_in_one_process(self, *options: object, job: str = "job.yaml") -> dict[str, bytes]:
        """Return the weights of one process with the vault that the label party has used."""
        self.tpsl("train", job, "--vault", the_vault(), "--out", "one", "--set=local.threads=1", *options).result()
        return self.weights("one")

    def weights(self, *runs: str) -> dict[str, bytes]:
        roots = [self.folder / run for run in runs]
        return {
            str(file.relative_to(root)): file.read_bytes() for root in roots for file in root.glob("*/*.safetensors")
        }

    def releases(self) -> int:
        with Vault.open(the_vault()) as vault:
            return [entry.kind for entry in vault.ledger().entries].count("released")


@pytest.fixture
def office(programs: Callable[..., Any], tmp_path: Path, certificates: Path) -> Office:
    return Office(programs, tmp_path / "office", certificates)


def test_two_programs_train_the_weights_of_one(office: Office) -> None:
    """Everything as in the README, but the data."""
    shutil.rmtree(office.folder / "certs")
    office.tpsl("certs", "job.yaml").result()
    office.port = str(free_port())
    label = office.serve("--set=local.metrics=127.0.0.1:0", installed=True)
    feature = office.join(
        "feature", "--set=local.metrics=127.0.0.1:0", "--set=local.record_transcript=true", installed=True
    )
    labels, features = label.result(), feature.result()
    assert labels["steps"] == features["steps"] == 26
    assert labels["test_auc"] is labels["test_log_loss"] is None
    assert not any("auc" in key or "loss" in key or "epsilon" in key for key in features)
    # One process with the same vault: the same noisy labels, so the same weights, bit for bit.
    one = office.train_in_one_process("--set=local.record_transcript=true")
    assert office.weights("runs/job-label", "runs/job-feature") == one
    assert {"label/top.safetensors", "feature/bottom.safetensors"} <= set(one)
    for name in ("embeddings.f32", "gradients.f32", "rows.i64"):
        crossed = [office.folder / run / "feature" / "transcript" / name for run in ("one", "runs/job-feature")]
        assert crossed[0].read_bytes() == crossed[1].read_bytes()
    # Each side's folder holds its own party's and nothing of the other's.
    assert not (office.folder / "runs" / "job-label" / "feature").exists()
    assert not (office.folder / "runs" / "job-feature" / "label").exists()
    assert "auc" not in feature.log()
    assert "loss" not in feature.log()
    # Both again: finished, nothing to do.
    again = office.serve(), office.join("feature")
    assert again[0].result() == labels
    assert again[1].result() == features


def test_who_serves_ends_without_a_look_at_true_labels_and_another_command_looks(office: Office) -> None:
    """Peers see when a process, or its pod, ends; so it neither waits for an evaluation nor fails with one."""
    (office.folder / "shop.csv").write_text("id,x\n" + "".join(f"r{row},{row % 5}\n" for row in range(600)))
    (office.folder / "bank.csv").write_text("id,label\n" + "".join(f"r{row},{row % 5 // 3}\n" for row in range(600)))
    files = {"features": [{"path": "shop.csv", "numeric": ["x"]}], "label": {"path": "bank.csv"}}
    training = {**SMALL["training"], "batch_size": 32, "head": "local"}
    office.write_job({**SMALL, "data": {"source": "table", **files}, "training": training})
    label, feature = office.listening(office.serve()), office.join("feature")
    trained = label.result()
    feature.result()
    run, head = office.folder / "runs" / "job-label", "label/NOT-PRIVATE/local_head.safetensors"
    assert {name for name, value in trained.items() if name.startswith("test_") and value is not None} == {
        "test_records"
    }
    assert "local_head" not in trained and not (run / head).exists()
    assert not label.events("evaluated") and not label.events("local head")
    assert "test_" not in (run / "label" / "metrics.jsonl").read_text()
    assert len(label.events("finished")) == 1

    # Neither a table that has gone nor an evaluation changes what serving says and how it ends.
    (office.folder / "bank.csv").rename(office.folder / "moved.csv")
    assert "bank.csv" in office.tpsl("label", "evaluate", "runs/job-label").error()
    assert office.serve().result() == trained
    found = office.tpsl("label", "evaluate", "runs/job-label", "--set=local.data=moved.csv").result()
    assert office.serve().result() == trained
    assert office.evaluate() == found, "it is only read"

    (office.folder / "moved.csv").rename(office.folder / "bank.csv")
    one = office.tpsl("train", "job.yaml", "--out", "one", "--set=local.threads=1").result()
    assert {name for name in one if one[name] != found[name]} <= {"run", "seconds", "samples_per_second"}
    assert found["local_head"]["test_auc"] > 0.9, "or anything would do"
    for name in (head, "label/metrics.jsonl"):
        assert (run / name).read_bytes() == (office.folder / "one" / name).read_bytes()


def test_two_programs_choose_the_same_method_and_fit_the_head_of_one(office: Office) -> None:
    changes = {"data": {**SYNTHETIC["data"], "signal": 5.0}, "privacy": {"epsilon": 0.7}}
    office.write_job({**SYNTHETIC, **changes, "method": "auto", "statistic": {"share_codes": True}}, validation=0.1)
    label = office.listening(office.serve())
    feature = office.join("feature")
    assert label.result()["test_auc"] is feature.result().get("test_auc") is None
    result = office.evaluate()
    assert result["steps"] == 0
    assert result["test_auc"] > 0.65, "or the head is the base rate, and anything would do"
    assert result["statistic_records"] == 2880
    assert result["total_epsilon"] <= 0.7
    one = office.train_in_one_process()
    assert office.weights("runs/job-label", "runs/job-feature") == one
    assert {"label/statistic_head.safetensors", "feature/codes.safetensors"} <= set(one)
    with Vault.open(the_vault()) as vault:
        assert [entry.kind for entry in vault.ledger().entries].count("statistic") == 1


def test_units_are_the_label_partys_own_affair(office: Office) -> None:
    """Its copy of the job names a column of customers. The feature party's does not, and has no such column."""
    lines = [f"r{row},{row % 5},{row % 2},c{row // 3}" for row in range(300)]
    (office.folder / "shop.csv").write_text("\n".join(["id,pages", *(line.rsplit(",", 2)[0] for line in lines)]))
    (office.folder / "bank.csv").write_text("\n".join(["id,pages,label,customer", *lines]))
    for name, unit in (("shop.yaml", {}), ("bank.yaml", {"unit": "customer"})):
        own = {"path": "shop.csv", "numeric": ["pages"]}
        data = {"source": "table", "features": [own], "label": {"path": "bank.csv", **unit}}
        office.write_job({**SMALL, "data": data}, name, epochs=1)
    label = office.listening(office.serve(job="bank.yaml"))
    office.join("feature", job="shop.yaml").result()
    label.result()
    with Vault.open(the_vault()) as vault:
        ledger = vault.ledger()
    assert ledger.largest_unit is not None
    assert ledger.largest_unit.records == 3
    assert ledger.largest_unit.epsilon > 2.9 * ledger.epsilon_per_record > 0


def test_two_feature_parties_and_a_label_party_with_features(office: Office) -> None:
    office.tpsl("research", "data", "flights", "--out", "data", "--rows", "3000").result()
    content = yaml.safe_load((office.folder / "data" / "job.yaml").read_text()) | SMALL
    assert content["data"]["label"]["categorical"], "the airline has features of its own"
    (airport,) = content["data"]["features"]
    fields = airport["categorical"], airport["numeric"]
    content["data"]["features"] = [
        {**airport, "party": "airport", "numeric": []},
        {**airport, "party": "weather", "categorical": [], "numeric": fields[1]},
    ]
    content["model"] = {**content["model"], "wide": True}
    office.write_job(content, "data/job.yaml")
    # Each party has a copy of the job in a folder of its own, with its own file and no other.
    own = {"label": content["data"]["label"]["path"], "airport": airport["path"], "weather": airport["path"]}
    for party, file in own.items():
        (office.folder / party).mkdir()
        shutil.copy(office.folder / "data" / "job.yaml", office.folder / party)
        shutil.copy(office.folder / "data" / file, office.folder / party)
    label = office.listening(office.serve(job="label/job.yaml"))
    parties = [office.join(name, job=f"{name}/job.yaml") for name in ("weather", "airport")]
    result = label.result()
    for party in parties:
        party.result()
    assert result["train_records"] == 2400
    one = office.train_in_one_process(job="data/job.yaml")
    assert office.weights(*(f"runs/job-{party}" for party in own)) == one
    assert set(one) >= {f"{party}/{half}.safetensors" for party in own for half in ("bottom", "wide")}


def test_three_programs_start_from_an_earlier_run_as_one_does(office: Office) -> None:
    """Each party names its own earlier run; halves that do not belong together are refused before any release."""
    rows = [(f"r{row:03d}", 10 + row // 100, row % 5, row % 7, row % 2) for row in range(400)]
    columns = {"shop.csv": (0, 1, 2), "bank.csv": (0, 1, 4), "net.csv": (0, 1, 3)}
    names = ("id", "day", "pages", "speed", "label")

    def write(days: int) -> None:
        for file, chosen in columns.items():
            lines = [",".join(str(row[at]) for at in chosen) for row in rows[: 100 * days]]
            (office.folder / file).write_text("\n".join([",".join(names[at] for at in chosen), *lines]))

    own = {"airport": ("shop.csv", "pages"), "weather": ("net.csv", "speed")}
    files = [{"path": path, "party": party, "numeric": [n], "time": "day"} for party, (path, n) in own.items()]
    data = {"source": "table", "features": files, "label": {"path": "bank.csv", "time": "day"}}
    office.write_job({**SMALL, "data": data, "model": {**SMALL["model"], "wide": True}}, batch_size=32)
    write(2)
    label = office.listening(office.serve("--out", "first/label"))
    parties = [office.join(party, "--out", f"first/{party}") for party in own]
    for program in (label, *parties):
        program.result()
    write(4)

    def options(party: str, earlier: str = "first") -> list[str]:
        return ["--set=data.since=12", f"--set=local.start_from={earlier}/{party}", "--out", f"second/{party}"]

    shutil.copytree(office.folder / "first", office.folder / "other")
    versions = office.folder / "other" / "airport" / "airport" / "versions.json"
    versions.write_text(json.dumps({"airport": "0" * 64}))
    label = office.listening(office.serve(*options("label")))
    sentence = office.join("airport", *options("airport", "other")).error()
    assert "version that training starts from differs: the label party has" in sentence
    assert office.releases() == 1
    parties = [office.join(party, *options(party)) for party in own]
    result = label.result()
    for program in parties:
        program.result()
    assert result["train_records"] == 160
    assert office.releases() == 2
    for party in own:
        shutil.copytree(office.folder / "first" / party / party, office.folder / "first" / "label" / party)
    one = office.train_in_one_process("--set=data.since=12", "--set=local.start_from=first/label")
    assert office.weights(*(f"second/{party}" for party in ("label", *own))) == one
    assert set(one) >= {f"{party}/{half}.safetensors" for party in own for half in ("bottom", "wide")}


def test_another_job_is_refused_with_the_field_that_differs(office: Office) -> None:
    office.write_job(SYNTHETIC, "other.yaml", epochs=3)
    label = office.listening(office.serve())
    sentence = office.join("feature", job="other.yaml").error()
    assert "job.training.epochs differs: the label party has '2', feature party 'feature' has '3'" in sentence
    label.wait_for("refused", peer="feature", reason="job.training.epochs differs")
    # No labels were released for a peer that does not agree.
    assert office.releases() == 0
    # The label party is still there for the right one.
    office.join("feature").result()
    label.result()
    assert office.releases() == 1


def test_the_label_party_has_the_last_word(office: Office) -> None:
    """The shared job asks for raw labels; the label party's own file says what is permitted."""
    office.write_job({**SYNTHETIC, "privacy": {"mechanism": "none"}}, "open.yaml")
    refused = office.serve(job="open.yaml")
    assert "local.not_private=true" in refused.error()
    assert refused.events("listening") == []
    (office.folder / "local.yaml").write_text("max_epsilon: 0.5\n")
    refused = office.serve("--local", "local.yaml")
    assert "ε = 1 in all, more than the ε = 0.5 that the label party permits" in refused.error()
    assert refused.events("listening") == []
    assert not the_vault().exists()
    (office.folder / "local.yaml").write_text("not_private: true\n")
    office.listening(office.serve("--local", "local.yaml", job="open.yaml"))


def test_other_records_are_refused(office: Office) -> None:
    ids = [f"r{number}" for number in range(300)]
    label_file, feature_file = {"path": "labels.parquet"}, {"path": "features.parquet", "numeric": ["x"]}
    for path, column in ((label_file["path"], "label"), (feature_file["path"], "x")):
        pq.write_table(pa.table({"id": ids, column: [number % 2 for number in range(300)]}), office.folder / str(path))
    data = {"source": "table", "features": [feature_file], "label": label_file}
    office.write_job({"data": data, **SMALL})
    label = office.listening(office.serve())
    table = pq.read_table(office.folder / "features.parquet")
    pq.write_table(table.slice(1), office.folder / "fewer.parquet")
    pq.write_table(table.set_column(0, "id", [["x", *ids[1:]]]), office.folder / "other.parquet")
    for file, sentence in (
        ("fewer", "number of records differs: the label party has '300'"),
        ("other", "record ids differ"),
    ):
        assert sentence in office.join("feature", f"--set=local.data={file}.parquet", "--out", file).error()
    assert label.is_running()
    label.signal(signal.SIGINT)
    assert label.outcome().status == 130


def test_a_party_that_does_not_come_is_named(office: Office) -> None:
    label = office.serve("--set=local.wait=1")
    office.port = "9"
    feature = office.join("feature", "--set=local.wait=1")
    assert "feature party 'feature' did not come within 1 s" in label.error()
    assert "could not be reached within 1 s" in feature.error()


def test_without_tls_only_on_this_machine(office: Office) -> None:
    shutil.rmtree(office.folder / "certs")
    label = office.listening(office.serve(secure=False))
    feature = office.join("feature", secure=False)
    label.result(), feature.result()
    far = office.tpsl(
        "label", "serve", "job.yaml", "--listen", "0.0.0.0:0", "--set=local.insecure_loopback=true", "--out", "far"
    )
    bare = office.tpsl("label", "serve", "job.yaml", "--listen", "127.0.0.1:0", "--out", "bare")
    assert "only a loopback address will do" in far.error()
    assert "mutual TLS needs this party's certificate folder" in bare.error()


def test_a_killed_side_is_waited_for_and_goes_on(office: Office) -> None:
    """The short form of the drill: each side is killed once with SIGKILL; the weights are those of one process."""
    office.write_job({**SYNTHETIC, "model": {**SMALL["model"], "wide": True}}, epochs=15)
    label = office.listening(office.serve("--set=local.silence=3"))
    feature = office.join("feature")
    feature.wait_for("checkpoint", step="..")
    feature.signal(signal.SIGKILL)
    label.wait_for("lost", peer="feature")
    feature = office.join("feature")
    feature.wait_for("resumed")
    feature.wait_for("checkpoint", step="..")
    label.signal(signal.SIGKILL)
    feature.wait_for("lost", peer="label")
    label = office.listening(office.serve())
    label.result(), feature.result()
    assert len(feature.events("resumed")) >= 2
    assert office.weights("runs/job-label", "runs/job-feature") == office.train_in_one_process()
    assert office.releases() == 1


@pytest.mark.parametrize("who", ["label", "feature"])
def test_a_side_that_is_told_to_end_is_waited_for(office: Office, who: str) -> None:
    """SIGTERM: the sockets are closed, the other side waits, and the same command goes on."""
    office.write_job(SYNTHETIC, epochs=15)
    programs = {"label": office.listening(office.serve("--set=local.silence=3"))}
    programs["feature"] = office.join("feature")
    ended, other = programs[who], programs["feature" if who == "label" else "label"]
    ended.wait_for("checkpoint", step="..")
    ended.signal(signal.SIGTERM)
    outcome = ended.outcome()
    assert outcome.code(143) == "terminated"
    lines = [json.loads(line) for line in outcome.stderr.splitlines()]  # all of them, to the last
    assert lines[-1]["event"] == "error"
    assert lines[-1]["reason"].startswith("terminated; the same command goes on where it stopped; the ")
    other.wait_for("lost", peer=who)
    programs[who] = office.serve() if who == "label" else office.join("feature")
    for program in programs.values():
        program.result()
    assert not other.events("error")
    assert office.weights("runs/job-label", "runs/job-feature") == office.train_in_one_process()
    assert office.releases() == 1


def test_a_side_frozen_for_longer_than_silence_goes_on(office: Office) -> None:
    """Each side is stopped once (SIGSTOP) and wakes up again; the weights are those of one process."""
    office.write_job(SYNTHETIC, epochs=15)
    patience = ("--set=local.silence=1", "--set=local.wait=60")
    sides = {"label": office.listening(office.serve(*patience)), "feature": office.join("feature", *patience)}
    sides["feature"].wait_for("checkpoint")
    for frozen, other in (("label", "feature"), ("feature", "label")):
        sides[frozen].signal(signal.SIGSTOP)
        sides[other].wait_for("lost", peer=frozen, reason="not heard for 1 s; waiting up to 60 s for its return")
        time.sleep(1.5)
        sides[frozen].signal(signal.SIGCONT)
        sides[other].wait_for("connected", peer=frozen, reason="connected again")
    for side in sides.values():
        side.result()
    assert not sides["feature"].events("resumed"), "nobody had to go back to a checkpoint"
    assert office.weights("runs/job-label", "runs/job-feature") == office.train_in_one_process()
    assert office.releases() == 1


def test_a_normal_end_is_not_logged_as_a_loss(office: Office) -> None:
    label = office.listening(office.serve())
    feature = office.join("feature")
    label.result(), feature.result()
    for program, peer in ((label, "feature"), (feature, "label")):
        assert program.events("lost") == []
        assert program.events("connected")[0]["peer"] == peer


def test_a_plain_log_ends_with_how_to_go_on(office: Office) -> None:
    label = office.programs(
        office.folder, *("label", "serve", "job.yaml", "--listen", "127.0.0.1:0", "--certs", "certs/label")
    )
    until = time.monotonic() + 60
    while "listening" not in label.log() and time.monotonic() < until:
        assert label.is_running(), label.log()
        time.sleep(0.02)
    label.signal(signal.SIGTERM)
    outcome = label.outcome()
    assert (outcome.status, outcome.stdout) == (143, "")
    last = outcome.stderr.splitlines()[-1]
    assert last == "terminated; the same command goes on where it stopped; the feature parties wait for it"


@pytest.mark.parametrize("frozen", ["label", "feature"])
def test_a_side_frozen_for_longer_than_every_limit_ends_both_with_a_sentence(office: Office, frozen: str) -> None:
    office.write_job(SYNTHETIC, epochs=15)
    patience = ("--set=local.silence=1", "--set=local.wait=2")
    sides = {"label": office.listening(office.serve(*patience)), "feature": office.join("feature", *patience)}
    described = {"label": "the label party", "feature": "feature party 'feature'"}
    other = "feature" if frozen == "label" else "label"
    sides["feature"].wait_for("checkpoint")
    sides[frozen].signal(signal.SIGSTOP)
    lost = f"{described[frozen]} was lost (not heard for 1 s) and did not come back within 2 s"
    assert lost in sides[other].error()
    sides[frozen].signal(signal.SIGCONT)
    # It finds that it is alone, and waits as long as it was told to.
    assert re.search(rf"{described[other]} was lost \(.+\) and did not come back within 2 s", sides[frozen].error())
    assert office.releases() == 1


def test_metrics_of_the_feature_side_know_nothing_of_labels(office: Office) -> None:
    office.write_job(SYNTHETIC, epochs=400)
    label = office.listening(office.serve("--set=local.metrics=127.0.0.1:0"))
    feature = office.join("feature", "--set=local.metrics=127.0.0.1:0")
    label.wait_for("epoch")
    pages = []
    for program in (label, feature):
        address = re.search(r"http://\S+", program.wait_for("notice", text="metrics at")["text"])
        assert address
        with urllib.request.urlopen(address[0], timeout=10) as page:
            pages.append(page.read().decode())
    # Nor those of the label side.
    assert "auc" not in pages[0]
    assert "auc" not in pages[1]
    assert re.search(r"^tpsl_bytes_sent_total [1-9]", pages[1], re.MULTILINE)
    assert not label.events("evaluated")
