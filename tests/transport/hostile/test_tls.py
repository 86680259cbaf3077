"""Who is not what the authority says gets nowhere, on either side, and none of it is written to stderr."""

import io
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from rich.console import Console
from tpsl.transport.channel import Refused, run_alone

from tpsl.cli.live import Live
from tpsl.net.credentials import Certificates


def test_a_plaintext_client_gets_nowhere(scene: Any) -> None:
    assert scene.raw_with(None).ending().startswith("UNAVAILABLE")
    assert scene.serves("airport")


@pytest.mark.parametrize("which", [None, "airport", "expired", "early", "label"])
def test_no_certificate_a_foreign_one_and_one_of_another_day_are_refused(
    scene: Any, strangers: Path, raw_credentials: Any, which: str | None
) -> None:
    credentials = raw_credentials(scene.folder / "airport", strangers / which if which else None)
    with pytest.raises(Refused, match="it does not accept this party's certificate"):
        run_alone(scene.client(scene.server.port, credentials=credentials).gather())
    raw = scene.raw_with(credentials)
    assert raw.ending().startswith("UNAVAILABLE"), "no call gets through"
    assert scene.seen == [], "nor does the label party see one"
    assert scene.serves("airport")


def test_the_line_about_a_certified_stranger_is_json_for_who_wants_that_and_comes_once(
    scene: Any, strangers: Path
) -> None:
    written = io.StringIO()
    console = Console(file=written)
    with Live("label", peers=["airport"], epochs=1, log_json=True, console=console) as live:
        server = scene.serving(Certificates.load(scene.folder / "label").server(), watch=live.watch)
        for _ in range(3):
            with pytest.raises(Refused):
                run_alone(scene.client(server.port, "shop", Certificates.load(strangers / "shop").channel()).gather())
        server.stop(None)
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    about = [(line["peer"], line["reason"]) for line in lines if line["event"] == "refused"]
    assert about == [("shop", "refused: 'shop' is not a feature party of this job; they are airport")]


def listening_as(scene: Any, folder: Path) -> int:
    """Run a server of the right program with the wrong certificate."""
    pair = ((folder / "key.pem").read_bytes(), (folder / "cert.pem").read_bytes())
    credentials = grpc.ssl_server_credentials([pair], (scene.folder / "label" / "ca.pem").read_bytes(), True)
    return scene.serving(credentials).port


@pytest.mark.parametrize(
    ("which", "sentence"),
    [
        ("foreign", "cannot be trusted: unable to get local issuer certificate"),
        ("expired", "cannot be trusted: certificate has expired"),
        ("early", "cannot be trusted: certificate is not yet valid"),
        ("feature party", "cannot be trusted: unsupported certificate purpose"),
    ],
)
def test_a_false_label_party_is_refused_by_the_client(scene: Any, strangers: Path, which: str, sentence: str) -> None:
    folders = {
        "foreign": strangers / "label",
        "expired": strangers / "expired_label",
        "early": strangers / "early_label",
        "feature party": scene.folder / "bank",
    }
    port = listening_as(scene, folders[which])
    with pytest.raises(Refused, match=f"the certificate of what listens at 127.0.0.1:{port} {sentence}"):
        run_alone(scene.client(port).gather())


def test_a_label_party_without_tls_is_refused_by_the_client(scene: Any) -> None:
    server = scene.serving(None)
    with pytest.raises(Refused, match=f"what listens at 127.0.0.1:{server.port} does not speak TLS"):
        run_alone(scene.client(server.port).gather())


QUIET = """
import sys
from pathlib import Path
from tpsl.transport.channel import run_alone
from tpsl.transport.frames import Limits
from tpsl.transport.handshake import Agreement
from tpsl.net.credentials import Certificates
from tpsl.transport.label_server import LabelServer
from tpsl.transport.link import Patience, Terms

with LabelServer(
    "127.0.0.1:0", ("airport",), Agreement({"job": "abc"}, b"ids"),
    Terms(Limits(8, 8), "float32", Patience(1, 2), lambda *news: None),
    credentials=Certificates.load(Path(sys.argv[1])).server(),
) as server:
    print(server.port, flush=True)
    sys.stdin.read()
"""


def test_none_of_it_is_written_to_stderr(
    certificates: Path, strangers: Path, raw_credentials: Any, raw_stream: Any
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", QUIET, certificates / "label"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("GRPC")},
    )
    assert process.stdout is not None
    port = int(process.stdout.readline())
    attackers = [
        None,
        raw_credentials(certificates / "airport", None),
        raw_credentials(certificates / "airport", strangers / "expired"),
        raw_credentials(certificates / "airport", strangers / "airport"),
        raw_credentials(certificates / "airport", certificates / "airport"),
    ]
    for credentials in attackers:
        raw = raw_stream(port, credentials)
        raw.write(b"random", os.urandom(200_000))
        raw.ending()
        raw.close()
    with socket.create_connection(("127.0.0.1", port)) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
    _, errors = process.communicate(timeout=60)
    assert errors == ""
    assert process.returncode == 0
