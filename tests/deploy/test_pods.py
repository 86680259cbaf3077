"""The pods as processes: commands, environment, mounts, probes and signals are those of the manifests.

What a cluster does is done here: volumes are folders, whose paths take the place of the mount paths, services are
ports of this machine, and what watches over pods is the test. `torchrun` and `tpsl` are the installed programs, forked
from a process that has imported PyTorch already.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.ports import free_port

from tpsl.net.certificates import party_folders
from tpsl.vault import Vault

PATIENCE = 120.0
TOKEN = "a secret of 27 characters.."
Manifest = dict[str, Any]


class Cluster:
    """One party's cluster: its claims and Secrets are folders, its network is this machine."""

    def __init__(self, folder: Path, secrets: dict[str, Path], addresses: dict[str, str], second: str) -> None:
        self.folder, self.secrets, self.addresses = folder, secrets, addresses
        self.second = second
        """The port for metrics of a second pod: in a cluster it would have an address of its own."""
        self.claims = folder / "claims"

    def claim(self, name: str) -> Path:
        """The folder of a PersistentVolumeClaim."""
        path = self.claims / name
        path.mkdir(parents=True, exist_ok=True)
        return path


class Pod:
    """What a workload's template describes, as a process."""

    def __init__(
        self, cluster: Cluster, manifests: list[Manifest], programs: list[Path], name: str, number: int = 0
    ) -> None:
        (workload,) = [one for one in manifests if one["kind"] in ("Job", "Deployment")]
        self._spec = workload["spec"]["template"]["spec"]
        (self._container,) = self._spec["containers"]
        self._name, self._number, self._namespace = name, number, workload["metadata"]["namespace"]
        self._ports = {port["name"]: str(port["containerPort"]) for port in self._container.get("ports", ())}
        self._cluster, self._folder = cluster, cluster.folder / name
        config = {one["metadata"]["name"]: one["data"] for one in manifests if one["kind"] == "ConfigMap"}
        volumes = {volume["name"]: volume for volume in self._spec["volumes"]}
        self._places = {
            mount["mountPath"]: self._place(volumes[mount["name"]], config) for mount in self._container["volumeMounts"]
        }
        for file in [file for path in self._places.values() if path.name == "files" for file in path.iterdir()]:
            file.write_text(self._here(file.read_text()))
        self.environment = {
            "PATH": os.pathsep.join([*map(str, programs), os.environ["PATH"]]),
            "PYTHON_EXEC": str(programs[0] / "worker"),  # what torchrun starts
            "OMP_NUM_THREADS": "1",
            "PET_LOCAL_ADDR": f"127.0.0.{1 + number}",  # in a cluster, the pod's own name
            "TMPDIR": str(self._places["/tmp"]),
            "TPSL_HOME": self._here("/tpsl"),  # as the image says
        }
        for one in self._container.get("env", ()):
            self.environment[one["name"]] = self._here(self._expanded(self._value(one)))
        for before in self._spec.get("initContainers", ()):
            subprocess.run(self._words(before), cwd=self._folder, env=self.environment, check=True)
        self.stdout, self.stderr = self._folder / "stdout", self._folder / "stderr"
        with self.stdout.open("w") as out, self.stderr.open("w") as log:
            words, where = self._words(self._container), self._folder
            self.process = subprocess.Popen(
                words, cwd=where, env=self.environment, stdout=out, stderr=log, start_new_session=True
            )

    def _place(self, volume: Manifest, config: dict[str, dict[str, str]]) -> Path:
        """Return a folder with what is in a volume."""
        if "persistentVolumeClaim" in volume:
            return self._cluster.claim(volume["persistentVolumeClaim"]["claimName"])
        path = self._folder / volume["name"]
        if "secret" in volume:
            shutil.copytree(self._cluster.secrets[volume["secret"]["secretName"]], path)
            for file in path.iterdir():
                file.chmod(volume["secret"]["defaultMode"])
            return path
        path.mkdir(parents=True)
        for source in volume["projected"]["sources"] if "projected" in volume else [volume]:
            for name, text in config[source["configMap"]["name"]].items() if "configMap" in source else ():
                (path / name).write_text(text)
        return path

    def _value(self, variable: Manifest) -> str:
        """Return what an environment variable says, or what the cluster says of the pod."""
        if "value" in variable:
            return str(variable["value"])
        known = {"metadata.name": self._name, "metadata.namespace": self._namespace}
        return known[variable["valueFrom"]["fieldRef"]["fieldPath"]]

    def _expanded(self, text: str) -> str:
        """Return a text with the variables that the cluster puts in."""
        return re.sub(r"\$\((\w+)\)", lambda found: self.environment[found[1]], text)

    def _words(self, container: Manifest) -> list[str]:
        """Return the command of a container."""
        return [self._expanded(self._here(word)) for word in (*container["command"], *container.get("args", ()))]

    def _here(self, text: str) -> str:
        """Return a text in which paths of mounts, names of services and ports are those of this machine."""
        paths = "|".join(map(re.escape, sorted(self._places, key=len, reverse=True)))
        text = re.sub(rf"(?<![\w/.])({paths})(?![\w.])", lambda found: str(self._places[found[1]]), text)
        addresses = self._cluster.addresses | ({"9101": self._cluster.second} if self._number else {})
        for there, here in addresses.items():
            text = re.sub(rf"(?<![\w.]){re.escape(there)}(?![\w.])", here, text)
        return text

    def is_alive(self) -> bool:
        """Ask the liveness probe, as the kubelet does."""
        return self._asked(self._container["livenessProbe"])

    def is_ready(self) -> bool:
        """Ask the readiness probe."""
        return self._asked(self._container["readinessProbe"])

    def _asked(self, probe: Manifest) -> bool:
        """Ask a probe: by the address of the pod, or with a command inside."""
        if "exec" in probe:
            command = [self._here(word) for word in probe["exec"]["command"]]
            return not subprocess.run(command, env=self.environment, capture_output=True).returncode
        port, path = self._here(self._ports[probe["httpGet"]["port"]]), probe["httpGet"]["path"]
        asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Host": "10.1.2.3"})
        try:
            with urllib.request.urlopen(asked, timeout=10) as page:
                return ("tpsl_steps_total" in page.read().decode()) == (path == "/metrics")
        except OSError:
            return False

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = [line for line in self.stderr.read_text().splitlines() if line.startswith("{") and line.endswith("}")]
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def wait_until(self, happened: Callable[[], object], what: str) -> None:
        """Wait for something of a pod that still runs."""
        until = time.monotonic() + PATIENCE
        while not happened():
            assert self.process.poll() is None and time.monotonic() < until, f"not {what}:\n{self.stderr.read_text()}"
            time.sleep(0.05)

    def delete(self) -> int:
        """End it as a cluster does; within the grace period it ends by itself."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(self._spec["terminationGracePeriodSeconds"])

    def result(self) -> dict[str, Any]:
        """Wait for a pod that succeeds; return what it has printed."""
        assert self.process.wait(PATIENCE) == 0, self.stderr.read_text()
        found: dict[str, Any] = json.loads(self.stdout.read_text())
        return found


class Companies:
    """A bank with labels and a shop with features, each with a cluster of its own."""

    def __init__(self, folder: Path, kustomized: Callable[[str], list[Manifest]], programs: list[Path]) -> None:
        self._kustomized, self._programs, self._pods = kustomized, programs, list[Pod]()
        party_folders(folder / "certs", ["label", "shop"], 1)
        (folder / "secret").mkdir()
        (folder / "secret" / "token").write_text(TOKEN)
        outside, inside = ("label.example", "scores.label.example"), "tpsl-0.tpsl.tpsl-{}.svc.cluster.local"
        names = dict.fromkeys((*outside, inside.format("label"), inside.format("feature")), "127.0.0.1")
        door, *others = (str(free_port()) for _ in range(9))
        self.clusters = {}
        for role, party in (("label", "label"), ("feature", "shop")):
            ports = {"7443": door} | {port: others.pop() for port in ("9101", "29500", "8080")}
            secrets = {"tpsl-certificates": folder / "certs" / party, "tpsl-scoring-token": folder / "secret"}
            self.clusters[role] = Cluster(folder / role, secrets, names | ports, others.pop())

    def start(self, folder: str, number: int = 0, **agreed: int) -> Pod:
        """Start a pod of a folder of deploy/kubernetes; `agreed` is what the job says of training instead."""
        return self.start_changed(folder, lambda file: file, number, **agreed)

    def start_changed(self, folder: str, change: Callable[[str], str], number: int = 0, **agreed: int) -> Pod:
        """The same, after a change of the text of the manifests."""
        manifests: list[Manifest] = json.loads(change(json.dumps(self._kustomized(folder))))
        for one in manifests:
            if one["metadata"]["name"] == "tpsl-job":
                job = yaml.safe_load(one["data"]["job.yaml"])
                one["data"]["job.yaml"] = yaml.safe_dump(job | {"training": job["training"] | agreed})
        cluster, name = self.clusters[folder.rpartition("/")[2]], f"{folder.replace('/', '-')}-{len(self._pods)}"
        self._pods.append(Pod(cluster, manifests, self._programs, name, number))
        return self._pods[-1]

    def end(self) -> None:
        for pod in self._pods:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pod.process.pid, signal.SIGKILL)  # and its workers
            pod.process.wait()


@pytest.fixture(scope="module")
def companies(
    tmp_path_factory: pytest.TempPathFactory, kustomized: Callable[[str], list[Manifest]], quick_programs: Path
) -> Iterator[Companies]:
    folder = tmp_path_factory.mktemp("companies")
    programs = folder / "programs"
    programs.mkdir()
    (programs / "tpsl").symlink_to(quick_programs / "tpsl")
    installed = Path(sys.executable).parent
    runpy.run_path(str(Path(__file__).parents[1] / "quick_start.py"))["write_client"](
        programs / "torchrun", quick_programs / "address", [str(installed / "torchrun")]
    )
    (programs / "worker").write_text(f'#!/bin/sh\nshift 3 # -u -m tpsl\nexec "{programs}/tpsl" "$@"\n')
    (programs / "worker").chmod(0o755)
    made = Companies(folder, kustomized, [programs, installed])
    label, feature = (made.clusters[role].claim("tpsl-data") for role in ("label", "feature"))
    with (label / "bank.csv").open("w", newline="") as bank, (feature / "shop.csv").open("w", newline="") as shop:
        csv.writer(bank).writerows([["customer", "paid_back"], *([f"c{row}", row % 3 // 2] for row in range(1200))])
        rows = ([f"c{row}", ("phone", "laptop")[row % 2], row % 30, "2026-11-16"] for row in range(1200))
        csv.writer(shop).writerows([["customer", "device", "pages", "visited"], *rows])
    yield made
    made.end()


def test_both_parties_train_to_the_end_though_a_pod_is_deleted(companies: Companies) -> None:
    agreed = {"epochs": 30, "checkpoint_every": 10, "patience": 0}
    label = companies.start("training/label", **agreed)
    feature = companies.start("training/feature", **agreed)
    label.wait_until(lambda: len(label.events("checkpoint")) > 1, "training")
    assert label.is_alive() and label.is_ready()
    assert feature.is_alive()
    assert label.delete() != 0, "a run that is not finished is no success: the Job starts another pod"
    assert label.events("error")[-1]["reason"].startswith("terminated; the same command goes on where it stopped")
    assert not label.is_alive() and not label.is_ready()
    feature.wait_until(lambda: feature.events("lost"), "waiting for the label party")
    assert feature.is_alive(), "who waits for the other party is in good health"
    again = companies.start("training/label", **agreed)
    trained = again.result()
    assert trained["steps"] == feature.result()["steps"] == 450
    assert not again.is_ready()
    assert (trained["test_auc"], trained["test_log_loss"]) == (None, None)
    assert again.events("resumed")[0]["step"] > 0
    with Vault.open(companies.clusters["label"].claim("tpsl-vault") / "vault") as opened:
        assert [entry.kind for entry in opened.ledger().entries].count("released") == 1
    files = {path.name for path in companies.clusters["feature"].claim("tpsl-runs").rglob("*") if path.is_file()}
    assert "bottom.safetensors" in files
    assert not files & {"top.safetensors", "vault.sqlite"}


@pytest.mark.long
def test_two_pods_of_one_party_train_together(companies: Companies) -> None:
    """The number of pods stands in one file of the manifests. Each pod has a probe."""

    def another_run(file: str) -> str:
        return file.replace("/runs/first", "/runs/second")

    def two_pods(file: str) -> str:
        changed, places = re.subn(r'("PET_NNODES", "value": )"1"', r'\1"2"', another_run(file))
        assert places == 1
        return changed

    agreed = {"epochs": 10, "checkpoint_every": 50, "patience": 0}
    label = companies.start_changed("training/label", another_run, **agreed)
    features = [companies.start_changed("training/feature", two_pods, number, **agreed) for number in (0, 1)]
    for pod in features:
        pod.wait_until(pod.is_alive, "alive")
    assert label.result()["steps"] == features[0].result()["steps"] == 150
    assert features[1].process.wait(PATIENCE) == 0
    assert features[1].stdout.read_text() == "", "worker 0 speaks for the party"


def test_another_pod_evaluates_what_was_trained(companies: Companies) -> None:
    """Without the vault and its key."""
    found = companies.start("evaluation/label").result()
    assert 0 < found["test_log_loss"] < 10
    assert (found["steps"], found["total_epsilon"]) == (450, 2.0)


def test_a_backup_is_a_sound_copy(companies: Companies) -> None:
    assert companies.start("backup/label").result()["sound"] is True
    (copy,) = companies.clusters["label"].claim("tpsl-backups").iterdir()
    vault = companies.clusters["label"].claim("tpsl-vault") / "vault"
    assert (copy / "vault.sqlite").read_bytes() == (vault / "vault.sqlite").read_bytes()


def test_both_scoring_services_serve_what_was_trained(companies: Companies) -> None:
    label, feature = companies.start("scoring/label"), companies.start("scoring/feature")
    for pod in (label, feature):
        pod.wait_until(lambda pod=pod: pod.is_alive() and pod.is_ready(), "serving")
    asked = {"key": "visit-17", "records": [{"device": "laptop", "pages": 25, "visited": "2026-11-16"}]}
    url, headers = json.loads(feature.stdout.read_text())["http"], {"Content-Type": "application/json"}
    url = url.replace("0.0.0.0", "127.0.0.1")
    request = urllib.request.Request(f"{url}/v1/score", json.dumps(asked).encode(), headers)
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(request, timeout=10)
    request.add_header("Authorization", f"Bearer {TOKEN}")
    with urllib.request.urlopen(request, timeout=10) as answer:
        (score,) = json.loads(answer.read())["scores"]
    assert 0 <= score <= 1
    assert (feature.delete(), label.delete()) == (143, 143)
