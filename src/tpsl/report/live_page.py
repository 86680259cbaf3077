"""The runs of a folder, live, on this machine: a list that asks every second whether anything has changed.

It only reads. It answers only this machine, only GET, only at an address that cannot be guessed (other users of the
machine can reach the port too, but not the label party's files), and only under the name of this machine, so that no
other site gets at it through the reader's browser:

    http://127.0.0.1:PORT/SECRET/             the list of runs
    http://127.0.0.1:PORT/SECRET/list         what changes on it as runs go on, as HTML
    http://127.0.0.1:PORT/SECRET/runs/NAME    the report of one run, one file that loads nothing
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import sys
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from tpsl.report.html_parts import document
from tpsl.report.markup import Markup, joined, tag
from tpsl.report.page import page
from tpsl.report.run_list import run_list, running
from tpsl.report.watching import Snapshot, WatchedFolder
from tpsl.serving.browsers import is_asked_from_here

ADDRESS = "127.0.0.1"
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",  # the rest stands in each page
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_HTML, _TEXT = (f"{kind}; charset=utf-8" for kind in ("text/html", "text/plain"))


def list_page(title: str, content: Markup, version: str) -> str:
    """Return the page of a list of runs, which keeps itself up to date from this version on."""
    search = tag(
        "input", type="search", id="query", placeholder="Search: words, or key=value", aria_label="Search runs"
    )
    body = joined(
        tag("a", "Skip to the runs", class_="skip", href="#list"),
        tag(
            "div",
            search,
            tag("span", id="found", class_="small", role="status"),
            tag("span", id="live", class_="small", role="status"),
            class_="bar",
        ),
        tag("main", content, id="list", class_="browser", tabindex=-1, data_version=version),
        tag("footer", tag("p", "This page follows a folder on this machine and changes nothing in it.")),
    )
    return document(title, body, scripts=("page.js", "runs.js"), policy="connect-src 'self'; ")


class LivePage(ThreadingHTTPServer):
    """The service; `serve` answers until `shutdown`, which another thread calls."""

    daemon_threads = True

    def __init__(self, watched: WatchedFolder, port: int = 0) -> None:
        self.watched, self.secret = watched, secrets.token_urlsafe(16)
        try:
            super().__init__((ADDRESS, port), _Answer)
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else "no such port"
            raise ValueError(f"the page cannot be served on {ADDRESS}:{port} ({reason})") from error

    @property
    def url(self) -> str:
        """The address of the page; anyone who knows it can read all that the page shows."""
        return f"http://{ADDRESS}:{self.server_port}/{self.secret}/"

    def serve(self) -> None:
        """Answer requests until `shutdown` is called, or until an interruption, which goes on to the caller."""
        try:
            self.serve_forever(poll_interval=0.1)
        finally:
            self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of readers that went away; anything else is a defect and shows."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def content(self, place: str, known: str | None) -> _Content | None:
        """Return what is at this place for a reader who has the version `known`; None where there is nothing.

        No part of `place` ever names a file.
        """
        kind, _, name = place.partition("/")
        if place in ("", "list"):
            return self._list(place, known)
        return self._run(unquote(name)) if kind == "runs" else None

    def _list(self, place: str, known: str | None) -> _Content:
        snapshot, name = self.watched.snapshot(), self.watched.folder.resolve().name
        version = _version(snapshot)
        if place == "list" and version == known:
            return _Content(_HTML, None, version)
        content = run_list(snapshot, name, self.watched.party)
        return _Content(_HTML, _bytes(content if place else list_page(f"Runs in {name}/", content, version)), version)

    def _run(self, name: str) -> _Content | None:
        view = next((view for view in self.watched.snapshot().views if view.name == name), None)
        return _Content(_HTML, _bytes(page([view], title=name, home=f"/{self.secret}/"))) if view else None


def _version(snapshot: Snapshot) -> str:
    """Return what differs whenever the list does, also when a run has fallen quiet."""
    names = repr([run.view.name for run in running(snapshot)])
    return f'"{snapshot.version}-{hashlib.sha256(names.encode(errors="replace")).hexdigest()[:8]}"'


def _bytes(text: str) -> bytes:
    """Encode; a name that is not Unicode (of a folder, say) must not cost the page."""
    return text.encode("utf-8", errors="replace")


@dataclass(frozen=True)
class _Content:
    kind: str
    content: bytes | None
    """None: what the reader has is still true."""
    version: str | None = None


class _Answer(BaseHTTPRequestHandler):
    server: LivePage
    protocol_version = "HTTP/1.0"  # A connection for each request: none outlives the service.
    server_version, sys_version = "tpsl", ""
    timeout = 30  # seconds for a reader that opens a connection and says nothing

    def do_GET(self) -> None:
        hosts = self.headers.get_all("Host") or []
        if not is_asked_from_here(hosts, self.headers.get("Sec-Fetch-Site"), self.headers.get("Sec-Fetch-Mode")):
            self._refuse(HTTPStatus.FORBIDDEN, "This page answers only under the name of this machine.")
            return
        place = self.path.partition("?")[0]
        prefix = f"/{self.server.secret}/"
        if not hmac.compare_digest(place[: len(prefix)].encode(), prefix.encode()):
            self._refuse(HTTPStatus.NOT_FOUND, "There is nothing here; `tpsl ui` has printed the whole address.")
            return
        found = self.server.content(place[len(prefix) :], self.headers.get("If-None-Match"))
        if found is None:
            self._refuse(HTTPStatus.NOT_FOUND, "There is nothing here.")
        else:
            self._send(HTTPStatus.NOT_MODIFIED if found.content is None else HTTPStatus.OK, found)

    def _only_get(self) -> None:
        self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "This page is read-only: it answers GET and nothing else.")

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _only_get

    def _refuse(self, status: HTTPStatus, sentence: str) -> None:
        self._send(status, _Content(_TEXT, f"{sentence}\n".encode()))

    def _send(self, status: HTTPStatus, found: _Content) -> None:
        content = found.content or b""
        headers = {"Content-Type": found.kind, "Content-Length": str(len(content)), **_HEADERS}
        if found.version:
            headers["ETag"] = found.version
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = "GET"
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the page asks every second."""
