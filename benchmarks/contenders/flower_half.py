"""The bottom half of the network as a ClientApp of Flower.

A message of kind `train` is answered with the embeddings of some rows, one of kind `evaluate` brings their gradients:
the two messages of a round of Flower's own vertical example.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from contenders.plain_network import Task

TASK = "TPSL_RACE_TASK"
"""The environment variable with the folder of the records."""
ARRAYS = "arrays"


class Half:
    """The bottom half, and the batch whose gradients are awaited."""

    def __init__(self) -> None:
        self.task = Task.read(Path(os.environ[TASK]))
        self.bottom = self.task.bottom()
        self.optimizer = self.task.sgd(self.bottom)
        self.cut: Tensor | None = None


_halves: list[Half] = []
"""The half of this process: Flower keeps no object from message to message."""
client = ClientApp()


def message_content(*tensors: Tensor) -> RecordDict:
    """Return the content of a message with these tensors."""
    return RecordDict({ARRAYS: ArrayRecord([tensor.numpy() for tensor in tensors])})


def tensor_in(message: Message) -> Tensor:
    """Return the one tensor of a message."""
    (array,) = message.content[ARRAYS].to_numpy_ndarrays()
    return torch.from_numpy(array)


@client.train()
def forward(message: Message, context: Context) -> Message:
    """Answer rows with their embeddings."""
    if not _halves:
        _halves.append(Half())
    (half,) = _halves
    half.cut = half.bottom(half.task.categorical[tensor_in(message)])
    return Message(message_content(half.cut.detach()), reply_to=message)


@client.evaluate()
def backward(message: Message, context: Context) -> Message:
    """Learn from the gradients of the last rows."""
    (half,) = _halves
    assert half.cut is not None
    half.optimizer.zero_grad()
    half.cut.backward(tensor_in(message))
    half.optimizer.step()
    return Message(message_content(), reply_to=message)
