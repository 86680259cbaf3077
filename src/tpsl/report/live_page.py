"""The runs of a folder, live, on this machine: a list that asks every second whether anything has changed.

It only reads. It answers only this machine, only GET, only at an address that cannot be guessed (other users of the
machine can reach the port too, but not the label party's files), and only under the name of this machine, so that no
other site gets at it through the reader's browser:

    http://127.0.0.1:PORT/SECRET/             the list of runs
    http://127.0.0.1:PORT/SECRET/data         what it shows, as JSON
    http://127.0.0.1:PORT/SECRET/assets/NAME  its scripts, and those that draw charts
    http://127.0.0.1:PORT/SECRET/views/NAME   all that is known of one run, as JSON
    http://127.0.0.1:PORT/SECRET/runs/NAME    the report of one run, one file that loads nothing
"""

from __future__ import annotations

import hmac
import html
import json
import secrets
import sys
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from string import Template
from typing import Any
from urllib.parse import unquote

from tpsl.report.page import asset, embedded, page, page_data
from tpsl.report.run_list import run_list
from tpsl.report.watching import WatchedFolder
from tpsl.serving.browsers import is_asked_from_here

ADDRESS = "127.0.0.1"
_LIST_SCRIPTS = ("figures.js", "dom.js", "query.js", "comparison.js", "runs.js")
_CHART_SCRIPTS = ("plotly-basic.min.js", "charts.js")
POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; img-src data: blob:; style-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'"
)
_NOTHING = "default-src 'none'"
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_HTML, _SCRIPT, _JSON, _TEXT = (
    f"{kind}; charset=utf-8" for kind in ("text/html", "text/javascript", "application/json", "text/plain")
)


def list_page(data: dict[str, Any], version: str) -> str:
    """Return the page of a list of runs, which keeps itself up to date from this version on."""
    elements = "\n".join(f'<script src="assets/{name}"></script>' for name in _LIST_SCRIPTS)
    return Template(asset("runs.html")).substitute(
        policy=POLICY,
        title=html.escape(data["title"]),
        style=asset("page.css") + asset("runs.css"),
        data=embedded(data),
        version=html.escape(version),
        scripts=elements,
    )


class LivePage(ThreadingHTTPServer):
    """The service; `serve` answers until `shutdown`, which another thread calls."""

    daemon_threads = True

    def __init__(self, watched: WatchedFolder, port: int = 0) -> None:
        self.watched, self.secret = watched, secrets.token_urlsafe(16)
        self._assets = {name: asset(name).encode() for name in (*_LIST_SCRIPTS, *_CHART_SCRIPTS)}
        self._encoded: tuple[str, bytes] = ("", b"")
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
        if kind == "assets" and name in self._assets:
            return _Content(_SCRIPT, self._assets[name])
        if place in ("", "data"):
            return self._list(place, known)
        if kind in ("views", "runs"):
            return self._run(kind, unquote(name), known)
        return None

    def _list(self, place: str, known: str | None) -> _Content:
        snapshot, encoded = self.watched.snapshot(), self._encoded
        version = f'"{snapshot.version}"'
        if place == "data" and version in (known, encoded[0]):
            return _Content(_JSON, None if known == version else encoded[1], version=version)
        data = run_list(snapshot, self.watched.folder.resolve().name, self.watched.party)
        if place == "":
            return _Content(_HTML, _bytes(list_page(data, version)), POLICY)
        self._encoded = encoded = version, _json(data)
        return _Content(_JSON, encoded[1], version=version)

    def _run(self, kind: str, name: str, known: str | None) -> _Content | None:
        for run in self.watched.snapshot().runs:
            if run.view["name"] != name:
                continue
            if kind == "runs":  # Its policy stands in the page.
                report = page(page_data([run.view], title=name), home=f"/{self.secret}/")
                return _Content(_HTML, _bytes(report), "")
            version = f'"{run.version}"'
            return _Content(_JSON, None if known == version else _json(run.view), version=version)
        return None


def _json(data: Any) -> bytes:
    return _bytes(json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")))


def _bytes(text: str) -> bytes:
    """Encode; a name that is not Unicode (of a folder, say) must not cost the page."""
    return text.encode("utf-8", errors="replace")


@dataclass(frozen=True)
class _Content:
    kind: str
    content: bytes | None
    """None: what the reader has is still true."""
    policy: str = _NOTHING
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
        headers["Content-Security-Policy"] = "; ".join(filter(None, [found.policy, "frame-ancestors 'none'"]))
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
