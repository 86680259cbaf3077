"""What is printed arrives as it is: paths unbroken and not read as markup, JSON without words that JSON lacks."""

from __future__ import annotations

import json
import math

import pytest

from tpsl.cli.console import complain, notice, print_json, say, warn

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
