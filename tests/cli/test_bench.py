"""`tpsl bench`: what it prints, and what it asks before it installs anything."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def quick_contenders(quick_programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(quick_programs / "python"))


def test_each_part_has_its_table(tpsl: Any) -> None:
    said = tpsl("bench", "--quick", "--only", "large", "--only", "vault")
    assert said.status == 0, said.stderr
    lines = said.stdout.splitlines()
    assert lines[0] == "Measured this machine"
    assert said.facts()["machine"].startswith("processor ")
    assert any("ratio to unsplit PyTorch" in line for line in lines)
    assert any(line.startswith("tpsl, one process: `tpsl train`") for line in lines)
    assert any("verify" in line for line in lines) and not any("tpsl, two processes" in line for line in lines)


def test_growth_is_told_of_each_shape(tpsl: Any) -> None:
    found = tpsl("bench", "--quick", "--only", "growth", "--json").json()
    assert list(found) == ["machine", "growth"]
    assert [words for words, _ in found["growth"]] == ["the usual shape", "2 feature parties"]
    for _, (baseline, own) in found["growth"]:
        assert baseline["ratio"] == 1.0 and own["samples_per_second"] > 0


def test_nothing_is_installed_without_a_yes(tpsl: Any, tmp_path: Path) -> None:
    said = tpsl("bench", "--quick", "--only", "speed", "--peers", tmp_path / "peers")
    assert said.status == 1
    assert f"Opacus: a virtual environment in {tmp_path / 'peers'} with opacus==" in said.stderr
    assert not (tmp_path / "peers").exists()


def test_an_unknown_part_is_refused_with_the_known_ones(tpsl: Any) -> None:
    assert all(
        part in tpsl("bench", "--only", "memory").error(2) for part in ("speed", "small", "growth", "large", "vault")
    )
