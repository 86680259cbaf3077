"""`tpsl figures`: files for a paper, and one sentence for each wrong input."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def run(tpsl: Any, small_job: Path, folder: Path) -> Path:
    """A run, trained once for all tests."""
    if not (folder / "run").exists():
        assert tpsl("train", small_job, "--out", folder / "run", "--json").status == 0
    return folder / "run"


def test_it_names_what_it_wrote_and_what_it_could_not_draw(tpsl: Any, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    content = tpsl("figures", run, "--out", out, "--format", "svg", "--json").json()
    assert sorted(content["files"]) == [str(out / name) for name in ("curves.svg", "runs.md", "runs.tex")]
    assert sorted(map(str, out.iterdir())) == sorted(content["files"])
    assert content["left_out"].keys() == {"epsilon", "attack", "roc"}
    shown = tpsl("figures", run, "--out", out, "--format", " PNG")
    assert shown.stdout.splitlines() == [str(out / name) for name in ("curves.png", "runs.tex", "runs.md")]
    assert "roc: not drawn, it needs a run that was attacked" in shown.stderr


def test_wrong_input_is_one_sentence(tpsl: Any, run: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "figures")
    assert "Missing argument 'runs'" in tpsl("figures").error(status=2)
    assert f"{tmp_path / 'absent'}: is not a run folder" in tpsl("figures", tmp_path / "absent", *out).error()
    assert "--format: 'gif' is none of png, svg, pdf" in tpsl("figures", run, "--format", "png,gif", *out).error()
    assert "--format: '' is none of png, svg, pdf" in tpsl("figures", run, "--format", "", *out).error()
    (tmp_path / "file").write_text("")
    assert "file: it is no folder" in tpsl("figures", run, "--out", tmp_path / "file").error()
    shutil.copytree(run, tmp_path / "broken")
    (tmp_path / "broken" / "result.json").write_text("[]")
    assert "result.json: is damaged" in tpsl("figures", run, tmp_path / "broken", *out).error()
    assert not (tmp_path / "figures").exists()
