"""Without a browser the tests of pages are skipped, unless the environment forbids it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def test_a_page_is_opened(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<title>A page</title>")
    browser.open(tmp_path / "page.html")
    assert browser.run("return document.title") == "A page"


@pytest.mark.parametrize(("required", "outcome"), [("", "1 skipped"), ("1", "1 error")])
def test_a_missing_browser_is_visible(required: str, outcome: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rsE", f"{__file__}::{test_a_page_is_opened.__name__}"],
        env={**os.environ, "PATH": "/nowhere", "TPSL_REQUIRE_BROWSER": required},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert outcome in done.stdout
    assert "no browser to test pages in: chromium, chromedriver not installed" in done.stdout
    assert done.returncode == (1 if required else 0)
