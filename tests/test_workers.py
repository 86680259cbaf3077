"""Two and three workers as processes of their own, with gloo, as torchrun starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tpsl.workers import ALONE, WorkerLost, Workers


def test_rows_are_divided_evenly_and_without_a_gap() -> None:
    assert [Workers(number, 3).own_rows(10) for number in range(3)] == [slice(0, 3), slice(3, 6), slice(6, 10)]
    assert ALONE.own_rows(5) == slice(0, 5)
    for rows, count in ((0, 2), (1, 4), (100_003, 7)):
        shares = [Workers(number, count).own_rows(rows) for number in range(count)]
        assert [row for share in shares for row in range(rows)[share]] == list(range(rows))


def _everything(workers: Workers) -> dict[str, Any]:
    number = workers.rank
    tensors = [torch.full((2, 3), 1.0 + number), torch.tensor([number], dtype=torch.int64), torch.tensor(0.5)]
    workers.all_reduce(tensors)
    rows = torch.full((number, 2), number, dtype=torch.bfloat16)
    labels = torch.arange(6, dtype=torch.int16).reshape(2, 3) if workers.is_first else None
    seen = {
        "sums": [tensor.tolist() for tensor in tensors],
        "rows": workers.all_gather_rows(rows).tolist(),
        "nothing": workers.all_gather_rows(torch.empty(0, 4)).shape,
        "said": workers.broadcast({"step": 3, "who": "worker"} if workers.is_first else None),
        "labels": workers.broadcast_tensor(labels).tolist(),
        "type": str(workers.broadcast_tensor(labels).dtype),
        "place": [workers.rank, workers.count, workers.local_rank],
    }
    workers.barrier()
    return seen


@pytest.fixture(scope="module")
def three(in_workers: Callable[..., Any]) -> Any:
    return in_workers(3, _everything)


def test_each_worker_knows_its_place(three: list[dict[str, Any]]) -> None:
    assert [seen["place"] for seen in three] == [[0, 3, 0], [1, 3, 1], [2, 3, 2]]


def test_sums_are_over_all_workers_and_each_type(three: list[dict[str, Any]]) -> None:
    for seen in three:
        assert seen["sums"] == [[[6.0] * 3] * 2, [3], 1.5]


def test_rows_are_gathered_in_order_though_their_numbers_differ(three: list[dict[str, Any]]) -> None:
    for seen in three:
        assert seen["rows"] == [[1.0, 1.0], [2.0, 2.0], [2.0, 2.0]]
        assert seen["nothing"] == (0, 4)


def test_all_hear_the_first_worker(three: list[dict[str, Any]]) -> None:
    for seen in three:
        assert seen["said"] == {"step": 3, "who": "worker"}
        assert seen["labels"] == [[0, 1, 2], [3, 4, 5]] and seen["type"] == "torch.int16"


def _leaving_first(workers: Workers) -> str:
    workers.barrier()
    if not workers.is_first:
        workers.barrier()
    return "gone"


def test_a_worker_that_ends_is_missed_in_a_sentence(in_workers: Callable[..., Any]) -> None:
    gone, lost = in_workers(2, _leaving_first)
    assert gone == "gone"
    assert isinstance(lost, WorkerLost) and str(lost) == "another worker of this party has ended, or cannot be reached"


def test_a_worker_alone_gets_back_what_it_gave() -> None:
    assert Workers.of_this_process() is ALONE
    tensor = torch.ones(3)
    ALONE.all_reduce([tensor])
    assert tensor.tolist() == [1.0] * 3
    assert ALONE.all_gather_rows(tensor) is tensor
    assert ALONE.broadcast({"a": 1}) == {"a": 1} and ALONE.broadcast_tensor(tensor) is tensor
    ALONE.barrier()


LIFE = """
import os, signal
import torch
from tpsl.workers import Workers

workers, life = Workers.of_this_process(), os.environ["TORCHELASTIC_RESTART_COUNT"]
workers.barrier()
if life == "0" and not workers.is_first:
    os.kill(os.getpid(), signal.SIGKILL)
total = torch.tensor([1.0 + workers.rank])
workers.all_reduce([total])
print(f"life {life}: {total.item()}\\n", end="")  # in one piece, as both write to one place
"""


@pytest.mark.long
def test_workers_that_torchrun_starts_again_meet_again(tmp_path: Path) -> None:
    """Its store outlives them, with the addresses of those that are dead."""
    (tmp_path / "life.py").write_text(LIFE)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [*torchrun, "--max-restarts", "1", "--monitor-interval", "0.1", tmp_path / "life.py"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == ["life 1: 3.0"] * 2
