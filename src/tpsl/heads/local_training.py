"""The clean local head: a second head of the label party, trained on TRUE labels. It is not private.

Transcript DP speaks of what crosses the border. From the embeddings that it receives the label party may learn what it
likes, as long as nothing computed from it leaves: no gradient comes from here, and the private head does not know that
it exists. Whoever gets this head, or its scores, gets something of every training label.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from tpsl.heads.feature_map import Inputs, blocks
from tpsl.models.halves import ReluLayers, draw_weights
from tpsl.models.members import seed_of
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
_LINEAR_STEPS = 50
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
        parts, number = list[HeadPart](), 0
        while (columns := state.get(f"parts.{number}.columns")) is not None:
            layers = f"parts.{number}.layers."
            biases = {name: len(value) for name, value in state.items() if name.startswith(layers) and "bias" in name}
            *widths, classes = (biases[name] for name in sorted(biases, key=lambda name: int(name.split(".")[3])))
            parts.append(HeadPart(columns.numpy(), widths, classes, torch.Generator()))
            number += 1
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
        parts = [torch.softmax(self(_tensor(block, self)), dim=1).cpu() for block in blocks(inputs)]
        probabilities = torch.cat(parts).numpy()
        return probabilities[:, 1] if probabilities.shape[1] == 2 else probabilities


@dataclass(frozen=True)
class Judging:
    """Which records judge the parts of a local head, and what the columns of its inputs are."""

    judges: Rows
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
    judging: Judging | None = None,
) -> LocalHead:
    """Return a head trained on true labels; the judges decide when to stop, or else a twentieth of the records.

    Halves that were trained on noisy labels know those of their training records, and a noisy label tells something of
    the true one: on these records the trained cut says more than it will on others. One part of the head sees the clean
    columns, one sees all; beside the first stands a linear part, which has less to learn by heart and goes on in a
    straight line where new records are unlike the old ones. The judges decide how far each of them, and the private
    head, is to be trusted.

    `inputs` may be a memory-mapped file: a batch is read at a time. The result is a function of the arguments.
    """
    generator = torch.Generator().manual_seed(seed_of("tpsl local head", seed))
    judging = judging or _drawn_judges(len(inputs), generator)
    fitted = np.delete(np.arange(len(inputs), dtype=np.int64), judging.judges)
    every = np.arange(inputs.shape[1], dtype=np.int64)
    clean = judging.clean if 0 < len(judging.clean) < len(every) else every
    plans = [(clean, ()), *([(clean, WIDTHS)] if clean is not every else []), (every, WIDTHS)]
    parts = [HeadPart(columns, widths, classes, generator) for columns, widths in plans]
    for number, part in enumerate(parts):

        def of_all(done: int, total: int, note: str, number: int = number) -> None:
            progress(number * total + done, len(parts) * total, note)

        _standardise(part, inputs)
        if len(part.layers) == 1:
            _fit_linear(part.to(device), inputs, labels, fitted)
        else:
            _train_part(part.to(device), inputs, labels, fitted, judging.judges, generator, of_all)
    head = LocalHead(parts, judging.private).to(device)
    _weigh(head, inputs, labels, judging.judges)
    return head


def _drawn_judges(records: int, generator: torch.Generator) -> Judging:
    """Return judges where no records were held out: a twentieth, which nothing else is known of."""
    nothing = np.empty(0, dtype=np.int64)
    order = torch.randperm(records, generator=generator).numpy()
    return Judging(np.sort(order[: max(1, round(_HELD_OUT * records))]), nothing, nothing)


def _fit_linear(part: HeadPart, inputs: Inputs, labels: Labels, fitted: Rows) -> None:
    """Fit a part without hidden layers: logistic regression, each weight with the prior N(0, 1/width)."""
    output = part.layers[0]
    assert isinstance(output, nn.Linear)
    nn.init.zeros_(output.weight)
    solver = torch.optim.LBFGS(output.parameters(), max_iter=_LINEAR_STEPS, line_search_fn="strong_wolfe")

    def closure() -> float:
        solver.zero_grad()
        penalty = output.weight.square().sum() * len(part.columns) / 2
        (penalty / len(fitted)).backward()  # type: ignore[no-untyped-call]
        summed = float(penalty.detach())
        for rows in blocks(fitted):
            logits = part(_tensor(inputs[rows], part))
            loss = functional.cross_entropy(logits, _tensor(labels[rows], part), reduction="sum")
            (loss / len(fitted)).backward()  # type: ignore[no-untyped-call]
            summed += float(loss.detach())
        return summed / len(fitted)

    solver.step(closure)  # type: ignore[no-untyped-call]


def _train_part(
    head: HeadPart,
    inputs: Inputs,
    labels: Labels,
    fitted: Rows,
    held_out: Rows,
    generator: torch.Generator,
    progress: Progress,
) -> None:
    optimizer = HalfOptimizer(head, _OPTIMIZER, averaging=_AVERAGING)
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


def _weigh(head: LocalHead, inputs: Inputs, labels: Labels, judges: Rows) -> None:
    """Set the weights to those that are most probable after the judges' true labels, given that they began equal.

    Judges are like the records that were learned from. They trust hidden layers, which know those best; records of
    another time they have not seen. So the prior is narrow, around equal weights of all parts and none of the private
    head, and few judges move it little.
    """
    with torch.no_grad():
        found = [head.logits(_tensor(inputs[rows], head)).cpu().double() for rows in blocks(judges)]
    logits, truth = torch.cat(found, dim=1), torch.from_numpy(labels[judges])
    equal = torch.zeros(len(logits), dtype=torch.float64)
    equal[: len(head.parts)] = 1 / len(head.parts)
    weights = equal.clone().requires_grad_()
    solver = torch.optim.LBFGS([weights], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        solver.zero_grad()
        loss = functional.cross_entropy(torch.einsum("j,jnk->nk", weights, logits), truth, reduction="sum")
        loss = loss + (weights - equal).square().sum() / (2 * _VARIANCE_OF_WEIGHTS)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    solver.step(closure)  # type: ignore[no-untyped-call]
    head.weights.copy_(weights.detach())


def _standardise(head: HeadPart, inputs: Inputs) -> None:
    """Masked pre-training leaves units that are nearly always on: without this half of its gain is lost."""
    columns = head.columns.numpy()
    total, squares = np.zeros(len(columns)), np.zeros(len(columns))
    for block in blocks(inputs):
        part = block[:, columns].astype(np.float64)
        total += part.sum(axis=0)
        squares += np.square(part).sum(axis=0)
    mean = total / len(inputs)
    deviation = np.sqrt(np.maximum(squares / len(inputs) - np.square(mean), 0))
    head.mean.copy_(torch.from_numpy(mean))
    head.scale.copy_(torch.from_numpy(np.where(deviation > 1e-6, deviation, 1.0)))


@torch.no_grad()
def _loss(head: HeadPart, inputs: Inputs, labels: Labels, rows: Rows) -> float:
    summed = 0.0
    for part in blocks(rows):
        logits = head(_tensor(inputs[part], head))
        summed += float(functional.cross_entropy(logits, _tensor(labels[part], head), reduction="sum"))
    return summed / len(rows)


def _copy(head: HeadPart) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in head.state_dict().items()}


def _tensor(values: Inputs | Labels, head: nn.Module) -> Tensor:
    """Return a copy of a part of what may be a file, where the head is."""
    return torch.from_numpy(np.array(values)).to(next(head.parameters()).device)
