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
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from tpsl.report.html_parts import document
from tpsl.report.markup import Markup, joined, tag
from tpsl.report.page import page
from tpsl.report.run_list import run_list, running
from tpsl.report.watching import WatchedFolder
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

    def content(self, place: str, known: str | None) -> tuple[str | None, str | None] | None:
        """Return what is at this place, and its version, for a reader who has the version `known`.

        None in place of the content: what the reader has is still true. No part of `place` ever names a file.
        """
        kind, _, name = place.partition("/")
        if place not in ("", "list") and kind != "runs":
            return None
        snapshot = self.watched.snapshot()
        if kind == "runs":
            view = next((view for view in snapshot.views if view.name == unquote(name)), None)
            return (page([view], title=view.name, home=f"/{self.secret}/"), None) if view else None
        now = repr([run.view.name for run in running(snapshot)])  # the list differs when a run has fallen quiet, too
        version = f'"{snapshot.version}-{hashlib.sha256(now.encode(errors="replace")).hexdigest()[:8]}"'
        if place and version == known:
            return None, version
        folder = self.watched.folder.resolve().name
        content = run_list(snapshot, folder, self.watched.party)
        return content if place else list_page(f"Runs in {folder}/", content, version), version


class _Answer(BaseHTTPRequestHandler):
    server: LivePage
    protocol_version = "HTTP/1.0"  # A connection for each request: none outlives the service.
    server_version, sys_version = "tpsl", ""
    timeout = 30  # seconds for a reader that opens a connection and says nothing

    def do_GET(self) -> None:
        hosts = self.headers.get_all("Host") or []
        if not is_asked_from_here(hosts, self.headers.get("Sec-Fetch-Site"), self.headers.get("Sec-Fetch-Mode")):
            self._send(HTTPStatus.FORBIDDEN, "This page answers only under the name of this machine.\n", _TEXT)
            return
        place, prefix = self.path.partition("?")[0], f"/{self.server.secret}/"
        found = None
        if hmac.compare_digest(place[: len(prefix)].encode(), prefix.encode()):
            found = self.server.content(place[len(prefix) :], self.headers.get("If-None-Match"))
        if found is None:
            self._send(HTTPStatus.NOT_FOUND, "There is nothing here; `tpsl ui` has printed the address.\n", _TEXT)
            return
        content, version = found
        tag = {"ETag": version} if version else {}
        self._send(HTTPStatus.NOT_MODIFIED if content is None else HTTPStatus.OK, content or "", _HTML, **tag)

    def _only_get(self) -> None:
        sentence = "This page is read-only: it answers GET and nothing else.\n"
        self._send(HTTPStatus.METHOD_NOT_ALLOWED, sentence, _TEXT, Allow="GET")

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _only_get

    def _send(self, status: HTTPStatus, text: str, kind: str, **headers: str) -> None:
        content = text.encode("utf-8", errors="replace")  # a name that is not Unicode must not cost the page
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(content)), **_HEADERS, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the page asks every second."""
