"""Networks that break and processes that stop: every answer arrives, once computed, and nobody is given up too soon."""

import os
import random
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.net.scene import LIMITS, ROWS, WIDTH, Scene, eventually, share

from tpsl.net.asking import Due, Script
from tpsl.net.connection import Patience
from tpsl.net.failures import JobStopped, PeerMissing
from tpsl.net.messages import Message

Make = Callable[..., Scene]
Proxy = Callable[[str], Any]
CUTS = int(os.environ.get("TPSL_DRILL_CUTS", "12"))


def watched(scene: Scene, **patience: float) -> Any:
    """Terms of a client whose news the scene sees, too."""
    return replace(
        scene.terms,
        watch=lambda *news: scene.seen.append(news),
        patience=Patience(**{"silence": scene.patience.silence, "wait": scene.patience.wait, **patience}),
    )


def test_a_network_that_is_cut_between_and_in_all_calls_changes_no_answer_and_no_number(
    make_scene: Make, tcp_proxy: Proxy
) -> None:
    count = 150
    scene = make_scene("airport", "bank", silence=4)
    proxy = tcp_proxy(f"127.0.0.1:{scene.port}")
    label, chance, ends = scene.label(count, rows=64, width=256), random.Random(0), threading.Event()

    def cut() -> int:
        cuts = 0
        while not ends.is_set():
            time.sleep(chance.uniform(0.001, 0.03))
            proxy.cut(one=cuts % 2 == 1)
            cuts += 1
            if cuts % 4 == 0:
                time.sleep(0.1)
        return cuts

    def ask(party: str, port: int) -> list[torch.Tensor]:
        client = scene.asking(party, port=port, terms=watched(scene))
        generator = torch.Generator().manual_seed(ord(party[0]))
        answers = []
        for step in range(count):
            tensor = torch.randn(64, 256, generator=generator)
            answers.append(client.ask_ahead("Step", step, 0, {party: Message(tensor=tensor)}))
        return [answer()[party].tensor for answer in answers]

    asking = [scene.pool.submit(ask, *each) for each in (("airport", proxy.port), ("bank", scene.port))]
    cutting = scene.pool.submit(cut)
    airport, bank = (each.result() for each in asking)
    ends.set()
    label.result()
    assert cutting.result() > CUTS
    generators = [torch.Generator().manual_seed(ord(letter)) for letter in "ab"]
    wanted = [2 * sum(torch.randn(64, 256, generator=generator) for generator in generators) for _ in range(count)]
    for found in (airport, bank):
        assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))
    assert scene.restarts == 0 and scene.computed == list(range(count)), "no answer was computed twice"
    assert any(state.startswith("lost") for state in scene.states("label"))


def test_the_last_answer_arrives_through_a_cut(make_scene: Make, tcp_proxy: Proxy) -> None:
    scene = make_scene()
    proxy = tcp_proxy(f"127.0.0.1:{scene.port}")
    label, client = scene.label(1), scene.asking(port=proxy.port)
    proxy.freeze()
    answer = client.ask_ahead("Step", 0, 0, {"airport": share(1)})
    proxy.cut()
    proxy.thaw()
    waiting = scene.pool.submit(lambda: answer()["airport"].tensor)
    label.result()
    scene.server.stop()
    assert bool((waiting.result() == 2).all())


def test_a_half_open_network_is_noticed_and_survived(make_scene: Make, tcp_proxy: Proxy) -> None:
    scene = make_scene("airport", silence=1)
    proxy = tcp_proxy(f"127.0.0.1:{scene.port}")
    label, client = scene.label(3), scene.asking(port=proxy.port, terms=watched(scene))
    client.ask("Step", 0, 0, {"airport": share(1)})
    proxy.freeze()
    waiting = scene.pool.submit(client.ask, "Step", 1, 0, {"airport": share(1)})
    for peer in ("airport", "label"):
        assert scene.sees(peer, "lost: not heard for 1 s; waiting up to 20 s for its return")
    proxy.thaw()
    assert bool((waiting.result(60)["airport"].tensor == 2).all())
    client.ask("Step", 2, 0, {"airport": share(1)})
    label.result()
    for peer in ("airport", "label"):
        assert scene.states(peer).count("connected again") == 1


FEATURE = """
from pathlib import Path
import torch
from tests.net.scene import AGREED, LIMITS, share
from tpsl.net.client import LabelClient
from tpsl.net.certificates import Certificates
from tpsl.net.asking import Due, Script
from tpsl.net.connection import Patience, Terms
from tpsl.net.messages import Message

terms = Terms(LIMITS, "float32", Patience(silence, 20))
own = Certificates.load(Path(certificates) / "airport")
with LabelClient(f"127.0.0.1:{port}", "airport", AGREED, terms, certificates=own) as client:
    client.agree({"airport": Message()})
    for step in range(steps):
        client.ask("Step", step, 0, {"airport": share(step)})
"""


def test_a_stopped_process_is_noticed_and_goes_on(make_scene: Make, fork: Any, tmp_path: Path) -> None:
    scene = make_scene("airport", silence=1, wait=120)
    label = scene.label(400)
    own = {"certificates": str(scene.folder), "port": scene.port, "silence": 1, "steps": 400}
    process = fork(FEATURE, tmp_path, **own)
    assert eventually(lambda: scene.desk._callers["airport"].next > 50, within=120)
    process.signal(signal.SIGSTOP)
    assert scene.sees("airport", "lost: not heard for 1 s")
    process.signal(signal.SIGCONT)
    label.result(60)
    assert process.status(30) == 0, process.stderr.read_text()
    assert scene.states("airport").count("connected again") == 1 and scene.restarts == 0


def test_a_killed_process_is_noticed_at_once_while_it_waits(make_scene: Make, fork: Any, tmp_path: Path) -> None:
    scene = make_scene("airport", "bank", silence=600, wait=600)
    label = scene.label(3)
    own = {"certificates": str(scene.folder), "port": scene.port, "silence": 600, "steps": 1}
    process = fork(FEATURE, tmp_path, **own)
    assert scene.sees("airport", "connected", within=120)
    bank = scene.asking("bank")
    assert eventually(lambda: scene.desk._callers["airport"].due is not None)
    process.signal(signal.SIGKILL)
    assert scene.sees("airport", "lost: the connection ended")
    bank.stop("enough")
    with pytest.raises(JobStopped):
        label.result()


def test_a_peer_that_does_not_come_back_is_missing_at_both_sides(make_scene: Make, tcp_proxy: Proxy) -> None:
    scene = make_scene("airport", silence=0.5, wait=1.5)
    proxy = tcp_proxy(f"127.0.0.1:{scene.port}")
    label, client = scene.label(3), scene.asking(port=proxy.port)
    client.ask("Step", 0, 0, {"airport": share(1)})
    proxy.refuse()
    proxy.cut()
    begun = time.monotonic()
    with pytest.raises(
        PeerMissing, match=r"^the label party was lost \(.*refused\) and did not come back within 1.5 s"
    ):
        client.ask("Step", 1, 0, {"airport": share(1)})
    assert 1.4 < time.monotonic() - begun < 10
    with pytest.raises(PeerMissing, match=r"^feature party 'airport' was lost .* did not come back within 1.5 s$"):
        label.result()


def test_a_party_that_is_gone_is_missed_also_where_threads_of_the_network_have_answered(make_scene: Make) -> None:
    """The thread that trains looks after the parties, whenever it has found another thread busy with an answer."""
    scene, steps = make_scene("airport", silence=0.5, wait=1.5), 8

    def script() -> Script:
        for step in range(steps + 1):
            question = yield Due("Step", step, rows=ROWS, widths={"airport": WIDTH}, is_quick=True)
            question.answer_all(share(step))
            yield None
            time.sleep(0.2)  # long, but quick enough for a thread of the network

    def serve() -> None:
        scene.desk.start(dict.fromkeys(scene.desk.gather(), Message()))
        scene.desk.answer_all(script())

    label, client = scene.pool.submit(serve), scene.asking()
    for step in range(steps):
        client.ask("Step", step, 0, {"airport": share(1)})
        time.sleep(0.24)  # a thread of the network takes a question that nobody is busy with
    with pytest.raises(PeerMissing, match=r"^feature party 'airport' was lost .* did not come back within 1.5 s$"):
        label.result(20)


def test_a_party_that_was_busy_for_long_is_patient_with_the_first_call_that_fails(
    make_scene: Make, tcp_proxy: Proxy
) -> None:
    scene = make_scene("airport", silence=0.5)
    proxy = tcp_proxy(f"127.0.0.1:{scene.port}")
    label, client = scene.label(2), scene.asking(port=proxy.port, terms=watched(scene, wait=1))
    client.ask("Step", 0, 0, {"airport": share(1)})
    proxy.refuse()
    proxy.cut()
    time.sleep(1.2)  # longer than it waits for a label party that is lost
    waiting = scene.pool.submit(client.ask, "Step", 1, 0, {"airport": share(1)})
    time.sleep(0.3)
    proxy.thaw()
    assert bool((waiting.result()["airport"].tensor == 2).all())
    label.result()


def test_a_label_party_that_was_stopped_itself_does_not_blame_the_others(make_scene: Make) -> None:
    scene = make_scene("airport", silence=0.5, wait=0.5)
    label, client = scene.label(2), scene.asking(terms=watched(scene, wait=20))
    client.ask("Step", 0, 0, {"airport": share(1)})
    wait, stops = scene.desk._changed.wait, list[float]()

    def stopped(seconds: float | None = None) -> bool:
        stops.append(time.monotonic())
        time.sleep(1.5)
        return wait(0)

    scene.desk._changed.wait = stopped  # type: ignore[method-assign]
    assert eventually(lambda: len(stops) > 0)
    client.ask("Step", 1, 0, {"airport": share(1)})
    label.result()
    assert not [state for state in scene.states("airport") if "not heard" in state]


@pytest.mark.parametrize("abruptly", [True, False])
def test_a_connection_that_ends_at_once_says_nothing_about_the_certificate(make_scene: Make, abruptly: bool) -> None:
    """Such are networks that break, and gateways before a label party that is not there yet."""
    scene = make_scene()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        waiting = scene.pool.submit(scene.asking, port=port)
        for attempt in range(12):
            connection, _ = listener.accept()
            with connection:
                if attempt:
                    assert connection.recv(1 if abruptly else 1 << 16).startswith(b"\x16")
                if abruptly:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    label = make_scene(address=f"127.0.0.1:{port}").label(1)
    waiting.result().ask("Step", 0, 0, {"airport": share(1)})
    label.result()


def test_many_reconnections_leave_no_threads_behind(make_scene: Make, tcp_proxy: Proxy) -> None:
    scene = make_scene()
    proxy = tcp_proxy(f"127.0.0.1:{scene.port}")
    label, client = scene.label(12), scene.asking(port=proxy.port)
    most = 0
    for step in range(12):
        client.ask("Step", step, 0, {"airport": share(1)})
        most = max(most, threading.active_count()) if step < 3 else most
        proxy.cut()
    label.result()
    assert eventually(lambda: threading.active_count() <= most + 2)


def test_several_losses_in_a_row_do_not_count_as_too_many_calls(make_scene: Make, tcp_proxy: Proxy) -> None:
    """The calls of dead connections are open at the label party until it notices; an honest party goes on."""
    scene = make_scene("airport", "bank", silence=6)
    label = scene.label(8)
    coming, several = scene.pool.submit(scene.asking, "bank"), [scene.raw(), scene.raw()]
    several[0].agree()
    hanging = [several[0].begin("Step", several[0].question(0)) for _ in range(LIMITS.calls + 4)]
    assert eventually(lambda: scene.server._open["airport"] == LIMITS.calls + 4)
    busy = several[1].refused("Step", several[0].question(0))
    assert (busy.status, busy.code) == ("RESOURCE_EXHAUSTED", "busy")
    client = scene.client(terms=watched(scene))
    client._session = several[0].session  # the same party, on another connection
    waiting = scene.pool.submit(client.ask, "Step", 0, 0, {"airport": share(0)})
    assert scene.sees("label", "too many open calls")
    bank = coming.result()
    bank.ask("Step", 0, 0, {"bank": share(1)})
    assert bool((waiting.result()["airport"].tensor == 2).all())
    assert hanging[0].result() == hanging[-1].result(), "a question that is asked again gets the same bytes"
    bank.stop("enough")
    with pytest.raises(JobStopped):
        label.result()
