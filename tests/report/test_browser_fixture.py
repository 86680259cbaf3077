"""Without a browser the tests of pages are skipped, unless the environment forbids it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def test_a_page_is_opened(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<title>A page</title>")
    browser.open(tmp_path / "page.html")
    assert browser.run("return document.title") == "A page"


WITHOUT_A_BROWSER = """
import os, sys

import pytest

os.environ |= {"PATH": "/nowhere", "TPSL_REQUIRE_BROWSER": required}
sys.exit(pytest.main(["--rootdir", root, "-c", f"{root}/pyproject.toml", "-rsE", test]))
"""


@pytest.mark.parametrize(("required", "outcome"), [("", "1 skipped"), ("1", "1 error")])
def test_a_missing_browser_is_visible(required: str, outcome: str, fork: Callable[..., Any], tmp_path: Path) -> None:
    test, root = f"{__file__}::{test_a_page_is_opened.__name__}", str(Path(__file__).parents[2])
    done = fork(WITHOUT_A_BROWSER, tmp_path, test=test, root=root, required=required)
    assert done.status(within=60.0) == (1 if required else 0)
    said = done.stdout.read_text()
    assert outcome in said
    assert "no browser to test pages in: chromium is not installed" in said
