"""Torch has one number of threads for a process, and one for each thread of it."""

from collections.abc import Iterator
from threading import Event, Thread

import pytest
import torch

from tpsl.workers import one_thread


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def in_a_new_thread() -> int:
    found: list[int] = []
    thread = Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.usefixtures("three_threads")
def test_blocks_within_each_other_are_one() -> None:
    with one_thread():
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == in_a_new_thread() == 3


@pytest.mark.usefixtures("three_threads")
def test_the_number_comes_back_after_blocks_of_several_threads_at_once() -> None:
    inside, go_on, found = Event(), Event(), []

    def other() -> None:
        with one_thread():
            inside.set()
            go_on.wait()
            found.append(torch.get_num_threads())
        found.append(torch.get_num_threads())

    thread = Thread(target=other)
    with one_thread():
        thread.start()  # it begins, and is inside, while one thread is the number of the process
        inside.wait()
    go_on.set()
    thread.join()
    assert found == [1, 3]
    assert torch.get_num_threads() == in_a_new_thread() == 3
