"""What `kubectl kustomize` makes of the folders in deploy/kubernetes, without kubectl: as much of it as they use."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tpsl.cli.main import main

DEPLOY = Path(__file__).parents[2] / "deploy"
Manifest = dict[str, Any]
MERGED_BY = ("mountPath", "containerPort", "name")
"""By which key Kubernetes tells the items of a list apart; the first that an item has."""


def build(folder: Path) -> list[Manifest]:
    """Return the manifests of a kustomization; a key that is not known here is an error."""
    content = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert (content.pop("apiVersion"), content.pop("kind")) == ("kustomize.config.k8s.io/v1beta1", "Kustomization")
    content.pop("generatorOptions", None)  # names have no suffix here, in any case
    made: list[Manifest] = []
    for name in content.pop("resources"):
        path = folder / name
        made += build(path) if path.is_dir() else yaml.safe_load_all(path.read_text())
    for generator in content.pop("configMapGenerator", ()):
        files = {name: (folder / name).read_text() for name in generator.pop("files")}
        made.append(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": generator.pop("name")}, "data": files}
        )
        assert not generator
    for patch in content.pop("patches", ()):
        for change in yaml.safe_load_all((folder / patch["path"]).read_text()):
            (target,) = [one for one in made if identity(one) == identity(change)]
            made[made.index(target)] = merged(target, change)
    for image in content.pop("images", ()):
        for container in [container for one in made for container in containers(one)]:
            if container["image"] == image["name"]:
                container["image"] = f"{image['newName']}:{image['newTag']}"
    namespace = content.pop("namespace", None)
    for manifest in made:
        if namespace and manifest["kind"] != "Namespace":
            manifest["metadata"]["namespace"] = namespace
    assert not content, f"{folder}: {', '.join(content)} cannot be built here"
    return made


def identity(manifest: Manifest) -> tuple[str, str]:
    """Return kind and name."""
    return manifest["kind"], manifest["metadata"]["name"]


def containers(manifest: Manifest) -> list[Manifest]:
    """Return the containers of what makes pods."""
    spec = manifest.get("spec", {}).get("template", {}).get("spec", {})
    return [*spec.get("initContainers", ()), *spec.get("containers", ())]


def merged(value: Any, change: Any) -> Any:
    """Return a strategic merge: mappings key by key, lists of things with a name thing by thing, all else replaced."""
    if isinstance(value, dict) and isinstance(change, dict):
        return {key: merged(value.get(key), change[key]) if key in change else value[key] for key in value | change}
    if isinstance(value, list) and isinstance(change, list) and isinstance(change[0], dict):
        key = next(key for key in MERGED_BY if key in change[0])
        items = {item[key]: item for item in value}
        return list((items | {item[key]: merged(items.get(item[key]), item) for item in change}).values())
    return change


@pytest.fixture(scope="session")
def kustomized() -> Callable[[str], list[Manifest]]:
    """Build a folder of deploy/kubernetes, as "training/label"."""
    return lambda name: build(DEPLOY / "kubernetes" / name)


@pytest.fixture
def require_command(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], None]:
    """Raise unless `tpsl` has such a command with such options; nothing is run."""

    def require(words: list[str]) -> None:
        monkeypatch.setattr(sys, "argv", ["tpsl", *words, "--help"])
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code, words

    return require
