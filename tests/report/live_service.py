"""A running `tpsl ui`, and what tests ask it."""

from __future__ import annotations

import html
import http.client
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

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

    def list(self) -> str:
        """Return what changes on the page as runs go on."""
        status, content, _ = self.ask(f"{self.prefix}list")
        assert status == 200
        return content.decode()

    def rows(self) -> dict[str, dict[str, str]]:
        """Return the cells of each run by their columns; each cell's parts are lines."""
        return rows_in(self.list())

    def view(self, name: str) -> Any:
        """Return all that is known of a run."""
        return next(view for view in self.live.watched.snapshot().views if view.name == name)

    def names(self) -> list[str]:
        return sorted(self.rows())

    def stop(self) -> None:
        """End it, if it still runs."""
        self.live.shutdown()
        self._thread.join(60)
        assert not self._thread.is_alive()


def rows_in(content: str) -> dict[str, dict[str, str]]:
    """Return the cells of each run in a list by their columns; each cell's parts are lines."""
    rows = re.findall(r"<tr><th [^>]*><a href=[^>]*>(.*?)</a>.*?</th>(.*?)</tr>", content)
    return {html.unescape(name): dict(_cells(cells)) for name, cells in rows}


def _cells(row: str) -> Iterator[tuple[str, str]]:
    for head, cell in re.findall(r'<td [^>]*?data-head="(.*?)"[^>]*>(.*?)</td>', row):
        yield head, html.unescape(re.sub(r"<[^>]+>", "", cell.replace("<small>", "\n")))


def within(seconds: float, happened: Callable[[], bool]) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if happened():
            return True
        time.sleep(0.05)
    return False
