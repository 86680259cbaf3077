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
from tests.net.scene import Raw, Refusal, Scene, Unchecked

from tpsl.cli.live import Live
from tpsl.net.certificates import Certificates
from tpsl.net.failures import Refused


def test_a_plaintext_client_gets_nowhere(scene: Scene) -> None:
    assert scene.raw_with(None).refused("Hello", b"").status == "UNAVAILABLE"
    assert scene.serves("airport")


def nobody(folder: Path) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials((folder / "airport" / "ca.pem").read_bytes())


def test_without_a_certificate_no_call_gets_through(scene: Scene) -> None:
    assert scene.raw_with(nobody(scene.folder)).refused("Hello", b"").status == "UNAVAILABLE"
    assert scene.seen == []
    assert scene.serves("airport")


@pytest.mark.parametrize("which", ["airport", "expired", "early", "label"])
def test_a_foreign_certificate_and_one_of_another_day_are_refused(
    scene: Scene, strangers: Path, tmp_path: Path, which: str
) -> None:
    theirs = Unchecked(tmp_path, strangers / which, scene.folder / "airport")
    assert scene.raw_with(theirs.channel()).refused("Hello", b"").status == "UNAVAILABLE", "no call gets through"
    with pytest.raises(Refused, match="it does not accept this party's certificate") as refused:
        scene.asking(certificates=theirs)
    assert refused.value.code == "certificate"
    assert scene.seen == [], "nor does the label party see one"
    assert scene.serves("airport")


def test_the_line_about_a_certified_stranger_is_json_for_who_wants_that_and_comes_once(
    make_scene: Any, strangers: Path
) -> None:
    written = io.StringIO()
    scene = make_scene("airport")
    with Live("label", peers=["airport"], epochs=1, log_json=True, console=Console(file=written)) as live:
        for _ in range(3):
            with pytest.raises(Refused):
                scene.asking("shop", certificates=Certificates.load(strangers / "shop"))
        for news in scene.seen:
            live.watch(*news)
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    about = [(line["peer"], line["reason"]) for line in lines if line["event"] == "refused"]
    assert about == [("shop", "refused: 'shop' is not a feature party of this job; they are airport")]


@pytest.mark.parametrize(
    ("which", "sentence"),
    [
        ("strangers/label", "cannot be trusted: unable to get local issuer certificate"),
        ("strangers/expired_label", "cannot be trusted: certificate has expired"),
        ("strangers/early_label", "cannot be trusted: certificate is not yet valid"),
        ("ours/bank", "cannot be trusted: un(supported|suitable) certificate purpose"),
    ],
)
def test_a_false_label_party_is_refused_by_the_client(
    make_scene: Any, strangers: Path, certificates: Path, tmp_path: Path, which: str, sentence: str
) -> None:
    folder = {"strangers": strangers, "ours": certificates}[which.partition("/")[0]] / which.partition("/")[2]
    false = make_scene(certificates=Unchecked(tmp_path, folder, certificates / "label"))
    with pytest.raises(Refused, match=f"of what listens at 127.0.0.1:{false.port} {sentence}") as refused:
        false.asking()
    assert refused.value.code == "certificate"


def test_a_label_party_without_tls_is_refused_by_the_client(make_scene: Any) -> None:
    plain, scene = make_scene(certified=False), make_scene()
    with pytest.raises(Refused, match=f"what listens at 127.0.0.1:{plain.port} does not speak TLS"):
        scene.asking(port=plain.port)


QUIET = """
import sys
from pathlib import Path
from tpsl.net.agreement import Agreement
from tpsl.net.certificates import Certificates
from tpsl.net.desk import Desk
from tpsl.net.connection import Patience, Terms
from tpsl.net.messages import Limits
from tpsl.net.server import LabelServer

desk = Desk(("airport",), Agreement({"job": "abc"}, b"ids"), Terms(Limits(8, 8), "float32", Patience(1, 2)))
with LabelServer("127.0.0.1:0", desk, ("Step",), certificates=Certificates.load(Path(sys.argv[1]))) as server:
    print(server.port, flush=True)
    sys.stdin.read()
"""


def test_none_of_it_is_written_to_stderr(certificates: Path, strangers: Path, tmp_path: Path) -> None:
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
    ours = certificates / "airport"
    attackers = [None, nobody(certificates), Unchecked(tmp_path, ours, ours).channel()]
    attackers += [Unchecked(tmp_path, strangers / who, ours).channel() for who in ("expired", "airport")]
    for credentials in attackers:
        raw = Raw(port, credentials)
        for data in (b"random", os.urandom(200_000)):
            with pytest.raises(Refusal):
                raw.call("Step", data)
        raw.channel.close()
    with socket.create_connection(("127.0.0.1", port)) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
    _, errors = process.communicate(timeout=60)
    assert errors == ""
    assert process.returncode == 0
