"""What is printed arrives as it is: paths unbroken and not read as markup, JSON without words that JSON lacks."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tpsl.cli.console import Report, answer, complain, notice, print_json, say, time_left, warn

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
