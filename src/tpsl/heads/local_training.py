"""The clean local head: a second head of the label party, trained on TRUE labels. It is not private.

Transcript DP speaks of what crosses the border. From the embeddings that it receives the label party may learn what it
likes, as long as nothing computed from it leaves: no gradient comes from here, and the private head does not know that
it exists. Whoever gets this head, or its scores, gets something of every training label.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from tpsl.heads.feature_map import Inputs, blocks
from tpsl.models.halves import ReluLayers, draw_weights, seed_of
from tpsl.models.model_config import OptimizerConfig
from tpsl.models.optimizer import HalfOptimizer
from tpsl.progress import Progress, no_progress

Labels = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int64]
Columns = npt.NDArray[np.int64]

WIDTHS = (256, 256)
"""Of the hidden layers of a part; a linear part has none."""
_EPOCHS, _BATCH = 8, 512
_PATIENCE = 2
_LINEAR_STEPS, _WEIGHING_STEPS = 50, 100
_VARIANCE_OF_WEIGHTS = 1 / 800
"""Of the prior of the parts' weights, around equal ones."""
_AVERAGING = 0.998
_HELD_OUT = 0.05
_OPTIMIZER = OptimizerConfig(name="adam", learning_rate=1e-3, weight_decay=1e-5)


class HeadPart(nn.Module):
    """Standardises some of the inputs and maps them to logits, through hidden layers of these widths or linearly."""

    columns: Tensor
    mean: Tensor
    scale: Tensor

    def __init__(self, columns: Columns, widths: Sequence[int], classes: int, generator: torch.Generator) -> None:
        super().__init__()
        self.register_buffer("columns", torch.tensor(columns))  # a copy: parts may share theirs
        self.register_buffer("mean", torch.zeros(len(columns)))
        self.register_buffer("scale", torch.ones(len(columns)))
        self.layers = nn.Sequential(*ReluLayers(len(columns), widths), nn.Linear((len(columns), *widths)[-1], classes))
        draw_weights(self, generator)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits, shape `[n, k]`."""
        logits: Tensor = self.layers((inputs.index_select(1, self.columns) - self.mean) / self.scale)
        return logits


class LocalHead(nn.Module):
    """A weighted sum of the logits of its parts and of the private head. NOT PRIVATE: it stays with the label party."""

    private: Tensor
    weights: Tensor

    def __init__(self, parts: Sequence[HeadPart], private: Columns) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.register_buffer("private", torch.tensor(private))  # a copy: torch.export cannot keep an empty view
        self.register_buffer("weights", torch.zeros(len(parts) + (len(private) > 0)))

    @classmethod
    def of(cls, state: Mapping[str, Tensor]) -> Self:
        """Return the head whose `state_dict` this is: how many parts it has, and how wide they are, follows from it."""
        parts = list[HeadPart]()
        while (columns := state.get(f"parts.{len(parts)}.columns")) is not None:
            layers = f"parts.{len(parts)}.layers."
            biases = {name: len(value) for name, value in state.items() if name.startswith(layers) and "bias" in name}
            *widths, classes = (biases[name] for name in sorted(biases, key=lambda name: int(name.split(".")[3])))
            parts.append(HeadPart(columns.numpy(), widths, classes, torch.Generator()))
        head = cls(parts, state["private"].numpy())
        head.load_state_dict(state)
        return head

    def logits(self, inputs: Tensor) -> Tensor:
        """Return the logits of each part and, at last, of the private head: shape `[J, n, k]`."""
        logits = [part(inputs) for part in self.parts]
        if len(self.private):
            private = inputs.index_select(1, self.private)
            logits.append(functional.pad(private, (1, 0)) if private.shape[1] == 1 else private)
        return torch.stack(logits)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits, shape `[n, k]`."""
        return torch.einsum("j,jnk->nk", self.weights, self.logits(inputs))

    @torch.no_grad()
    def predict(self, inputs: Inputs) -> npt.NDArray[np.float32]:
        """Return probabilities, as the private head does: of class 1 for two classes, of each class for k."""
        device = self.weights.device
        parts = [torch.softmax(self(torch.from_numpy(block).to(device)), dim=1).cpu() for block in blocks(inputs)]
        probabilities = torch.cat(parts).numpy()
        return probabilities[:, 1] if probabilities.shape[1] == 2 else probabilities


@dataclass(frozen=True)
class HoldOut:
    """Which records are held out from a local head, and what the columns of its inputs are."""

    rows: Rows
    """Records that nothing was trained on: the noisy hold-out."""
    clean: Columns
    """The inputs that no record's own label had a part in: pre-trained embeddings, scores of the wide part."""
    private: Columns
    """The private head's logits."""


def train_local_head(
    inputs: Inputs,
    labels: Labels,
    classes: int,
    seed: int,
    progress: Progress = no_progress,
    device: torch.device | None = None,
    hold_out: HoldOut | None = None,
) -> LocalHead:
    """Return a head trained on true labels; the hold-out set, else a twentieth of the records, decides when to stop.

    Halves that were trained on noisy labels know those of their training records, and a noisy label tells something of
    the true one: on these records the trained cut says more than it will on others. One part of the head sees the clean
    columns, one sees all; beside the first stands a linear part, which has less to learn by heart and goes on in a
    straight line where new records are unlike the old ones. The hold-out set decides how far each of them, and the
    private head, is to be trusted.

    `inputs` may be a memory-mapped file: a batch is read at a time. The result is a function of the arguments.
    """
    generator = torch.Generator().manual_seed(seed_of("tpsl local head", seed))
    every, nothing = np.arange(inputs.shape[1]), np.arange(0)
    if hold_out is None:
        order = torch.randperm(len(inputs), generator=generator).numpy()
        hold_out = HoldOut(np.sort(order[: max(1, round(_HELD_OUT * len(inputs)))]), nothing, nothing)
    clean = hold_out.clean if 0 < len(hold_out.clean) < len(every) else every
    plans = [(clean, ()), *([(clean, WIDTHS)] if clean is not every else []), (every, WIDTHS)]
    parts = [HeadPart(columns, widths, classes, generator) for columns, widths in plans]
    training = _Training(inputs, labels, hold_out.rows, device or torch.device("cpu"), generator)
    for number, part in enumerate(parts):
        training.standardise(part)
        if len(part.layers) == 1:
            training.fit_linear(part.to(device))
        else:
            training.train(part.to(device), number, len(parts), progress)
    head = LocalHead(parts, hold_out.private).to(device)
    training.weigh(head)
    return head


class _Training:
    """Records with true labels, and what is made of them."""

    def __init__(
        self, inputs: Inputs, labels: Labels, held_out: Rows, device: torch.device, generator: torch.Generator
    ) -> None:
        self._inputs, self._labels, self._held_out = inputs, labels, held_out
        self._fitted = np.delete(np.arange(len(inputs)), held_out)
        self._device, self._generator = device, generator

    def _at(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return copies of inputs and labels of some rows."""
        inputs, labels = np.array(self._inputs[rows]), self._labels[rows]
        return torch.from_numpy(inputs).to(self._device), torch.from_numpy(labels).to(self._device)

    def standardise(self, part: HeadPart) -> None:
        """Masked pre-training leaves units that are nearly always on: without this half of its gain is lost."""
        columns = part.columns.numpy()
        total, squares = np.zeros(len(columns)), np.zeros(len(columns))
        for block in blocks(self._inputs):
            numbers = block[:, columns].astype(np.float64)
            total += numbers.sum(axis=0)
            squares += np.square(numbers).sum(axis=0)
        mean = total / len(self._inputs)
        deviation = np.sqrt(np.maximum(squares / len(self._inputs) - np.square(mean), 0))
        part.mean.copy_(torch.from_numpy(mean))
        part.scale.copy_(torch.from_numpy(np.where(deviation > 1e-6, deviation, 1.0)))

    def fit_linear(self, part: HeadPart) -> None:
        """Fit a part without hidden layers: logistic regression, each weight with the prior N(0, 1/width)."""
        (output,) = part.layers
        assert isinstance(output, nn.Linear)
        nn.init.zeros_(output.weight)
        count = len(self._fitted)

        def loss() -> float:
            penalty = output.weight.square().sum() * len(part.columns) / 2
            (penalty / count).backward()  # type: ignore[no-untyped-call]
            return (float(penalty.detach()) + self._loss(part, self._fitted, learning=True)) / count

        _minimise(list(output.parameters()), loss, _LINEAR_STEPS)

    def train(self, part: HeadPart, number: int, of: int, progress: Progress) -> None:
        """Train one of so many parts until held-out records show no gain; keep it at its best."""
        optimizer = HalfOptimizer(part, _OPTIMIZER, averaging=_AVERAGING)
        best, best_loss, waited = deepcopy(part.state_dict()), np.inf, 0
        total = _EPOCHS * -(-len(self._fitted) // _BATCH)
        done = number * total
        for epoch in range(_EPOCHS):
            shuffled = self._fitted[torch.randperm(len(self._fitted), generator=self._generator).numpy()]
            for start in range(0, len(shuffled), _BATCH):
                inputs, labels = self._at(np.sort(shuffled[start : start + _BATCH]))
                functional.cross_entropy(part(inputs), labels).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                done += 1
                progress(done, of * total, f"local head, epoch {epoch + 1}")
            with optimizer.averaged():
                loss = self._loss(part, self._held_out)
                waited += 1
                if loss < best_loss:
                    best, best_loss, waited = deepcopy(part.state_dict()), loss, 0
            if waited >= _PATIENCE:
                break
        part.load_state_dict(best)

    def weigh(self, head: LocalHead) -> None:
        """Set the weights to those that are most probable after the true labels that were held out.

        Held-out records are like those that were learned from: they favour hidden layers, which know these best, and
        say nothing of records of another time. So the prior is narrow, around equal weights of all parts and none of
        the private head, and few records move it little.
        """
        with torch.no_grad():
            found = [head.logits(self._at(rows)[0]).cpu().double() for rows in blocks(self._held_out)]
        logits, truth = torch.cat(found, dim=1), torch.from_numpy(self._labels[self._held_out])
        equal = torch.zeros(len(logits), dtype=torch.float64)
        equal[: len(head.parts)] = 1 / len(head.parts)
        weights = equal.clone().requires_grad_()

        def loss() -> Tensor:
            loss = functional.cross_entropy(torch.einsum("j,jnk->nk", weights, logits), truth, reduction="sum")
            loss = loss + (weights - equal).square().sum() / (2 * _VARIANCE_OF_WEIGHTS)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        _minimise([weights], loss, _WEIGHING_STEPS)
        head.weights.copy_(weights.detach())

    def _loss(self, part: HeadPart, rows: Rows, *, learning: bool = False) -> float:
        """Return the summed loss of some records; `learning` adds up the gradient of the fitted records' mean loss."""
        summed = 0.0
        for block in blocks(rows):
            inputs, labels = self._at(block)
            with torch.set_grad_enabled(learning):
                loss = functional.cross_entropy(part(inputs), labels, reduction="sum")
            if learning:
                (loss / len(self._fitted)).backward()  # type: ignore[no-untyped-call]
            summed += float(loss.detach())
        return summed


def _minimise(parameters: list[Tensor], loss: Callable[[], Tensor | float], steps: int) -> None:
    """Minimise a loss that also finds its gradient."""
    solver = torch.optim.LBFGS(parameters, max_iter=steps, line_search_fn="strong_wolfe")

    def closure() -> Tensor | float:
        solver.zero_grad()
        return loss()

    solver.step(closure)  # type: ignore[no-untyped-call]
