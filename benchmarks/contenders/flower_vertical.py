"""Vertical learning with Flower's simulation, without privacy.

Install: `pip install 'flwr[simulation]==1.41.0' torch`.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from flwr.app import Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from contenders.flower_half import TASK, client, message_content, tensor_in
from contenders.plain_network import Task
from contenders.turns import Turns

server = ServerApp()


def asked(grid: Grid, content: RecordDict, node: int, kind: str) -> Message:
    """Send the node a message and return its reply."""
    (reply,) = grid.send_and_receive([Message(content, node, kind)])
    return reply


@server.main()
def train(grid: Grid, context: Context) -> None:
    """Be the label party: train for ever, in turns."""
    task = Task.read(Path(os.environ[TASK]))
    top, loss, turns = task.top(), task.loss(), Turns()
    optimizer = task.sgd(top)
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.1)
    for rows in task.rows():
        received = tensor_in(asked(grid, message_content(rows), nodes[0], MessageType.TRAIN)).requires_grad_()
        optimizer.zero_grad()
        loss(top(received), task.targets(task.labels[rows])).backward()
        optimizer.step()
        assert received.grad is not None
        asked(grid, message_content(received.grad), nodes[0], MessageType.EVALUATE)
        turns.step_done()


def main() -> None:
    """Run server and client until this process ends."""
    os.environ[TASK] = sys.argv[1]
    threads = Task.read(Path(sys.argv[1])).shape["threads"]
    run_simulation(server, client, num_supernodes=1, backend_config={"client_resources": {"num_cpus": threads}})


if __name__ == "__main__":
    main()
