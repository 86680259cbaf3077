"""The manifests: what the schemas of Kubernetes say of them, whether all that they name is there, and who may what."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tpsl import __version__
from tpsl.run.job import load_job
from tpsl.run.local import Local, load_local

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
FOLDERS = sorted(
    str(file.parent.relative_to(KUBERNETES))
    for file in KUBERNETES.glob("*/*/kustomization.yaml")
    if file.parent.name != "base"
)
OLDEST = "1.31"
"""Of Kubernetes: `podFailurePolicy` and `ReadWriteOncePod` are stable from here on."""

PARTIES = ("label", "feature")
Manifest = dict[str, Any]


@pytest.fixture(params=FOLDERS)
def manifests(request: pytest.FixtureRequest, kustomized: Callable[[str], list[Manifest]]) -> list[Manifest]:
    return kustomized(request.param)


@pytest.fixture(params=FOLDERS)
def surroundings(request: pytest.FixtureRequest, kustomized: Callable[[str], list[Manifest]]) -> list[Manifest]:
    """A folder's manifests, with those of the party's training, in whose namespace they are."""
    purpose, _, party = request.param.partition("/")
    return kustomized(request.param) + (kustomized(f"training/{party}") if purpose != "training" else [])


def of_kind(manifests: list[Manifest], *kinds: str) -> dict[str, Manifest]:
    return {one["metadata"]["name"]: one for one in manifests if one["kind"] in kinds}


def pods(manifests: list[Manifest]) -> Iterator[tuple[Manifest, Manifest]]:
    """The template of each pod, and the container that runs in it."""
    for workload in of_kind(manifests, "Job", "Deployment").values():
        template = workload["spec"]["template"]
        (container,) = template["spec"]["containers"]
        yield template, container


def config(manifests: list[Manifest], template: Manifest) -> dict[str, str]:
    """The files of a pod's ConfigMaps, by name."""
    volumes = [volume for volume in template["spec"]["volumes"] if volume["name"] == "files"]
    sources = [source for volume in volumes for source in volume.get("projected", {"sources": [volume]})["sources"]]
    return {
        name: text
        for source in sources
        for name, text in of_kind(manifests, "ConfigMap")[source["configMap"]["name"]]["data"].items()
    }


@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
def test_every_manifest_is_what_kubernetes_takes(manifests: list[Manifest], version: str) -> None:
    for manifest in manifests:
        kubernetes_validate.validate(manifest, version, strict=True)


def test_a_wrong_key_would_be_found(kustomized: Callable[[str], list[Manifest]]) -> None:
    (job,) = of_kind(kustomized("training/label"), "Job").values()
    job["spec"]["template"]["spec"]["containers"][0]["readOnly"] = True
    with pytest.raises(kubernetes_validate.ValidationError, match="readOnly"):
        kubernetes_validate.validate(job, OLDEST, strict=True)


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")
@pytest.mark.parametrize("folder", FOLDERS)
def test_kustomize_builds_the_same(folder: str, kustomized: Callable[[str], list[Manifest]]) -> None:
    """It asks no cluster."""
    built = subprocess.run(["kubectl", "kustomize", KUBERNETES / folder], capture_output=True, text=True, check=True)
    without_suffixes = re.sub(r"(name: tpsl-scoring-local)-\w{10}\b", r"\1", built.stdout)
    theirs = list(yaml.safe_load_all(without_suffixes))
    assert canonical(kustomized(folder)) == canonical(theirs)


def canonical(value: Any) -> Any:
    """The same for lists whose items come in another order."""
    if isinstance(value, dict):
        return {key: canonical(item) for key, item in value.items()}
    if isinstance(value, list):
        return sorted((canonical(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    return value


def test_all_that_a_pod_names_is_there(surroundings: list[Manifest]) -> None:
    for template, container in pods(surroundings):
        spec = template["spec"]
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
        claims = {
            one["persistentVolumeClaim"]["claimName"] for one in volumes.values() if "persistentVolumeClaim" in one
        }
        assert claims <= set(of_kind(surroundings, "PersistentVolumeClaim"))
        assert spec["serviceAccountName"] in of_kind(surroundings, "ServiceAccount")
        ports = {port["name"] for port in container.get("ports", ())}
        for probe in [value for key, value in container.items() if key.endswith("Probe") and "httpGet" in value]:
            assert probe["httpGet"]["port"] in ports


def test_selectors_and_ports_meet_a_pod(surroundings: list[Manifest]) -> None:
    found = [(template["metadata"]["labels"], container) for template, container in pods(surroundings)]

    def selected(labels: dict[str, str]) -> Manifest:
        (container,) = [container for own, container in found if labels.items() <= own.items()]
        return container

    for service in of_kind(surroundings, "Service").values():
        named = {port["name"] for port in selected(service["spec"]["selector"]).get("ports", ())}
        assert {port["targetPort"] for port in service["spec"]["ports"] if "targetPort" in port} <= named
    for policy in of_kind(surroundings, "NetworkPolicy").values():
        ports = selected(policy["spec"]["podSelector"]["matchLabels"]).get("ports", ())
        known = {port[key] for port in ports for key in ("name", "containerPort")}
        for rule in policy["spec"].get("ingress", ()):
            assert {port["port"] for port in rule.get("ports", ())} <= known
    for budget in of_kind(surroundings, "PodDisruptionBudget").values():
        selected(budget["spec"]["selector"]["matchLabels"])
    for deployment in of_kind(surroundings, "Deployment").values():
        assert (
            selected(deployment["spec"]["selector"]["matchLabels"])
            in deployment["spec"]["template"]["spec"]["containers"]
        )


def test_a_command_has_such_options_and_its_files(
    surroundings: list[Manifest], tmp_path: Path, require_command: Callable[[list[str]], None]
) -> None:
    for template, container in pods(surroundings):
        mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
        paths = [word for word in container["args"] if word.startswith("/")]
        files = config(surroundings, template)
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        local = load_local(tmp_path / "local.yaml") if files else Local()
        for path in [*paths, *map(str, (local.data, local.out, local.vault, local.certificates))]:
            assert path == "None" or any(path == mount or path.startswith(f"{mount}/") for mount in mounts), path
        ports = {port["name"]: port["containerPort"] for port in container.get("ports", ())}
        if "job.yaml" in files:
            assert local.metrics == f"0.0.0.0:{ports['metrics']}"
            load_job(tmp_path / "job.yaml")
        elif container["args"][0] == "score":
            assert local.http == f"0.0.0.0:{ports['applications']}"
            assert local.http_token is not None and str(local.http_token.parent) in mounts
        assert local.listen == (f"0.0.0.0:{ports['peers']}" if "peers" in ports else None)
        require_command(container["args"])


def test_a_pod_may_do_nothing_that_it_need_not(manifests: list[Manifest]) -> None:
    """What the profile "restricted" of Kubernetes asks for, a read-only root, and no token of the cluster."""
    for template, _ in pods(manifests):
        spec, rights = template["spec"], template["spec"]["securityContext"]
        assert rights["runAsNonRoot"] is True
        assert rights["runAsUser"] > 0
        assert rights["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC"}
        for container in [*spec.get("initContainers", ()), *spec["containers"]]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["requests"]["memory"] == container["resources"]["limits"]["memory"]
        kinds = {key for volume in spec["volumes"] for key in volume if key != "name"}
        assert kinds <= {"configMap", "projected", "secret", "persistentVolumeClaim", "emptyDir"}
        for secret in [volume["secret"] for volume in spec["volumes"] if "secret" in volume]:
            assert secret["secretName"] in ("tpsl-certificates", "tpsl-scoring-token")
            assert (secret.keys(), secret["defaultMode"]) == ({"secretName", "defaultMode"}, 0o400)
            assert rights["fsGroup"] == rights["runAsGroup"], "or it cannot read its key"


def test_a_pod_that_is_slow_is_not_killed(kustomized: Callable[[str], list[Manifest]]) -> None:
    for folder in ("training/label", "training/feature", "scoring/label", "scoring/feature"):
        for _, container in pods(kustomized(folder)):
            starting, living = container["startupProbe"], container["livenessProbe"]
            assert starting["failureThreshold"] * starting["periodSeconds"] >= 300
            assert living["failureThreshold"] * living["periodSeconds"] >= 120


def test_the_pod_that_serves_reads_no_true_label_after_training_and_another_one_does(
    kustomized: Callable[[str], list[Manifest]],
) -> None:
    """What depends on true labels takes a pod that no Service selects, and whose end nobody sees."""
    training, evaluation = kustomized("training/label"), kustomized("evaluation/label")
    ((served, serving),), ((evaluated, evaluating),) = pods(training), pods(evaluation)
    assert (serving["args"][:2], evaluating["args"][:2]) == (["label", "serve"], ["label", "evaluate"])
    assert yaml.safe_load(config(training, served)["local.yaml"])["out"] == evaluating["args"][2]
    assert not set(of_kind(training, "Job")) & set(of_kind(evaluation, "Job"))
    assert not of_kind(evaluation, "Service")
    others = [kustomized(folder) for folder in FOLDERS if folder.endswith("/label")]
    for service in [service for one in others for service in of_kind(one, "Service").values()]:
        assert not service["spec"]["selector"].items() <= evaluated["metadata"]["labels"].items()


def test_the_label_partys_pod_is_ready_while_its_port_is_open(kustomized: Callable[[str], list[Manifest]]) -> None:
    ((_, container),) = pods(kustomized("training/label"))
    probe, (port,) = container["readinessProbe"], [one for one in container["ports"] if one["name"] == "peers"]
    assert f":{{{port['containerPort']}:04X}}" in probe["exec"]["command"][-1]
    assert probe["periodSeconds"] * probe["failureThreshold"] <= 5
    (door,) = of_kind(kustomized("training/label"), "Service").keys() - {"tpsl"}
    assert not of_kind(kustomized("training/label"), "Service")[door]["spec"].get("publishNotReadyAddresses")


def test_two_pods_never_share_the_parts_of_a_request(kustomized: Callable[[str], list[Manifest]]) -> None:
    (label,), (feature,) = (of_kind(kustomized(f"scoring/{party}"), "Deployment").values() for party in PARTIES)
    assert (label["spec"]["replicas"], label["spec"]["strategy"]) == (1, {"type": "Recreate"})
    assert feature["spec"]["strategy"] == {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}


def test_every_pod_is_behind_a_policy_that_names_addresses(manifests: list[Manifest]) -> None:
    """All that is not named is closed in both directions, and nothing is open to the world."""
    policies = [policy["spec"] for policy in of_kind(manifests, "NetworkPolicy").values()]
    for template, _ in pods(manifests):
        labels = template["metadata"]["labels"].items()
        own = [policy for policy in policies if policy["podSelector"]["matchLabels"].items() <= labels]
        assert {kind for policy in own for kind in policy["policyTypes"]} == {"Ingress", "Egress"}
    peers = [peer for policy in policies for rule in policy.get("ingress", ()) for peer in rule["from"]]
    peers += [peer for policy in policies for rule in policy.get("egress", ()) for peer in rule["to"]]
    assert all(peers)
    outside = {peer["ipBlock"]["cidr"] for peer in peers if "ipBlock" in peer}
    assert not outside & {"0.0.0.0/0", "::/0"}
    for service in of_kind(manifests, "Service").values():
        if service["spec"].get("type") == "LoadBalancer":
            assert set(service["spec"]["loadBalancerSourceRanges"]) == outside != set()
            assert service["spec"]["externalTrafficPolicy"] == "Local"


def test_one_pod_at_a_time_has_the_vault(kustomized: Callable[[str], list[Manifest]]) -> None:
    claims = of_kind(kustomized("training/label"), "PersistentVolumeClaim")
    assert claims["tpsl-vault"]["spec"]["accessModes"] == ["ReadWriteOncePod"]
    having = {}
    for folder in FOLDERS:
        for workload in of_kind(kustomized(folder), "Job", "Deployment").values():
            used = [one.get("persistentVolumeClaim", {}) for one in workload["spec"]["template"]["spec"]["volumes"]]
            for claim in (claim for claim in used if claim.get("claimName") == "tpsl-vault"):
                having[folder] = (workload["spec"].get("parallelism", 1), claim.get("readOnly", False))
    assert having == {"training/label": (1, False), "backup/label": (1, True)}
    (container,) = [one for _, one in pods(kustomized("training/label"))]
    (home,) = re.findall(r"TPSL_HOME=(\S+)", (ROOT / "deploy" / "docker" / "tpsl.Dockerfile").read_text())
    assert home in [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "vault"]


def test_workers_find_each_other(kustomized: Callable[[str], list[Manifest]]) -> None:
    for folder in (folder for folder in FOLDERS if folder.startswith("training/")):
        manifests = kustomized(folder)
        ((name, job),) = of_kind(manifests, "Job").items()
        spec = job["spec"]["template"]["spec"]
        service = of_kind(manifests, "Service")[spec["subdomain"]]["spec"]
        assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
        env = {one["name"]: one.get("value") for one in spec["containers"][0]["env"]}
        host, port = env["PET_RDZV_ENDPOINT"].split(":")
        assert host == f"{name}-0.{spec['subdomain']}.$(NAMESPACE).svc.cluster.local"
        assert int(port) in [one["port"] for one in service["ports"]]
        assert job["spec"]["completions"] == job["spec"]["parallelism"] == int(env["PET_NNODES"])
        (budget,) = of_kind(manifests, "PodDisruptionBudget").values()
        assert budget["spec"]["minAvailable"] == job["spec"]["parallelism"]


def test_the_page_agrees_on_the_job_of_the_manifests(kustomized: Callable[[str], list[Manifest]]) -> None:
    page = (ROOT / "docs" / "deployment.md").read_text()
    (shown,) = re.findall(r'^```yaml title="job.yaml"\n(.*?)^```', page, re.DOTALL | re.MULTILINE)
    for party in ("label", "feature"):
        agreed = of_kind(kustomized(f"training/{party}"), "ConfigMap")["tpsl-job"]["data"]["job.yaml"]
        assert yaml.safe_load(agreed) == yaml.safe_load(shown)


def test_an_image_is_that_of_its_party_and_of_this_version(kustomized: Callable[[str], list[Manifest]]) -> None:
    for folder in FOLDERS:
        manifests = kustomized(folder)
        (namespace,) = {one["metadata"]["namespace"] for one in manifests if one["kind"] != "Namespace"}
        party = folder.rpartition("/")[2]
        assert namespace == f"tpsl-{party}"
        assert f"FROM common AS {party}\n" in (ROOT / "deploy" / "docker" / "tpsl.Dockerfile").read_text()
        for template, _ in pods(manifests):
            for container in [*template["spec"].get("initContainers", ()), *template["spec"]["containers"]]:
                assert container["image"].endswith(f"/tpsl-{party}:{__version__}")
