"""Every command, given a file that is missing, a broken run or one of an old format, says so in one clear sentence."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tpsl.run.job import make_job
from tpsl.run.one_process import train

RUN_COMMANDS = ("attack", "audit", "report", "research figures", "ui")
"""The commands that take a run; the others take a job, data or a vault."""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that make a folder of runs make it here."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    content = {
        "data": {"source": "synthetic", "rows": 200, "numeric_fields": 2, "categorical_fields": 2},
        "model": {"embedding_dim": 2, "bottom": [4], "top": [4]},
        "training": {"epochs": 1, "batch_size": 80},
    }
    run = tmp_path_factory.mktemp("runs") / "finished"
    train(make_job(content, {}, "test"), run, record_steps=2)
    return run


def old_format(run: Path) -> None:
    """As a version wrote it that knew fewer fields."""
    content = json.loads((run / "result.json").read_text())
    del content["kept_epoch"]
    (run / "result.json").write_text(json.dumps(content))


def newer_job(run: Path) -> None:
    (run / "job.yaml").write_text((run / "job.yaml").read_text() + "\nfuture: {field: 1}\n")


def no_json(run: Path) -> None:
    (run / "result.json").write_text("{")


def no_yaml(run: Path) -> None:
    (run / "job.yaml").write_text("data: {")


def damaged_metrics(run: Path) -> None:
    (run / "label" / "metrics.jsonl").write_text("not json\n")


def odd_metrics(run: Path) -> None:
    (run / "label" / "metrics.jsonl").write_text('{"epoch": "one", "step": []}\n')


BREAK: dict[str, tuple[Callable[[Path], None], str, tuple[str, ...]]] = {
    "old format": (old_format, "result.json: is damaged (kept_epoch", ("report", "research figures")),
    "newer job": (newer_job, "future", ("attack", "audit", "report", "research figures")),
    "no JSON": (no_json, "result.json: is damaged", ("report", "research figures")),
    "no YAML": (no_yaml, "is not YAML", ("attack", "audit", "report", "research figures")),
    "odd metrics": (odd_metrics, "metrics.jsonl, line 1: is damaged", ("report", "research figures")),
    "damaged metrics": (damaged_metrics, "metrics.jsonl, line 1: is damaged", ("report", "research figures")),
}


@pytest.mark.parametrize(("damage", "command"), [(name, command) for name in BREAK for command in BREAK[name][2]])
def test_a_broken_run_is_one_sentence(tpsl: Any, finished: Path, tmp_path: Path, damage: str, command: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    breaking, words, _ = BREAK[damage]
    breaking(run)
    sentence = tpsl(*command.split(), run).error()
    assert str(run) in sentence
    assert words in sentence


@pytest.mark.parametrize("command", [command for command in RUN_COMMANDS if command != "ui"])
def test_a_folder_that_is_no_run_is_one_sentence(tpsl: Any, tmp_path: Path, command: str) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"\xff\xd8")
    sentence = tpsl(*command.split(), tmp_path).error()
    assert str(tmp_path) in sentence


LAUGHS = (
    "a: &a [ha, ha, ha, ha, ha, ha, ha, ha, ha, ha]\n"
    + "".join(
        f"{name}: &{name} [{', '.join(['*' + before] * 10)}]\n"
        for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    )
    + "training: {epochs: *i}\n"
)
"""Less than a kilobyte of aliases that stands for a thousand million values."""


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "{laughs}"),
        ("tune", "{laughs}", "--out", "{folder}/out"),
        ("tune", "{job}", "--space", "{laughs}", "--out", "{folder}/out"),
        ("label", "serve", "{laughs}"),
        ("label", "serve", "{job}", "--local", "{laughs}"),
        ("feature", "join", "{job}", "--local", "{laughs}"),
        ("report", "{folder}"),
        ("attack", "{folder}"),
    ],
    ids=" ".join,
)
def test_yaml_that_grows_is_refused_in_a_moment_and_one_line(
    tpsl: Any, finished: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    assert len(LAUGHS) < 1024
    laughs = tmp_path / "job.yaml"
    laughs.write_text(LAUGHS)
    begun = time.process_time()
    sentence = tpsl(
        *(part.format(laughs=laughs, folder=tmp_path, job=finished / "job.yaml") for part in arguments)
    ).error()
    assert time.process_time() - begun < 5  # most of it is the start of PyTorch
    assert sentence == f"error: {laughs}, line 2: aliases are not taken; write the value out"


@pytest.mark.parametrize(
    "content", ["{{training: {{epochs: {}}}}}", "{{data: {{{}: 1}}}}", "{{{}: {{}}}}", "{{data: [{}]}}"]
)
@pytest.mark.parametrize("kind", ["job", "local"])
def test_a_long_value_is_cut_in_the_sentence_about_it(
    tpsl: Any, finished: Path, tmp_path: Path, content: str, kind: str
) -> None:
    path = tmp_path / "long.yaml"
    path.write_text(content.format("x" * 1_000_000))
    job = ("label", "serve", finished / "job.yaml", "--local") if kind == "local" else ("train",)
    sentence = tpsl(*job, path).error()
    assert str(path) in sentence and len(sentence) < 500 + len(str(path))
