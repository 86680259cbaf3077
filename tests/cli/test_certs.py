"""`tpsl certs`: who gets which folder, and what running it again does."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tpsl.net.certificates import Certificates


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job of two feature parties."""
    features = [{"path": f"{party}.csv", "party": party, "numeric": ["x"]} for party in ("airport", "银行")]
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump({"data": {"source": "table", "features": features, "label": {"path": "l.csv"}}}))
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_every_party_of_the_job_gets_a_folder_and_a_sentence(tpsl: Any, job: Path, tmp_path: Path) -> None:
    out = tmp_path / "certs"
    said = tpsl("certs", job, "--out", out)
    facts = said.facts()
    assert said.stdout.splitlines()[0] == "Made certificates for label, airport, 银行"
    assert f"send the folder {out}/airport to airport over a channel you trust" in facts["airport"]
    assert f"send the folder {out}/银行 to 银行 over a channel you trust" in facts["银行"]
    assert f"send the folder {out}/label to the label party over a channel you trust" in facts["label"]
    kept_away = f"keep {out}/authority offline or delete it: anyone who has it can pose as any party"
    assert facts["authority"] == kept_away
    assert facts["train as airport"] == f"tpsl feature join {job} --certs {out}/airport --connect HOST:7443"
    assert sorted(folder.name for folder in out.iterdir()) == ["airport", "authority", "label", "银行"]
    for party in ("airport", "label", "银行"):
        assert Certificates.load(out / party).party == party
        assert "authority" not in contents(out / party)
    assert (out / "authority" / "key.pem").read_bytes() not in contents(out / "airport").values()


def test_running_it_again_adds_what_is_missing_and_changes_nothing_else(tpsl: Any, job: Path, tmp_path: Path) -> None:
    out = tmp_path / "certs"
    first = tpsl("certs", "--party", "label", "--party", "airport", "--out", out, "--days", 30, "--json").json()
    assert [(p["party"], p["new"]) for p in first["parties"]] == [("label", True), ("airport", True)]
    assert first["authority"] == str(out / "authority")
    before = contents(out)
    again = tpsl("certs", job, "--party", "airport", "--party", "shop", "--out", out, "--json").json()
    assert [(p["party"], p["new"]) for p in again["parties"]] == [
        ("label", False),
        ("airport", False),
        ("银行", True),
        ("shop", True),
    ]
    assert again["parties"][0] == {**first["parties"][0], "new": False}
    assert before.items() <= contents(out).items()
    assert f"{out}/shop was there already" in tpsl("certs", "--party", "shop", "--out", out).facts()["shop"]


def test_a_new_authority_is_not_made_behind_the_back_of_old_certificates(tpsl: Any, tmp_path: Path) -> None:
    out = tmp_path / "certs"
    tpsl("certs", "--party", "label", "--out", out)
    shutil.rmtree(out / "authority")
    before = contents(out)
    sentence = tpsl("certs", "--party", "airport", "--out", out).error()
    assert f"{out}/authority: is gone" in sentence and f"{out}/label" in sentence
    assert contents(out) == before


def test_what_a_killed_command_left_is_in_nobodys_way(tpsl: Any, tmp_path: Path) -> None:
    out = tmp_path / "certs"
    tpsl("certs", "--party", "label", "--out", out)
    for name in ("authority", "label"):
        (out / name).rename(out / f".{name}.k1ll3d")
    made = tpsl("certs", "--party", "label", "--out", out, "--json").json()
    assert [(p["party"], p["new"]) for p in made["parties"]] == [("label", True)]


def test_folders_that_do_not_fit_are_named(tpsl: Any, tmp_path: Path) -> None:
    out, other = tmp_path / "certs", tmp_path / "other"
    tpsl("certs", "--party", "airport", "--out", out)
    tpsl("certs", "--party", "bank", "--out", other)
    shutil.copytree(out / "airport", out / "shop")
    assert (
        "shop: holds the certificate of 'airport', not of 'shop'"
        in tpsl("certs", "--party", "shop", "--out", out).error()
    )
    shutil.copytree(other / "bank", out / "bank")
    assert "bank/ca.pem: is another authority than" in tpsl("certs", "--party", "bank", "--out", out).error()
    (out / "airport" / "cert.pem").unlink()
    assert "airport/cert.pem: cannot be read" in tpsl("certs", "--party", "airport", "--out", out).error()


@pytest.mark.parametrize(
    ("party", "reason"),
    [
        ("authority", "a party cannot be named 'authority'"),
        ("../label", "a party cannot be named '../label'"),
        ("x" * 65, "in at most 64 bytes"),
    ],
)
def test_a_name_that_cannot_be_is_refused_before_anything_is_made(
    tpsl: Any, tmp_path: Path, party: str, reason: str
) -> None:
    assert reason in tpsl("certs", "--party", "label", "--party", party, "--out", tmp_path / "certs").error()
    assert not (tmp_path / "certs").exists()


def test_without_parties_there_is_nothing_to_do(tpsl: Any, tmp_path: Path) -> None:
    assert "a job file, or a --party" in tpsl("certs", "--out", tmp_path / "certs").error()
    assert "no.yaml: cannot be read" in tpsl("certs", tmp_path / "no.yaml", "--out", tmp_path / "certs").error()
    assert "--days" in tpsl("certs", "--party", "label", "--days", 0).error(2)
    assert not (tmp_path / "certs").exists()
