"""Flags and `--set` reach the job and the local file, whichever command they are given to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tpsl.cli.settings import Settings
from tpsl.models.halves import precision
from tpsl.training.job import load_job


def test_keys_become_parts_of_job_and_local_file() -> None:
    settings = Settings.from_pairs(
        [("training.epochs", 3), ("local.wait", 5.0), ("training.label_optimizer.name", "sgd"), ("local.bottom", "a:b")]
    )
    assert settings.job == {"training": {"epochs": 3, "label_optimizer": {"name": "sgd"}}}
    assert settings.local == {"wait": 5.0, "bottom": "a:b"}


def test_a_key_beside_the_part_that_holds_it_is_refused() -> None:
    assert Settings.from_pairs([("training.epochs", 3), ("training", {"epochs": 2})]).job == {"training": {"epochs": 2}}
    with pytest.raises(ValueError, match=r"training.pretrain.epochs and training.pretrain cannot both be given"):
        Settings.from_pairs([("training.pretrain", None), ("training.pretrain.epochs", 2)])


def test_values_are_yaml_and_win_over_the_files(tpsl: Any, small_job: Path, tmp_path: Path) -> None:
    local = tmp_path / "label.yaml"
    local.write_text("party: label\nout: file\nmax_epsilon: 1\n")
    options = ["model={bottom: [4], top: []}", "training.averaging=5e-1", "local.out=set", "local.max_epsilon=2"]
    sets = [word for option in options for word in ("--set", option)]
    outcome = tpsl("train", small_job, "--local", local, *sets, f"--set=local.out={tmp_path / 'run'}", "--json")
    assert outcome.status == 0, "the last value of a key counts"
    job = load_job(tmp_path / "run" / "job.yaml")
    assert (job.model.bottom, job.model.top, job.training.averaging) == ((4,), (), 0.5)
    assert job.model.embedding_dim == load_job(small_job).model.embedding_dim


def test_a_local_file_of_one_process_says_whose_it_is(tpsl: Any, small_job: Path, tmp_path: Path) -> None:
    local = tmp_path / "local.yaml"
    local.write_text("wait: 1\n")
    assert f"{local}: names no party" in tpsl("train", small_job, "--local", local).error()


def test_a_gpu_that_is_not_there_is_one_sentence(tpsl: Any, small_job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    sentence = tpsl("train", small_job, "--set=local.device=cuda").error()
    assert sentence == "error: local.device: PyTorch finds no GPU on this machine"


def test_the_local_files_of_one_process_say_where_each_party_keeps_its_data(tpsl: Any, tmp_path: Path) -> None:
    tpsl("research", "data", "synthetic", "--out", tmp_path, "--rows", 200)
    for party in ("feature", "label"):
        (tmp_path / party).mkdir()
        (tmp_path / f"{party}.parquet").rename(tmp_path / party / "own.parquet")
        (tmp_path / party / "local.yaml").write_text(f"party: {party}\ndata: own.parquet\n")
    files = ("--local", tmp_path / "feature" / "local.yaml", "--local", tmp_path / "label" / "local.yaml")
    assert tpsl("train", tmp_path / "job.yaml", *files, "--out", tmp_path / "run", "--json").status == 0
    job = load_job(tmp_path / "run" / "job.yaml")
    assert [file.path.parent.name for file in (*job.data.features, job.data.label)] == ["feature", "label"]
    (tmp_path / "local.yaml").write_text("party: nobody\n")
    refused = tpsl("train", tmp_path / "job.yaml", "--local", tmp_path / "local.yaml").error()
    assert "there is no party 'nobody' in the job, only label, feature" in refused


def test_precision_is_a_setting_of_the_process() -> None:
    try:
        Settings.from_pairs([("local.precision", "bf16")]).load_local(None)
        assert precision() == "bf16"
    finally:
        Settings.from_pairs([]).load_local(None)
    assert precision() == "float32"
