"""Crash drill: `train` is killed with SIGKILL again and again; what comes out is what an unkilled run gives.

The final weights, the metrics and all that crossed the border must be equal to the last bit, and the vault must have
drawn once. Kills come at random times, and before single file operations. TPSL_DRILL_KILLS says how many each (4 by
default).
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tpsl.data.dataset import Dataset, load
from tpsl.run.job import Job, make_job
from tpsl.run.releases import noisy_labels_for
from tpsl.run.run_folder import RunFolder
from tpsl.vault import NO_LIMITS, Vault

KILLS = int(os.environ.get("TPSL_DRILL_KILLS", "4"))

FORKS = multiprocessing.get_context("forkserver")
pytestmark = pytest.mark.usefixtures("forks")  # so that a kill costs no start of torch, and sums have one order

# Before the file operation with the number `deadly` in the run, or before the draft `deadly` gets its name, or never,
# the process kills itself.
WORKER = """
import os, signal, sys
os.environ["TPSL_HOME"] = home
from tpsl.data.dataset import load
from tpsl.run.one_process import train

operations = 0

def count(event, arguments):
    global operations
    if event in EVENTS and any(FOLDER in str(argument) for argument in arguments):
        operations += 1
        if operations == deadly or (event == "os.rename" and str(arguments[0]) == deadly):
            os.kill(os.getpid(), signal.SIGKILL)

EVENTS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree")
FOLDER = str(run)
data = load(job.data)  # true labels do not travel between processes
sys.addaudithook(count)
train(job, run, vault=vault, record_steps=1 << 62, data=data)
if counted is not None:
    counted.write_text(str(operations))
"""


@cache
def small_job() -> Job:
    content = {
        "data": {
            "source": "synthetic",
            "rows": 300,
            "numeric_fields": 2,
            "categorical_fields": 2,
            "largest_vocabulary": 9,
        },
        "privacy": {"mechanism": "laplace", "epsilon": 1.0},
        "model": {"embedding_dim": 3, "bottom": [6], "top": [5]},
        "training": {"batch_size": 50, "epochs": 2, "checkpoint_every": 3, "patience": 0},
    }
    return make_job(content, {}, "test")


@cache
def small_data() -> Dataset:
    return load(small_job().data)


def home_of(vault: Path) -> str:
    """Each vault, also a copy of one, is that of another label party: releases from it are permitted."""
    return f"{vault}-home"


def started(
    run: Path, vault: Path | None, deadly: int | str = 0, counted: Path | None = None, job: Job | None = None
) -> Any:
    vault = vault or run / "label" / "vault"  # named, so that it counts, and other runs may have a copy
    scope = {"job": job or small_job(), "run": run, "vault": vault, "deadly": deadly, "counted": counted}
    scope |= {"home": home_of(vault)}
    process = FORKS.Process(target=exec, args=(WORKER, scope))
    process.start()
    return process


def finished(run: Path, vault: Path | None, **options: Any) -> float:
    """Train until the end; return the seconds that took."""
    begun = time.monotonic()
    process = started(run, vault, **options)
    process.join()
    assert process.exitcode == 0
    return time.monotonic() - begun


def outcome(run: Path, *needed: str) -> dict[str, bytes]:
    """All that must not depend on kills: weights, checkpoints, metrics, transcript, the top half's trajectory."""
    assert RunFolder(run).result() is not None
    kinds = ("*.safetensors", "step-*", "*.jsonl", "*.i64", "*.f32", "transcript.json", "trajectory.json", "job.yaml")
    found = {str(path.relative_to(run)): path.read_bytes() for kind in kinds for path in run.rglob(kind)}
    trained = ("label/top.safetensors", "feature/transcript/gradients.f32")
    assert {"feature/bottom.safetensors", *(needed or trained)} <= set(found)
    assert [path for path in run.rglob(".*") if path.name != ".lock"] == []
    return found


def noisy_labels(vault: Path) -> bytes:
    """The noisy labels of the training records; asking for them draws nothing in a vault that has them."""
    notices: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TPSL_HOME", home_of(vault))
        noisy, _ = noisy_labels_for(small_job(), small_data().label_side, vault, notices.append, NO_LIMITS)
    assert notices == ["all 240 noisy labels were released before, with laplace (ε = 1)"]
    return b"".join(draw.tobytes() for draw in noisy.draws)


def check_vault(vault: Path) -> None:
    with Vault.open(vault) as opened:
        assert opened.verify() == []
        assert [entry.kind for entry in opened.ledger().entries] == ["created", "added", "released"]


@pytest.fixture(scope="module")
def unkilled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A finished run that was never killed, and how long one takes."""
    folder = tmp_path_factory.mktemp("unkilled")
    finished(folder / "warm-up", None)
    seconds = finished(folder / "run", None)
    return folder / "run", seconds


@pytest.mark.drill
def test_kills_at_random_times_change_nothing(tmp_path: Path, unkilled: tuple[Path, float]) -> None:
    reference, seconds = unkilled
    moments = random.Random(0)
    expected, noise = outcome(reference), noisy_labels(reference / "label" / "vault")
    kills, runs = 0, 0
    while kills < KILLS:
        run, vault = tmp_path / f"run-{runs}", tmp_path / f"vault-{runs}"
        shutil.copytree(reference / "label" / "vault", vault)
        runs += 1
        exit_code = None
        while exit_code != 0:
            process = started(run, vault)
            if kills < KILLS:
                process.join(moments.uniform(0, seconds))
                process.kill()
            process.join()
            exit_code = process.exitcode
            assert exit_code in (0, -signal.SIGKILL)
            kills += exit_code != 0
        assert outcome(run) == expected
        assert noisy_labels(vault) == noise
        check_vault(vault)
        shutil.rmtree(run)


@pytest.mark.drill
def test_kills_before_and_during_the_release_draw_once(tmp_path: Path, unkilled: tuple[Path, float]) -> None:
    _, seconds = unkilled
    moments = random.Random(1)
    kills, runs = 0, 0
    while kills < KILLS:
        run = tmp_path / f"run-{runs}"
        runs += 1
        exit_code, seen = None, b""
        while exit_code != 0:
            process = started(run, None)
            if kills < KILLS:
                # Storing and releasing the labels is in the first half of a run.
                process.join(moments.uniform(0, seconds / 2))
                process.kill()
            process.join()
            exit_code = process.exitcode
            assert exit_code in (0, -signal.SIGKILL)
            kills += exit_code != 0
            if (run / "feature" / "transcript").exists():  # from here on somebody has seen the noisy labels
                seen = seen or noisy_labels(run / "label" / "vault")
                assert noisy_labels(run / "label" / "vault") == seen
        check_vault(run / "label" / "vault")
        again = tmp_path / f"again-{runs}"
        shutil.copytree(run / "label" / "vault", tmp_path / f"vault-{runs}")
        finished(again, tmp_path / f"vault-{runs}")
        ours = outcome(run)
        assert ours == outcome(again)


@pytest.mark.drill
def test_a_kill_before_any_file_operation_changes_nothing(tmp_path: Path, unkilled: tuple[Path, float]) -> None:
    reference, _ = unkilled
    expected = outcome(reference)
    vault = tmp_path / "vault"
    shutil.copytree(reference / "label" / "vault", vault)
    finished(tmp_path / "run", vault, counted=tmp_path / "counted")
    operations = int((tmp_path / "counted").read_text())
    assert operations > 100
    for deadly in sorted(random.Random(2).sample(range(1, operations + 1), min(KILLS, operations))):
        run = tmp_path / f"run-{deadly}"
        process = started(run, vault, deadly)
        process.join()
        assert process.exitcode == -signal.SIGKILL
        finished(run, vault)
        assert outcome(run) == expected, f"killed before file operation {deadly}"
        shutil.rmtree(run)
    check_vault(vault)


@pytest.mark.parametrize(
    "draft",
    [
        "feature/.result.json.new",
        "feature/.confirmed.json.new",
        "label/.confirmed.json.new",
        "label/checkpoints/.step-000000005.new",
    ],
)
def test_the_next_start_removes_the_draft_that_a_kill_has_left(
    tmp_path: Path, unkilled: tuple[Path, float], draft: str
) -> None:
    reference, _ = unkilled
    run, vault = tmp_path / "run", tmp_path / "vault"
    shutil.copytree(reference / "label" / "vault", vault)
    process = started(run, vault, deadly=str(run / draft))
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert (run / draft).exists()
    finished(run, vault)
    assert outcome(run) == outcome(reference)
    assert RunFolder(run).party_result("feature") is not None


def test_a_kill_between_the_release_of_a_statistic_and_its_head_draws_nothing_twice(tmp_path: Path) -> None:
    content = small_job().model_dump(mode="json", exclude_none=True, exclude={"method"})
    job = make_job(content | {"statistic": {"share_codes": True}}, {"training": {"validation": 0.2}}, "test")
    run, vault = tmp_path / "run", tmp_path / "vault"
    process = started(run, vault, deadly=str(run / "label" / ".statistic_head.safetensors.new"), job=job)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    finished(run, vault, job=job)
    finished(tmp_path / "again", vault, job=job)
    head = "label/statistic_head.safetensors"
    assert outcome(run, head) == outcome(tmp_path / "again", head)
    with Vault.open(vault) as opened:
        assert opened.verify() == []
        assert [entry.kind for entry in opened.ledger().entries] == ["created", "added", "released", "statistic"]
