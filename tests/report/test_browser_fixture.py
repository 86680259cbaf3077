"""Without a browser the tests of pages are skipped, unless the environment forbids it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(("required", "outcome"), [("", "1 skipped"), ("1", "1 error")])
def test_a_missing_browser_is_visible(required: str, outcome: str) -> None:
    one_test = Path(__file__).with_name("test_page_in_browser.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rsE", f"{one_test}::test_what_can_be_focused_has_a_name"],
        env={**os.environ, "PATH": "/nowhere", "TPSL_REQUIRE_BROWSER": required},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert outcome in done.stdout
    assert "no browser to test pages in: chromium, chromedriver not installed" in done.stdout
    assert done.returncode == (1 if required else 0)
