"""Experiments that are programs run to the end on little data; what they measure is for people to read."""

import json
import runpy
import sys

import pytest


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("norm_attack", ["--rows", "12000", "--epochs", "3"]),
        ("retraining", ["--rows", "2000", "--seeds", "1", "--json"]),
    ],
)
def test_it_runs(
    name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_module(f"tpsl_research.{name}", run_name="__main__")
    printed = capsys.readouterr().out
    assert json.loads(printed) if "--json" in arguments else len(printed.splitlines()) == 9
