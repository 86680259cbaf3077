"""A feature party that computes between its questions, and one that takes answers in another order."""

import time
from collections.abc import Callable
from typing import Any

from tests.net.scene import Scene, eventually, share


def test_a_party_that_computes_for_long_is_not_lost(make_scene: Callable[..., Scene]) -> None:
    scene = make_scene(silence=0.6, wait=0.6)
    label, client = scene.label(2), scene.asking()
    client.ask("Step", 0, 0, {"airport": share(0)})
    time.sleep(2)
    client.ask("Step", 1, 0, {"airport": share(1)})
    label.result()
    assert scene.states("airport") == ["waiting: not connected yet", "connected"]


def test_the_last_answer_may_be_taken_first_though_the_questions_before_were_lost(
    make_scene: Callable[..., Scene], tcp_proxy: Callable[[str], Any]
) -> None:
    scene = make_scene()
    label, proxy = scene.label(3), tcp_proxy(f"127.0.0.1:{scene.port}")
    client = scene.asking(port=proxy.port)
    proxy.refuse()
    proxy.cut()
    answers = [client.ask_ahead("Step", step, 0, {"airport": share(step)}) for step in range(3)]
    assert eventually(lambda: all(call._future is not None and call._future.done() for call in client._under_way))
    proxy.thaw()
    found = [answer()["airport"].tensor for answer in reversed(answers)]
    assert [float(tensor[0, 0]) for tensor in found if tensor is not None] == [4.0, 2.0, 0.0]
    label.result()
