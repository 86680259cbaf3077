"""The clean local head: a second head of the label party, trained on TRUE labels. It is not private.

Transcript DP speaks of what crosses the border. From the embeddings that it receives the label party may learn what it
likes, as long as nothing computed from it leaves: no gradient comes from here, and the private head does not know that
it exists. Whoever gets this head, or its scores, gets something of every training label.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from tpsl.models import HalfOptimizer, OptimizerConfig

Inputs = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
Progress = Callable[[int, int, str], None]

WIDTHS = (256, 256)
_EPOCHS, _BATCH = 8, 512
_PATIENCE = 2
_AVERAGING = 0.998
_HELD_OUT = 0.05
_ROWS_AT_ONCE = 16_384
_OPTIMIZER = OptimizerConfig(name="adam", learning_rate=1e-3, weight_decay=1e-5)


class LocalHead(nn.Module):
    """Standardises its inputs and maps them to logits. NOT PRIVATE: it stays with the label party."""

    mean: Tensor
    scale: Tensor

    def __init__(self, inputs: int, classes: int, generator: torch.Generator) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("scale", torch.ones(inputs))
        layers: list[nn.Module] = []
        for width, next_width in zip((inputs, *WIDTHS[:-1]), WIDTHS, strict=True):
            layers += [nn.Linear(width, next_width), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(WIDTHS[-1], classes))
        for part in self.layers:
            if isinstance(part, nn.Linear):
                with torch.no_grad():
                    part.weight.normal_(0.0, (2.0 / part.in_features) ** 0.5, generator=generator)
                    part.bias.zero_()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits, shape `[n, k]`."""
        logits: Tensor = self.layers((inputs - self.mean) / self.scale)
        return logits

    @torch.no_grad()
    def predict(self, inputs: Inputs) -> npt.NDArray[np.float32]:
        """Return probabilities, as the private head does: of class 1 for two classes, of each class for k."""
        parts = [
            torch.softmax(self(_tensor(inputs[start : start + _ROWS_AT_ONCE], self)), dim=1).cpu()
            for start in range(0, len(inputs), _ROWS_AT_ONCE)
        ]
        probabilities = torch.cat(parts).numpy()
        return probabilities[:, 1] if probabilities.shape[1] == 2 else probabilities


def train_local_head(
    inputs: Inputs,
    labels: Labels,
    classes: int,
    seed: int,
    progress: Progress = lambda done, total, note: None,
    device: torch.device | None = None,
) -> LocalHead:
    """Return a head trained on true labels; a twentieth of the records decides when to stop.

    `inputs` may be a memory-mapped file: a batch is read at a time. The result is a function of the arguments.
    """
    generator = torch.Generator().manual_seed(_seed(seed))
    head = LocalHead(inputs.shape[1], classes, generator)
    _standardise(head, inputs)
    head.to(device)
    optimizer = HalfOptimizer(head, _OPTIMIZER, averaging=_AVERAGING)
    order = torch.randperm(len(inputs), generator=generator).numpy()
    held = max(1, round(_HELD_OUT * len(inputs)))
    held_out, fitted = np.sort(order[:held]), order[held:]
    best, best_loss, waited = _copy(head), np.inf, 0
    total = _EPOCHS * -(-len(fitted) // _BATCH)
    done = 0
    for epoch in range(_EPOCHS):
        shuffled = fitted[torch.randperm(len(fitted), generator=generator).numpy()]
        for start in range(0, len(shuffled), _BATCH):
            rows = np.sort(shuffled[start : start + _BATCH])
            loss = functional.cross_entropy(head(_tensor(inputs[rows], head)), _tensor(labels[rows], head))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            done += 1
            progress(done, total, f"local head, epoch {epoch + 1}")
        with optimizer.averaged():
            loss_now = _loss(head, inputs, labels, held_out)
            if loss_now < best_loss:
                best, best_loss, waited = _copy(head), loss_now, 0
            else:
                waited += 1
        if waited >= _PATIENCE:
            break
    head.load_state_dict(best)
    return head


def _standardise(head: LocalHead, inputs: Inputs) -> None:
    """Masked pre-training leaves units that are nearly always on: without this half of its gain is lost."""
    total = np.zeros(inputs.shape[1])
    squares = np.zeros(inputs.shape[1])
    for start in range(0, len(inputs), _ROWS_AT_ONCE):
        part = np.asarray(inputs[start : start + _ROWS_AT_ONCE], dtype=np.float64)
        total += part.sum(axis=0)
        squares += np.square(part).sum(axis=0)
    mean = total / len(inputs)
    deviation = np.sqrt(np.maximum(squares / len(inputs) - np.square(mean), 0))
    head.mean.copy_(torch.from_numpy(mean))
    head.scale.copy_(torch.from_numpy(np.where(deviation > 1e-6, deviation, 1.0)))


@torch.no_grad()
def _loss(head: LocalHead, inputs: Inputs, labels: Labels, rows: npt.NDArray[np.int64]) -> float:
    summed = 0.0
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part = rows[start : start + _ROWS_AT_ONCE]
        logits = head(_tensor(inputs[part], head))
        summed += float(functional.cross_entropy(logits, _tensor(labels[part], head), reduction="sum"))
    return summed / len(rows)


def _copy(head: LocalHead) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in head.state_dict().items()}


def _tensor(values: Inputs | Labels, head: LocalHead) -> Tensor:
    """Return a copy of a part of what may be a file, where the head is."""
    return torch.from_numpy(np.array(values)).to(head.mean.device)


def _seed(seed: int) -> int:
    return int.from_bytes(hashlib.sha256(f"tpsl local head\x1f{seed}".encode()).digest()[:8], "little") >> 1
