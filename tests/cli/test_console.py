"""What is printed arrives as it is: paths unbroken and not read as markup, JSON without words that JSON lacks."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tpsl.cli.console import (
    Report,
    answer,
    complain,
    notice,
    print_json,
    progress_bar,
    say,
    slim_table,
    time_left,
    warn,
)

LONG_PATH = "/very" * 60 + "/[red]folder[/red]/[bold]"


def test_lines_are_neither_wrapped_nor_read_as_markup(capsys: pytest.CaptureFixture[str]) -> None:
    say(LONG_PATH)
    notice(LONG_PATH)
    warn(LONG_PATH)
    complain(f"error: {LONG_PATH}\n\tand more")
    captured = capsys.readouterr()
    assert captured.out == f"{LONG_PATH}\n"
    assert captured.err == f"{LONG_PATH}\nwarning: {LONG_PATH}\nerror: {LONG_PATH} and more\n"


def test_json_is_one_line_that_any_parser_reads(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"epsilon": math.inf, "runs": [{"auc": math.nan, "name": "ε"}], "pair": (1, -math.inf), "ok": 0.5})

    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is no JSON")

    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    content = json.loads(printed, parse_constant=refuse)
    assert content == {"epsilon": None, "runs": [{"auc": None, "name": "ε"}], "pair": [1, None], "ok": 0.5}


def test_a_report_wraps_sentences_at_words_and_neither_paths_nor_commands(capsys: pytest.CaptureFixture[str]) -> None:
    facts = {"run": Path("/a folder" * 12), "privacy": "[bold]word " * 12, "odd": "red\x1b[31m"}
    answer(False, {}, Report("Trained", facts, {"the page": f"tpsl report {LONG_PATH}"}))
    assert capsys.readouterr().out.splitlines() == [
        "Trained",
        f"  run       {Path('/a folder' * 12)}",
        "  privacy   " + " ".join(["[bold]word"] * 6),
        "            " + " ".join(["[bold]word"] * 6),
        "  odd       red�[31m",
        "Next",
        f"  the page  tpsl report {LONG_PATH}",
    ]


def test_a_table_has_whole_numbers_within_80_columns_and_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    numbers = ("records", "bytes there", "bytes back")
    rows = [(f"[red]{row}", "1,234,567,890", "12,345,678,901,234", "98.7 TB", "word " * 12) for row in "12"]
    table = slim_table(("what", *numbers, "because"), rows, numbers=numbers)
    answer(False, {}, Report("Planned", {"machine": "this"}, {"go on": "tpsl train"}, ["a sentence", table]))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[:3] == ["Planned", "  machine  this", "a sentence"]
    assert lines[-2:] == ["Next", "  go on    tpsl train"]
    for name in ("[red]1", "[red]2"):
        (row,) = (line for line in lines if name in line)
        assert "1,234,567,890  12,345,678,901,234  " in row and "98.7 TB" in row


def test_a_log_gets_a_line_of_progress_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with progress_bar("training") as progress:
        progress(1, 3, "short")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("tpsl.cli.console.FIRST_LOGGED_AFTER", 1e-9)
    with progress_bar("training") as progress:
        progress(1_234, 5_678, "epoch 1")
    with progress_bar("training") as progress:
        progress(12_345_678, 71_591_290, "reading f.parquet")
    with progress_bar("planning") as progress:
        progress(0, 0, "rehearsing")
    lines = ["training: 1,234/5,678 epoch 1", "training: 17 % reading f.parquet", "planning: rehearsing"]
    assert capsys.readouterr().err.splitlines() == lines


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, ""),
        (0.2, "about 5 s left"),
        (31, "about 35 s left"),
        (55, "about 1 min left"),
        (130, "about 2 min left"),
        (9000, "about 2.5 h left"),
    ],
)
def test_the_time_left_is_rounded_to_what_can_be_known(seconds: float | None, said: str) -> None:
    assert time_left(seconds) == said
