"""A running `tpsl ui`, and what tests ask it."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from tpsl.report.live_page import LivePage
from tpsl.report.watching import WatchedFolder


class Service:
    """A running service, and what one asks it."""

    def __init__(self, folder: Path, party: str = "label") -> None:
        self.live = LivePage(WatchedFolder(folder, party))
        self.port, self.prefix = urlsplit(self.live.url).port, urlsplit(self.live.url).path
        self._thread = threading.Thread(target=self.live.serve)
        self._thread.start()

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            own = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, headers=own)
            answer = connection.getresponse()
            return answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()}
        finally:
            connection.close()

    def data(self) -> dict[str, Any]:
        status, content, _ = self.ask(f"{self.prefix}data")
        assert status == 200
        found = json.loads(content)
        assert isinstance(found, dict)
        return found

    def view(self, name: str) -> Any:
        """Return all that is known of a run."""
        status, content, _ = self.ask(f"{self.prefix}views/{quote(name, safe='')}")
        assert status == 200
        return json.loads(content)

    def names(self) -> list[str]:
        return [run["name"] for run in self.data()["runs"]]

    def stop(self) -> None:
        """End it, if it still runs."""
        self.live.shutdown()
        self._thread.join(60)
        assert not self._thread.is_alive()


def within(seconds: float, happened: Callable[[], bool]) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if happened():
            return True
        time.sleep(0.05)
    return False
