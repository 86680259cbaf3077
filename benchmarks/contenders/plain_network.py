"""The network of the benchmark as a user of PyTorch writes it, and the records that it learns from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Task:
    """What is trained: a folder with `shape.json` and the arrays of the records."""

    shape: dict[str, Any]
    categorical: Tensor
    numeric: Tensor
    labels: Tensor

    @classmethod
    def read(cls, folder: Path) -> Task:
        """Read the records, and take as many threads as the shape says."""
        shape = json.loads((folder / "shape.json").read_text(encoding="utf-8"))
        torch.set_num_threads(shape["threads"])
        torch.manual_seed(0)
        categorical, numeric, labels = (
            torch.from_numpy(np.load(folder / f"{name}.npy")).to(shape["device"])
            for name in ("categorical", "numeric", "labels")
        )
        return cls(shape, categorical.long(), numeric, labels)

    def rows(self) -> Iterator[Tensor]:
        """Yield the rows of one batch after the other, epoch after epoch, each in a new random order."""
        size = self.shape["batch"]
        while True:
            order = torch.randperm(len(self.labels))
            yield from order[: len(order) // size * size].split(size)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the categories and labels of one batch after the other."""
        for rows in self.rows():
            yield self.categorical[rows], self.labels[rows]

    def loss(self) -> nn.Module:
        """Return the mean log loss."""
        return nn.BCEWithLogitsLoss() if self.shape["classes"] == 2 else nn.CrossEntropyLoss()

    def targets(self, labels: Tensor) -> Tensor:
        """Return labels as `loss` wants them."""
        return labels.float() if self.shape["classes"] == 2 else labels

    def bottom(self, *, sparse: bool = True) -> Bottom:
        """Return a bottom half."""
        return Bottom(self.shape, sparse=sparse)

    def top(self) -> Top:
        """Return a top half."""
        return Top(self.shape)

    def sgd(self, *halves: nn.Module) -> torch.optim.SGD:
        """Return the optimiser of some halves."""
        parameters = [parameter for half in halves for parameter in half.parameters()]
        return torch.optim.SGD(parameters, lr=self.shape["learning_rate"])

    def optimizers(self, bottom: Bottom, top: Top) -> list[torch.optim.Optimizer]:
        """Return the optimisers that the shape names; PyTorch's Adam for sparse gradients takes nothing else."""
        name, rate = self.shape["optimizer"], self.shape["learning_rate"]
        table, dense = list(bottom.embedding.parameters()), [*bottom.layers.parameters(), *top.parameters()]
        if name == "adam":
            first = torch.optim.SparseAdam if bottom.embedding.sparse else torch.optim.Adam
            return [first(table, rate), torch.optim.Adam(dense, rate)]
        return [torch.optim.Adagrad([*table, *dense], rate)] if name == "adagrad" else [self.sgd(bottom, top)]


class Bottom(nn.Module):
    """Categories, and numbers if the shape has any → the cut."""

    def __init__(self, shape: dict[str, Any], *, sparse: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape["table_rows"], shape["embedding_dim"], sparse=sparse)
        self.layers = _relu_layers(shape["fields"] * shape["embedding_dim"] + shape["numbers"], shape["bottom"])

    def forward(self, categorical: Tensor, numeric: Tensor | None = None) -> Tensor:
        """Return the embeddings of a batch."""
        inputs = self.embedding(categorical).flatten(1)
        cut: Tensor = self.layers(inputs if numeric is None else torch.cat([inputs, numeric], dim=1))
        return cut


class Top(nn.Module):
    """The cut → logits: one for two classes, else one for each class."""

    def __init__(self, shape: dict[str, Any]) -> None:
        super().__init__()
        self.layers = _relu_layers(shape["bottom"][-1], shape["top"])
        self.output = nn.Linear(shape["top"][-1], 1 if shape["classes"] == 2 else shape["classes"])

    def forward(self, cut: Tensor) -> Tensor:
        """Return the logits of a batch."""
        logits: Tensor = self.output(self.layers(cut))
        return logits.squeeze(1) if logits.shape[1] == 1 else logits


def _relu_layers(width: int, widths: list[int]) -> nn.Sequential:
    pairs = zip([width, *widths], widths, strict=False)
    return nn.Sequential(*(part for pair in pairs for part in (nn.Linear(*pair), nn.ReLU())))
