"""Scratch runs: any ε, also none, with a vault that counts in no total, and nothing of them leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tpsl as package
from tpsl.report.hero import hero
from tpsl.report.watching import WatchedFolder
from tpsl.run.job import load_job
from tpsl.run.run_folder import RunFolder
from tpsl.vault import Vault, the_vault

NO_NOISE = ("--set=privacy.mechanism=none",)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_cost_of_noise_is_measured_and_no_total_knows_of_it(tpsl: Any, table_job: Path, tmp_path: Path) -> None:
    assert tpsl("train", table_job, "--out", "runs/first").status == 0
    (tmp_path / "label.yaml").write_text("party: label\nmax_epsilon: 2\n")
    plain = ("train", table_job, *NO_NOISE, "--local", "label.yaml", "--out", "runs/plain")
    assert "--scratch" in tpsl(*plain).error()  # the free way is named first
    assert "local.not_private=true" in tpsl(*plain, "--set=local.compose=true").error()
    shown = tpsl(*plain, "--scratch")
    assert shown.facts()["vault"] == "runs/plain/label/vault/table-label"
    assert "nothing of it may leave" in shown.facts()["scratch run"]
    assert tpsl("train", table_job, "--epsilon", 20, "--scratch", "--out", "runs/twenty").status == 0
    first, no_noise, twenty = tpsl("report", "runs/first", "runs/plain", "runs/twenty", "--json").json()["runs"]
    assert [run["gone_vaults"] for run in (first, no_noise, twenty)] == [0, 0, 0]
    assert [run["total_epsilon"] for run in (first, no_noise, twenty)] == [2.0, None, pytest.approx(20)]
    views = {view.name: view for view in WatchedFolder(tmp_path / "runs").snapshot().views}
    assert {name: view.scratch for name, view in views.items()} == {"first": False, "plain": True, "twenty": True}
    for name, view in views.items():
        promise = hero(view, list(views.values())).cards[0]
        assert any("scratch run" in note.text for note in promise.notes) == (name != "first")
    (label,) = tpsl("vault", "ledger", "--json").json()["labels"]
    assert label["epsilon_per_record"] == 2.0
    assert (
        tpsl("train", table_job, "--set=training.seed=1", "--out", "runs/second", "--json").json()["total_epsilon"]
        == 2.0
    )


def test_a_scratch_run_goes_on_as_one_and_no_other_run_takes_its_vault(tpsl: Any, table_job: Path) -> None:
    scratch = ("train", table_job, "--scratch", "--out", "runs/try")
    assert tpsl(*scratch).status == 0
    (RunFolder(Path("runs/try")).path / "result.json").unlink()
    assert (
        "runs/try/label/vault/table-label is that of a scratch run: add --scratch"
        in tpsl(*scratch[:2], *scratch[3:]).error()
    )
    assert tpsl(*scratch).status == 0
    other = ("train", table_job, "--vault", "runs/try/label/vault", "--out", "runs/other")
    assert "is that of a scratch run" in tpsl(*other).error()
    assert tpsl("train", table_job, "--out", "runs/first").status == 0
    (Path("runs/first") / "result.json").unlink()
    assert "counts in totals: leave --scratch out" in tpsl(*scratch[:3], "--out", "runs/first").error()


def test_nothing_of_a_scratch_run_leaves(tpsl: Any, table_job: Path, certificates: Path) -> None:
    assert tpsl("train", table_job, "--scratch", "--out", "run").status == 0
    vault = Path("run/label/vault")
    for command in (
        ("export", "run", "--party", "label", "--out", "out"),
        ("export", "run", "--party", "feature", "--out", "out"),
        ("vault", "release", vault, "--set=privacy.mechanism=laplace", "--epsilon", 2, "--out", "out"),
        ("vault", "statement", vault, "--certs", certificates / "label", "--out", "out"),
        ("label", "serve", table_job, "--listen", "127.0.0.1:0", "--set=local.insecure_loopback=true", "--out", "run"),
        (
            "feature",
            "join",
            table_job,
            "--connect",
            "127.0.0.1:1",
            "--set=local.insecure_loopback=true",
            "--out",
            "run",
        ),
    ):
        sentence = tpsl(*command).error()
        assert "scratch run" in sentence and "nothing" in sentence and "may leave" in sentence, command
        assert not Path("out").exists(), command
    for command in (("label", "serve"), ("feature", "join")):
        assert "--scratch" not in tpsl(*command, "--help").stdout


def test_labels_that_come_with_tpsl_are_public_unless_a_vault_is_named(tpsl: Any, small_job: Path) -> None:
    for name in ("a", "b"):
        assert tpsl("train", small_job, "--epsilon", 2, "--out", name, "--json").json()["total_epsilon"] == 2.0
    assert [run["gone_vaults"] for run in tpsl("report", "a", "b", "--json").json()["runs"]] == [0, 0]
    assert RunFolder(Path("a")).is_scratch and not the_vault().exists()
    assert tpsl("train", small_job, "--vault", "named", "--out", "c").status == 0
    assert not RunFolder(Path("c")).is_scratch
    with Vault.open(the_vault()) as counted, Vault.open(Path("a/label/vault")) as scratch:
        assert (counted.scratch, scratch.scratch) == (False, True)
        assert scratch.verify() == []


def test_python_has_it_too(table_job: Path) -> None:
    job = load_job(table_job)
    strong = job.model_copy(update={"privacy": job.privacy.model_copy(update={"epsilon": 20.0})})
    with pytest.raises(ValueError, match="max_epsilon"):
        package.train(strong, "run", progress=False)
    run = package.train(strong, "run", scratch=True, progress=False)
    assert run.guarantee == "ε = 20"
    assert RunFolder(run.path).is_scratch and not the_vault().exists()
