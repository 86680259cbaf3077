"""`tpsl train`: quick flags, job files, and what a run promises about itself."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tpsl.mechanisms import laplace
from tpsl.report.words import LARGE_DELTA_TEXT
from tpsl.run.job import load_job
from tpsl.run.run_folder import RunFolder
from tpsl.run.transcript import Transcript
from tpsl.vault import Vault, the_vault

PROMISED = {
    "run",
    "mechanism",
    "estimator",
    "epsilon",
    "delta",
    "private",
    "test_auc",
    "test_log_loss",
    "epochs",
    "samples_per_second",
}


def contents(folder: Path, *patterns: str) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for pattern in patterns
        for path in sorted(folder.rglob(pattern))
        if path.is_file()
    }


def test_the_quick_flags_on_flights_print_one_json_object_and_nothing_else(programs: Any, tmp_path: Path) -> None:
    options = "--data flights --set data.rows=6000 --epsilon 1 --epochs 1 --json"
    options += " --set privacy.mechanism=laplace --set privacy.estimator=linear"
    done = programs(tmp_path, "train", *options.split(), "--out", tmp_path / "run").outcome()
    result = done.json()
    assert set(result) >= PROMISED
    assert result["run"] == str(tmp_path / "run")
    assert (result["mechanism"], result["estimator"], result["epochs"]) == ("laplace", "linear", 1)
    assert result["epsilon"] == laplace(1.0).epsilon
    assert result["delta"] == 0.0
    assert result["private"] is True
    assert (result["train_records"], result["test_records"]) == (4800, 1200)
    assert 0 <= result["test_auc_low"] < result["test_auc"] < result["test_auc_high"] <= 1
    assert result["test_log_loss"] > 0
    assert result["samples_per_second"] > 0
    assert "storing 4,800 training labels" in done.stderr
    assert "4,800 noisy labels released with laplace" in done.stderr


def test_the_quick_flags_on_synthetic_data_for_people(tpsl: Any, tmp_path: Path) -> None:
    options = [
        "--set=data.rows=5000",
        "--set=privacy.mechanism=none",
        "--set=local.not_private=true",
        "--set=training.batch_size=200",
    ]
    for half in ("feature", "label"):
        options += [f"--set=training.{half}_optimizer={{name: adam, learning_rate: 0.003}}"]
    shown = tpsl("train", "--data", "synthetic", *options, "--out", tmp_path / "run")
    facts = shown.facts()
    assert facts["run"] == str(tmp_path / "run")
    assert facts["guarantee"] == "NOT PRIVATE (ε = ∞)"
    assert float(facts["test AUC"].partition(",")[0]) > 0.6
    assert facts["see it as a page"] == f"tpsl report {tmp_path / 'run'}"
    assert load_job(tmp_path / "run" / "job.yaml").training.label_optimizer.learning_rate == 0.003


def test_a_run_without_out_gets_a_folder_of_its_own(
    tpsl: Any, small_job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = Path(tpsl("train", small_job, "--json").json()["run"])
    assert run.parent == Path("runs")
    assert (tmp_path / run / "result.json").exists()


def test_seeded_noise_repeats_to_the_last_bit_and_is_called_not_private(
    tpsl: Any, small_job: Path, tmp_path: Path
) -> None:
    options = ("--set=training.seed=5", "--set=privacy.noise_seed=5", "--set=local.not_private=true")
    for name in ("a", "b"):
        seeded = tpsl("train", small_job, *options, "--out", tmp_path / name / "run", "--json")
        assert seeded.json()["private"] is False
        assert "warning: the noise is seeded: this run is NOT PRIVATE" in seeded.stderr
    assert (tmp_path / "a" / "run" / "label" / "top.safetensors").exists()
    weights, checkpoints = contents(tmp_path / "a", "*.safetensors"), contents(tmp_path / "a", "step-*")
    assert len(weights) == 3 and len(checkpoints) >= 2
    assert weights == contents(tmp_path / "b", "*.safetensors")
    assert checkpoints == contents(tmp_path / "b", "step-*")
    shown = tpsl("train", small_job, *options, "--out", tmp_path / "a" / "run")
    assert "NOT PRIVATE (ε = 2)" in shown.stdout


def test_a_seed_fixes_batches_and_initial_weights_but_never_the_noise(
    tpsl: Any, small_job: Path, tmp_path: Path
) -> None:
    steps, drawn = [], []
    for name in ("a", "b"):
        run, vault = tmp_path / name, tmp_path / name / "label" / "vault"
        options = ("--set=training.seed=5", "--set=local.record_transcript=true")
        result = tpsl("train", small_job, *options, "--out", run, "--json").json()
        assert result["private"] is True
        steps.append(list(Transcript(run / "feature" / "transcript")))
        with Vault.open(vault) as opened:
            (entry,) = [entry for entry in opened.ledger().entries if entry.kind == "released"]
            drawn.append(entry.details["outcomes_digest"])
    ours, theirs = steps
    assert len(ours) == len(theirs) == 7
    assert all(np.array_equal(a.rows, b.rows) for a, b in zip(ours, theirs, strict=True))
    assert np.array_equal(ours[0].embeddings, theirs[0].embeddings)
    assert not np.array_equal(ours[0].gradients, theirs[0].gradients)
    assert drawn[0] != drawn[1]
    assert contents(tmp_path / "a", "top.safetensors") != contents(tmp_path / "b", "top.safetensors")


def test_in_the_natural_layout_the_label_party_has_a_bottom_half(tpsl: Any, tmp_path: Path) -> None:
    options = ["--data", "flights", "--set=data.rows=2000", "--epochs", 1, "--set=method=network"]
    options += ["--set=data.layout=natural", "--set=data.split=chronological"]
    assert tpsl("train", *options, "--out", tmp_path / "run", "--json").json()["mechanism"] == "discrete"
    weights = {str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").glob("*/*.safetensors")}
    assert weights == {"feature/bottom.safetensors", "label/bottom.safetensors", "label/top.safetensors"}


def test_options_override_single_fields_of_the_job_file(tpsl: Any, small_job: Path, tmp_path: Path) -> None:
    options = "--set data.rows=300 --epsilon 1.5 --set privacy.estimator=posterior --epochs 2 --set training.seed=9"
    options += " --set training.batch_size=64"
    options += " --set training.feature_optimizer.name=sgd --set training.label_optimizer.name=sgd"
    result = tpsl("train", small_job, *options.split(), "--out", tmp_path / "run", "--json").json()
    assert (result["epsilon"], result["estimator"], result["epochs"]) == (1.5, "posterior", 2)
    assert result["train_records"] + result["test_records"] == 300
    job, run_job = load_job(small_job), load_job(tmp_path / "run" / "job.yaml")
    assert run_job.model == job.model
    assert run_job.privacy.mechanism == "laplace"
    assert run_job.data.categorical_fields == 2
    assert (run_job.training.batch_size, run_job.training.seed) == (64, 9)
    assert run_job.training.feature_optimizer.name == run_job.training.label_optimizer.name == "sgd"


def test_a_finished_run_is_only_read_again(tpsl: Any, small_job: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = tpsl("train", small_job, "--out", run, "--json").json()
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
    again = tpsl("train", small_job, "--out", run, "--json")
    assert again.json() == first
    assert f"{run} is a finished run; nothing to do" in again.stderr
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_two_runs_on_one_vault_share_one_release(tpsl: Any, small_job: Path, tmp_path: Path) -> None:
    options = ("--vault", tmp_path / "vault", "--json")
    first = tpsl("train", small_job, "--out", tmp_path / "a", "--epochs", 2, *options)
    second = tpsl("train", small_job, "--out", tmp_path / "b", "--set=training.seed=1", *options)
    assert "320 noisy labels released with laplace (ε = 2)\n" in first.stderr
    assert "all 320 noisy labels were released before, with laplace (ε = 2)\n" in second.stderr
    ledger = tpsl("vault", "ledger", tmp_path / "vault", "--json").json()
    assert [entry["kind"] for entry in ledger["entries"]] == ["created", "added", "released"]
    assert first.json()["total_epsilon"] == second.json()["total_epsilon"] == ledger["epsilon_per_record"]
    assert tpsl("vault", "verify", tmp_path / "vault").status == 0
    sentence = tpsl("train", small_job, "--out", tmp_path / "c", "--epsilon", 1, *options).error()
    assert "320" in sentence
    assert "compose" in sentence


def test_the_number_that_people_see_first_is_what_was_spent_in_all(
    tpsl: Any, table_job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Train at ε = 5, compose ε = 1, train at 1: the records have spent 6, whatever the run's own share is."""
    monkeypatch.chdir(tmp_path)
    command = ("train", table_job, "--set=privacy.mechanism=discrete")
    assert tpsl(*command, "--epsilon", 5, "--out", "five", "--json").json()["total_epsilon"] == 5.0
    vault = "table-label"
    options = ("--set=privacy.mechanism=discrete", "--epsilon", 1)
    assert "local.compose=true" in tpsl("vault", "release", vault, *options).error()
    assert "local.compose=true" in tpsl(*command, "--epsilon", 1, "--out", "one").error()
    assert tpsl("vault", "release", vault, *options, "--set=local.compose=true").status == 0
    shown = tpsl(*command, "--epsilon", 1, "--out", "one")
    assert shown.facts()["guarantee"] == "ε = 6 in all (this run's release: ε = 1)"
    result = tpsl(*command, "--epsilon", 1, "--out", "one", "--json").json()
    numbers = [(name, value) for name, value in result.items() if "epsilon" in name]
    assert numbers == [("total_epsilon", 6.0), ("epsilon", 1.0), ("epsilon_all_labels", None)]
    # The first run is finished and only read again: its records have spent more since.
    again = tpsl(*command, "--epsilon", 5, "--out", "five", "--json").json()
    assert (again["total_epsilon"], again["epsilon"]) == (6.0, 5.0)
    reported = tpsl("report", "five", "one", "--json").json()
    assert [run["total_epsilon"] for run in reported["runs"]] == [6.0, 6.0]
    assert [run["gone_vaults"] for run in reported["runs"]] == [0, 0]


def test_a_second_folder_releases_nothing_a_second_vault_is_refused_and_a_deleted_one_is_counted(
    tpsl: Any, table_job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        assert tpsl("train", table_job, "--out", name, "--set=training.seed=1", "--json").json()["total_epsilon"] == 2.0
    kinds = [entry["kind"] for entry in tpsl("vault", "ledger", "table-label", "--json").json()["entries"]]
    assert kinds == ["created", "added", "released"]
    second = ("train", table_job, "--out", "c", "--vault", tmp_path / "second" / "vault")
    for options in ((), ("--set=local.compose=true",)):
        assert str(the_vault()) in tpsl(*second, *options).error()
    shutil.rmtree(the_vault())
    again = tpsl("train", table_job, "--out", "c", "--json").json()
    assert (again["total_epsilon"], again["epsilon"], again["gone_vaults"]) == (4.0, 2.0, 1)
    sentence = "at least ε = 4: 1 vault that runs name is gone"
    assert tpsl("train", table_job, "--out", "c").facts()["of the vault"] == sentence
    assert f"a, c: {sentence}" in " ".join(tpsl("report", "a", "c").stdout.split())
    for run in tpsl("report", "a", "c", "--json").json()["runs"]:
        assert (run["total_epsilon"], run["gone_vaults"], run["apart"]) == (4.0, 1, None)


@pytest.mark.parametrize(
    ("options", "permission"),
    [
        ("--set privacy.mechanism=none", "--set=local.not_private=true"),
        ("--set privacy.noise_seed=0", "--set=local.not_private=true"),
        ("--epsilon 11", "--set local.max_epsilon=12"),
        ("--epsilon 6 --set privacy.draws=2", "--set local.max_epsilon=12"),
    ],
)
def test_what_the_label_party_does_not_permit_is_refused(
    tpsl: Any, small_job: Path, tmp_path: Path, options: str, permission: str
) -> None:
    command = ("train", small_job, *options.split(), "--out", tmp_path / "run")
    assert permission.split("=")[-2].split()[-1] in tpsl(*command).error()
    assert not (tmp_path / "run" / "label" / "vault").exists()
    assert tpsl(*command, *permission.split()).status == 0


@pytest.mark.parametrize(
    ("number", "status", "first_word"), [(signal.SIGINT, 130, ""), (signal.SIGTERM, 143, "terminated; ")]
)
def test_an_interrupted_run_says_how_to_go_on(
    programs: Any, small_job: Path, tmp_path: Path, number: int, status: int, first_word: str
) -> None:
    content = yaml.safe_load(small_job.read_text())
    content["training"] |= {"epochs": 10_000, "checkpoint_every": 5}
    small_job.write_text(yaml.safe_dump(content))
    program = programs(tmp_path, "train", small_job, "--out", tmp_path / "run", "--json")
    patience = time.monotonic() + 120
    while not list((tmp_path / "run" / "label").glob("checkpoints/step-*")) and program.is_running():
        assert time.monotonic() < patience
        time.sleep(0.02)
    program.signal(number)
    ended = program.outcome()
    assert ended.status == status, ended.stderr
    assert ended.code(status) == {130: "interrupted", 143: "terminated"}[status]
    advice = f"{first_word}the same command with --out {tmp_path / 'run'} goes on where it stopped"
    assert advice in ended.stderr.splitlines()
    assert "Traceback" not in ended.stderr


def test_the_auc_of_many_classes_has_an_interval(tpsl: Any, small_job: Path, tmp_path: Path) -> None:
    content = yaml.safe_load(small_job.read_text())
    content["data"]["classes"] = 4
    small_job.write_text(yaml.safe_dump(content))
    shown = tpsl("train", small_job, "--out", tmp_path / "run")
    assert "nan" not in shown.stdout
    low, value, high = (
        getattr(RunFolder(tmp_path / "run").result(), f"test_auc{end}") for end in ("_low", "", "_high")
    )
    assert 0 < low < value < high < 1
    assert shown.facts()["test AUC"] == f"{value:.4f}, 95 % interval {low:.4f} to {high:.4f}"


def test_an_auc_that_does_not_exist_is_a_dash(tpsl: Any, small_job: Path, tmp_path: Path) -> None:
    content = yaml.safe_load(small_job.read_text())
    content["data"]["positive_rate"] = 1e-4  # all test records have one label
    small_job.write_text(yaml.safe_dump(content))
    shown = tpsl("train", small_job, "--out", tmp_path / "run")
    assert "nan" not in shown.stdout
    assert shown.facts()["test AUC"] == "– (it needs test records of two classes)"


def test_a_training_leaves_curves_in_the_label_partys_folder_and_nowhere_else(
    tpsl: Any, small_job: Path, tmp_path: Path
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tmp_path / "run"
    result = tpsl("train", small_job, "--out", run, "--json").json()
    events = EventAccumulator(str(run / "label" / "tensorboard")).Reload()
    (point,) = events.Scalars("test_auc")
    assert (point.step, point.value) == (result["steps"], pytest.approx(result["test_auc"], rel=1e-6))
    assert [path.parent.parent.name for path in run.rglob("events.out.*")] == ["label"]
    assert tpsl("train", small_job, "--out", tmp_path / "none", "--set=local.log=none", "--json").status == 0
    assert list((tmp_path / "none").rglob("events.out.*")) == []


def test_a_logger_that_cannot_be_had_is_one_sentence(
    tpsl: Any, small_job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    sentence = tpsl("train", small_job, "--out", tmp_path / "run", "--set=local.log=mlflow=http://127.0.0.1:1").error()
    assert sentence == "error: MLflow is not installed: `pip install 'tpsl[mlflow]'` gets it"
    assert not (tmp_path / "run").exists()


HALF = ("--set=privacy.mechanism=gaussian", "--set=privacy.sigma=1", "--set=privacy.delta=0.5")


def test_a_run_with_a_large_delta_is_refused_unless_permitted_and_is_not_simply_called_private(
    tpsl: Any, small_job: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    sentence = tpsl("train", small_job, *HALF, "--out", run).error()
    assert "a record would have δ = 0.5 in all, more than 1/records = 0.00313 for 320 records" in sentence
    assert not (run / "label" / "vault").exists()
    shown = tpsl("train", small_job, *HALF, "--set=local.max_delta=0.5", "--out", run)
    assert shown.status == 0, shown.stderr
    assert shown.facts()["guarantee"].endswith(f", δ = 0.5. {LARGE_DELTA_TEXT}")


def test_the_label_party_refuses_before_it_listens(tpsl: Any, small_job: Path, tmp_path: Path) -> None:
    job = yaml.safe_load(small_job.read_text())
    job["privacy"] = {"mechanism": "gaussian", "sigma": 1.0, "delta": 0.5}
    small_job.write_text(yaml.safe_dump(job))
    serve = (
        "label",
        "serve",
        small_job,
        "--listen",
        "127.0.0.1:0",
        "--set=local.insecure_loopback=true",
        "--out",
        tmp_path / "run",
    )
    refused = tpsl(*serve, "--set=local.wait=0")
    assert "δ = 0.5 in all, more than 1/records" in refused.error()
    assert "listening" not in refused.stderr
    (tmp_path / "local.yaml").write_text("max_delta: 0.5\nwait: 0.0\n")
    waited = tpsl(*serve, "--local", tmp_path / "local.yaml").error()
    assert "δ" not in waited
    assert "feature" in waited  # nobody came


@pytest.fixture
def twins(tmp_path: Path) -> Path:
    """A job whose table has one record under two ids."""
    ids = [*(f"r{row}" for row in range(60)), "R7"]
    (tmp_path / "shop.csv").write_text("id,pages\n" + "".join(f"{id},{at % 7}\n" for at, id in enumerate(ids)))
    (tmp_path / "bank.csv").write_text("id,label\n" + "".join(f"{id},{at % 2}\n" for at, id in enumerate(ids)))
    job = {
        "data": {
            "source": "table",
            "features": [{"path": "shop.csv", "numeric": ["pages"]}],
            "label": {"path": "bank.csv"},
            "test_fraction": 0.02,
        },
        "model": {"embedding_dim": 2, "bottom": [4], "top": [4]},
        "training": {"batch_size": 20, "epochs": 1},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    return tmp_path / "job.yaml"


def test_a_run_warns_of_near_duplicate_ids_when_it_stores_them(tpsl: Any, twins: Path, tmp_path: Path) -> None:
    sentence = "1 id is a near-duplicate of an earlier one, for example "
    first = tpsl("train", twins, "--out", tmp_path / "run")
    assert (first.status, first.stderr.count(sentence)) == (0, 1), first.stderr
    again = tpsl("train", twins, "--out", tmp_path / "again")
    assert (again.status, again.stderr.count(sentence)) == (0, 0), again.stderr
