"""The version of a half: both sides note the same one, and every run has its own."""

from pathlib import Path
from typing import Any

import pytest

from tpsl.run.job import Job, make_job
from tpsl.run.one_process import train
from tpsl.run.run_folder import RunError, RunFolder
from tpsl.run.vaults import VaultChoice

DATA = {"source": "synthetic", "rows": 300, "numeric_fields": 2, "categorical_fields": 1}
MODEL = {"embedding_dim": 2, "bottom": [4], "top": [4]}


def job_of(privacy: dict[str, Any] | None = None, **training: Any) -> Job:
    settings = {"batch_size": 64, "epochs": 2, "patience": 0, **training}
    content = {"data": DATA, "privacy": privacy or {"epsilon": 1.0}, "model": MODEL, "training": settings}
    return make_job(content, {}, "test")


@pytest.mark.parametrize(
    "job",
    [
        job_of(),
        job_of(wire="bfloat16"),
        job_of(wire="int8"),
        job_of(validation=0.2, patience=1),
        job_of({"gradients": "none"}, head="local"),
    ],
    ids=["float32", "rounded on the wire", "int8", "early stopping", "no gradients"],
)
def test_both_sides_note_the_same_version(job: Job, tmp_path: Path) -> None:
    train(job, tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    assert run.versions() == {"feature": run.version("feature")}


def test_two_runs_of_one_job_have_different_versions(tmp_path: Path) -> None:
    for name in ("one", "two"):
        train(job_of(), tmp_path / name)
    one, two = (RunFolder(tmp_path / name).version("feature") for name in ("one", "two"))
    assert one != two
    train(job_of(), tmp_path / "again", vault=VaultChoice(tmp_path / "one" / "label" / "vault", scratch=True))
    assert RunFolder(tmp_path / "again").version("feature") == one


def test_a_run_without_versions_is_refused(tmp_path: Path) -> None:
    train(job_of(), tmp_path / "run")
    (tmp_path / "run" / "feature" / "versions.json").unlink()
    with pytest.raises(RunError, match=r"feature/versions\.json: is missing"):
        RunFolder(tmp_path / "run").version("feature")
    (tmp_path / "run" / "label" / "versions.json").write_text("{}")
    with pytest.raises(RunError, match=r"label/versions\.json: is damaged"):
        RunFolder(tmp_path / "run").versions()
