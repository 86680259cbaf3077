"""A real browser for the tests of pages: Debian's Chromium, driven by Selenium.

Without one these tests are skipped, unless TPSL_REQUIRE_BROWSER=1 says that skipping is not acceptable.
"""

import base64
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


class Browser:
    """What tests of pages need of a browser; `driver` is there for the rest."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, page: Path, *, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        """Show a page in a fresh state: nothing remembered, no log, the pointer in the corner, this size."""
        # The metrics are overridden because a headless window cannot be narrower than about 500 pixels.
        self._devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        self._devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._devtools("Input.dispatchMouseEvent", type="mouseMoved", x=0, y=0)
        self.driver.get("about:blank")
        self._devtools("Storage.clearDataForOrigin", origin="file://", storageTypes="all")
        self.console(), self.requests()
        self.driver.get(page.as_uri())

    def run(self, script: str, *arguments: Any) -> Any:
        """Return what a JavaScript function body returns."""
        return self.driver.execute_script(script, *arguments)

    def console(self) -> list[str]:
        """Return what the console has said since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Return the addresses that were requested since the last call."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]

    def screenshot(self, path: Path) -> None:
        """Write a picture of the whole page, not only of what fits on the screen."""
        picture = self._devtools("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(picture["data"]))

    def _devtools(self, command: str, **parameters: Any) -> Any:
        return self.driver.execute_cdp_cmd(command, parameters)


@pytest.fixture(scope="session")
def _driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    missing = [name for name, found in (("chromium", chromium), ("chromedriver", chromedriver)) if not found]
    try:
        from selenium import webdriver
    except ImportError:
        missing.append("selenium")
    if missing:
        reason = f"no browser to test pages in: {', '.join(missing)} not installed"
        if os.environ.get("TPSL_REQUIRE_BROWSER") == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))
    yield driver
    driver.quit()


@pytest.fixture
def browser(_driver: Any) -> Browser:
    """A headless Chromium, one for all tests; `open` gives each a fresh page."""
    return Browser(_driver)
