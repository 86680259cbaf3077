"""The HTTP server against clients that are odd, rude, slow or gone, and against those that may not ask."""

from __future__ import annotations

import asyncio
import datetime
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from prometheus_client import generate_latest

from tpsl.error_codes import code_of
from tpsl.serving import http_server
from tpsl.serving.http_server import MOST_BODY_BYTES, HttpAccess, HttpServer, UnprotectedAddress
from tpsl.serving.refusals import PortTaken, ServiceMetrics

from .conftest import happens

POST = "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{}"
GET = "GET {} HTTP/1.1\r\nHost: localhost\r\n{}\r\n"
TOKEN = "a secret of 27 characters.."


@dataclass
class Opened:
    server: HttpServer
    port: int
    metrics: ServiceMetrics
    waiting: int = 0
    """Requests that are `slow`."""
    cancelled: list[bytes] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def talk(self, *parts: str, answers: int = 1, secure: ssl.SSLContext | None = None) -> str:
        """Send parts one after the other, and return as many answers."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=secure)
        for part in parts:
            writer.write(part.encode("latin-1"))
            await asyncio.sleep(0.01)
        answer = b""
        while answer.count(b"HTTP/1.1") < answers or not answer.partition(b"\r\n\r\n")[2]:
            piece = await asyncio.wait_for(reader.read(65536), 60)
            if not piece:
                raise ConnectionResetError("no answer")
            answer += piece
        writer.close()
        return answer.decode()

    async def post(self, body: str) -> str:
        return await self.talk(POST.format(len(body), body))


@asynccontextmanager
async def opened(access: HttpAccess | None = None) -> AsyncIterator[Opened]:
    async def echo(body: bytes) -> str:
        if body == b"slow":
            found.waiting += 1
            try:
                await found.go_on.wait()
            except asyncio.CancelledError:
                found.cancelled.append(body)
                raise
            finally:
                found.waiting -= 1
        if body == b"defect":
            raise KeyError("a secret")
        return body.decode()

    notices: list[str] = []
    metrics = ServiceMetrics()
    handlers = {("POST", "/echo"): echo, ("GET", "/healthz"): echo, ("GET", "/ready"): echo}
    server = HttpServer(handlers, access or HttpAccess(), metrics, notices.append)
    url = await server.open()
    found = Opened(server, int(url.rpartition(":")[2]), metrics, notices=notices)
    yield found
    found.go_on.set()
    await server.close()


def test_a_connection_serves_one_request_after_the_other() -> None:
    async def main() -> None:
        async with opened() as served:
            both = await served.talk(POST.format(3, "one"), POST.format(3, "two"), answers=2)
            assert both.count("HTTP/1.1 200 OK") == 2
            assert both.index("one") < both.index("two")
            # In pieces, at once, in chunks, and by an old client that wants it closed.
            assert "three" in await served.talk(POST.format(5, "thr"), "ee")
            chunked = POST.replace("Content-Length: {}", "Transfer-Encoding: chunked")
            assert '"four"' in await served.talk(chunked.format("2\r\nfo\r\n2\r\nur\r\n0\r\n\r\n"))
            assert "\nConnection: close" in await served.talk("GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n")
            at_once = await served.talk(POST.format(1, "a") + POST.format(1, "b"), answers=2)
            assert at_once.index('\r\n\r\n"a"') < at_once.index('\r\n\r\n"b"')

    asyncio.run(main())


@pytest.mark.parametrize(
    ("request_text", "status", "code"),
    [
        ("nonsense\r\n\r\n", 400, None),
        ("GET /healthz\r\nHost: localhost\r\n\r\n", 400, None),
        ("GET http://evil/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", 404, "not_found"),
        ("GET /healthz HTTP/1.1\r\nHost localhost\r\n\r\n", 400, None),
        ("GET /healthz HTTP/1.1\r\n\r\n", 400, None),
        ("GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400, None),
        ("GET /healthz HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403, "forbidden"),
        ("GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403, "forbidden"),
        (GET.format("/healthz", "Sec-Fetch-Site: cross-site\r\n"), 403, "forbidden"),
        (GET.format("/nothing", ""), 404, "not_found"),
        ("DELETE /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\r\n", 405, "wrong_method"),
        (POST.format(1, "a").replace("application/json", "text/plain"), 400, "malformed"),
        (POST.format("1\r\nContent-Length: 2", "ab"), 400, None),
        (POST.format("-1", ""), 400, None),
        (POST.format("9" * 30, ""), 400, None),
        (POST.format(MOST_BODY_BYTES + 1, "a" * (MOST_BODY_BYTES + 1)), 413, "too_large"),
        (POST.format("1\r\nTransfer-Encoding: gzip", "a"), 400, None),
        (
            POST.replace("Content-Length: {}", "Transfer-Encoding: chunked").format(f"400001\r\n{'a' * 0x400001}\r\n"),
            413,
            "too_large",
        ),
        ("GET /healthz HTTP/1.1\r\nX: " + "x" * 20_000, 400, None),
        (POST.format(6, "defect"), 500, "defect"),
    ],
)
def test_what_is_no_proper_request_is_refused(request_text: str, status: int, code: str | None) -> None:
    """What is no HTTP at all is uvicorn's business, and all else has a code."""

    async def main() -> None:
        async with opened() as served:
            answer = await served.talk(request_text)
            assert answer.startswith(f"HTTP/1.1 {status} "), answer
            assert code is None or json.loads(answer.partition("\r\n\r\n")[2])["code"] == code
            assert "secret" not in answer
            assert "200 OK" in await served.post("ok")

    asyncio.run(main())


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost", "[::1]:8080", "127.0.0.2"])
def test_this_machine_is_asked_under_its_own_names(host: str) -> None:
    async def main() -> None:
        async with opened() as served:
            assert "200 OK" in await served.talk(GET.format("/healthz", "").replace("localhost", host))

    asyncio.run(main())


def test_every_answer_is_for_its_client_alone() -> None:
    async def main() -> None:
        async with opened() as served:
            for answer in (await served.post("ok"), await served.talk(GET.format("/nothing", ""))):
                assert "cache-control: no-store\r\n" in answer.lower()
                assert "x-content-type-options: nosniff\r\n" in answer.lower()
                assert "uvicorn" not in answer

    asyncio.run(main())


def test_a_client_that_leaves_ends_its_request() -> None:
    async def main() -> None:
        async with opened() as served:
            _, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(POST.format(4, "slow").encode())
            await happens(lambda: served.waiting == 1)
            writer.transport.abort()
            await happens(lambda: served.waiting == 0)
            assert served.cancelled == [b"slow"]

    asyncio.run(main())


def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MOST_CONNECTIONS", 2)

    async def main() -> None:
        async with opened() as served:
            _, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(POST.format(4, "slow").encode())
            await happens(lambda: served.waiting == 1)
            assert "HTTP/1.1 503" in await served.post("ok")
            assert served.waiting == 1, "what is being answered gives way to nobody"
            writer.close()
            await happens(lambda: served.waiting == 0)
            assert "200 OK" in await served.post("ok")

    asyncio.run(main())


def test_answers_that_nobody_reads_do_not_pile_up() -> None:
    async def main() -> None:
        async with opened() as served:
            narrow = socket.socket()
            narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            narrow.connect(("127.0.0.1", served.port))
            reader, writer = await asyncio.open_connection(sock=narrow, limit=1 << 10)
            asked, size = 400, 1 << 16
            for _ in range(asked):
                writer.write(POST.format(size, "a" * size).encode())
            await asyncio.sleep(1.0)
            lines = generate_latest(served.metrics.registry).decode().splitlines()
            answered = [line for line in lines if "seconds_count" in line]
            assert float(answered[0].split()[-1]) < asked / 2, "further requests wait until the client reads"
            for _ in range(asked):
                await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
                assert await asyncio.wait_for(reader.readexactly(size + 2), 60) == b'"' + b"a" * size + b'"'
            writer.close()

    asyncio.run(main())


@pytest.mark.parametrize("sends", ["", POST.format(100, "a" * 100)], ids=["nothing", "byte by byte"])
def test_clients_that_dawdle_are_sent_away(monkeypatch: pytest.MonkeyPatch, sends: str) -> None:
    monkeypatch.setattr(http_server, "_REQUEST_SECONDS", 0.2)

    async def main() -> None:
        async with opened() as served:
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            assert "200 OK" in await served.post("ok")
            for letter in sends:
                writer.write(letter.encode())
                await asyncio.sleep(0.02)
            with pytest.raises(ConnectionError):
                assert await asyncio.wait_for(reader.read(), 60) == b""
                raise ConnectionResetError
            assert served.server._under_way == 0

    asyncio.run(main())


def test_what_was_asked_is_answered_before_the_server_closes() -> None:
    async def main() -> None:
        async with opened() as served:
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(POST.format(4, "slow").encode())
            idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", served.port)
            await happens(lambda: served.waiting == 1 and len(served.server._state.connections) == 2)
            closing = asyncio.create_task(served.server.close())
            await asyncio.sleep(0.05)
            with pytest.raises(OSError):
                await asyncio.open_connection("127.0.0.1", served.port)
            idle_writer.write(POST.format(2, "ok").encode())  # it was on its way
            late = (await asyncio.wait_for(idle_reader.read(), 60)).decode()
            assert late.startswith("HTTP/1.1 200") and late.endswith('"ok"')
            served.go_on.set()
            answer = (await asyncio.wait_for(reader.read(), 60)).decode()
            assert answer.startswith("HTTP/1.1 200")
            assert "connection: close" in answer
            await closing

    asyncio.run(main())


def test_a_port_that_is_taken_is_named() -> None:
    async def main() -> None:
        async with opened() as served:
            access = HttpAccess(f"127.0.0.1:{served.port}")
            another = HttpServer({}, access, ServiceMetrics(), served.notices.append)
            with pytest.raises(PortTaken, match=f"cannot listen at 127.0.0.1:{served.port}: address already in use"):
                await another.open()

    asyncio.run(main())


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:8080", "label.example:8080"])
def test_an_address_that_others_reach_needs_a_token_or_a_certificate(address: str, tmp_path: Path) -> None:
    with pytest.raises(UnprotectedAddress) as refused:
        HttpAccess.of(address, None, None)
    assert code_of(refused.value) == "http-unprotected"
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    assert HttpAccess.of(address, tmp_path / "token", None).token == TOKEN
    assert HttpAccess.of(address, None, tmp_path / "server.pem").certificate
    assert TOKEN not in repr(HttpAccess.of(address, tmp_path / "token", None))


@pytest.mark.parametrize("text", ["", "short", "\n\n", "two lines of\nsome length", "not ASCII: ελληνικά"])
def test_a_token_is_one_line_that_nobody_guesses(text: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(text)
    with pytest.raises(ValueError, match="a token is a line of at least 16"):
        HttpAccess.of("127.0.0.1:0", tmp_path / "token", None)


def test_without_the_token_only_probes_are_answered() -> None:
    """Under whatever name the machine is asked."""

    async def main() -> None:
        async with opened(HttpAccess("0.0.0.0:0", TOKEN)) as served:
            for path in ("/healthz", "/ready"):
                assert "200 OK" in await served.talk(GET.format(path, "").replace("localhost", "10.1.2.3"))
            for given in ("", "Authorization: Bearer wrong\r\n", f"Authorization: Basic {TOKEN}\r\n"):
                for path in ("/metrics", "/nothing", "/echo"):
                    answer = await served.talk(GET.format(path, given))
                    assert answer.startswith("HTTP/1.1 401 ")
                    assert "www-authenticate: bearer" in answer.lower()
            right = f"Authorization: Bearer {TOKEN}\r\n"
            assert "tpsl_waiting_requests 0.0" in await served.talk(GET.format("/metrics", right))
            post = POST.format(2, "ok").replace("Host", f"{right}Host")
            assert "200 OK" in await served.talk(post.replace("localhost", "scores.example"))
            assert "403" in await served.talk(post.replace("Host", "Sec-Fetch-Site: cross-site\r\nHost"))

    asyncio.run(main())


def test_https_with_a_certificate_and_silent_clients_that_never_begin_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "_HANDSHAKE_SECONDS", 0.2)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "scores.example")])
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder(
        name, name, key.public_key(), x509.random_serial_number(), now, now.replace(year=2999)
    )
    made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName("scores.example")]), critical=False)
    encoding = serialization.Encoding.PEM
    chain = made.sign(key, hashes.SHA256()).public_bytes(encoding)
    secret = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "server.pem").write_bytes(chain + secret)
    trusting = ssl.create_default_context(cadata=chain.decode())
    trusting.check_hostname = False

    async def main() -> None:
        async with opened(HttpAccess("0.0.0.0:0", None, tmp_path / "server.pem")) as served:
            silent, _ = await asyncio.open_connection("127.0.0.1", served.port)
            assert "200 OK" in await served.talk(POST.format(2, "ok"), secure=trusting)
            assert await asyncio.wait_for(silent.read(), 60) == b""
            with pytest.raises(OSError):
                await served.post("ok")

    asyncio.run(main())
