"""Label-free pre-training of a bottom half: a party learns from its own features what goes with what.

The method `masked` hides fields of a record and predicts all of them from the cut.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tpsl.data.features import Features
from tpsl.data.order import Rows
from tpsl.models.halves import Bottom, Table, draw_weights, seed_of
from tpsl.models.model_config import OptimizerConfig, PretrainConfig, ScheduleConfig
from tpsl.models.optimizer import HalfOptimizer
from tpsl.progress import Progress, no_progress
from tpsl.split.batches import Batches

_HELD_OUT = 0.05  # share of the rows
_WARM_UP = 0.1  # share of the steps
_DECODER_WIDTH = 256
_VALUE_WIDTH = 16
_CANDIDATES = 256  # values that a field's true value is compared with
_FAR = 3.0  # deviations from which on a number's error counts linearly


def pretrain(
    bottom: Bottom,
    features: Features,
    rows: Rows,
    config: PretrainConfig,
    seed: int,
    progress: Progress = no_progress,
) -> list[float]:
    """Train `bottom` in place on these rows of the party's own features; return the held-out losses.

    Guarantee: it sees this party's features only, no label and nothing that was computed from one, and sends nothing;
    so it costs no privacy. The result is a function of the arguments (bit for bit on one kind of machine); global
    random states are neither read nor changed.

    A twentieth of the rows is held out, with fixed masks. Their loss, before the first epoch and after each, decides
    when to stop and whose weights are kept; if nothing improves these are the fresh ones.
    The cut leaves with the root mean square it came with, because the label party's half and both learning rates
    expect that of fresh weights.
    """
    if len(rows) < 2:
        raise ValueError(f"pre-training needs at least 2 records, there are {len(rows)}")
    device = next(bottom.parameters()).device
    inputs, order = Batches(features, device), _generator(seed, "order", torch.device("cpu"))
    shuffled = _shuffled(rows, order)
    # Small tables hold out more: a handful of records says little.
    held = max(round(_HELD_OUT * len(rows)), min(64, len(rows) // 2))
    held_out, fitted = _batches(shuffled[:held], config.batch_size), shuffled[held:]
    objective = Reconstruction(bottom, features, rows, config.share, _generator(seed, "weights", device))
    total = config.epochs * len(_batches(fitted, config.batch_size))
    schedule = ScheduleConfig(name="lambdalr", arguments={"lr_lambda": lambda step: _rate((step + 0.5) / total)})
    settings = OptimizerConfig(name="adam", learning_rate=config.learning_rate, schedule=schedule)
    optimizer = HalfOptimizer(nn.ModuleList([bottom, objective]), settings)
    corruption = _generator(seed, "corruption", device)

    @torch.no_grad()
    def held_out_loss() -> float:
        fixed = _generator(seed, "held out", device)
        summed = [len(batch) * objective(bottom, *inputs.batch(batch), fixed) for batch in held_out]
        return float(torch.stack(summed).sum()) / held

    size, best = _root_mean_square(bottom, inputs, held_out), deepcopy(bottom.state_dict())
    losses, kept, done = [held_out_loss()], 0, 0
    for epoch in range(1, config.epochs + 1):
        note = f"pre-training, epoch {epoch}, loss {losses[-1]:.4f}"
        for batch in _batches(_shuffled(fitted, order), config.batch_size):
            objective(bottom, *inputs.batch(batch), corruption).backward()
            optimizer.step()
            done += 1
            progress(done, total, note)
        losses.append(held_out_loss())
        if losses[-1] < losses[kept]:
            kept, best = epoch, deepcopy(bottom.state_dict())
        if epoch - kept >= config.patience or not math.isfinite(losses[-1]):
            break
    bottom.load_state_dict(best)
    _scale_cut(bottom, size, _root_mean_square(bottom, inputs, held_out))
    progress(total, total, f"pre-training, {epoch} epochs, loss {losses[kept]:.4f}")
    return losses


class Reconstruction(nn.Module):
    """`masked`: hides fields (zeros where their inputs were) and predicts every field of the record from the cut.

    A category is predicted by a softmax over at most `_CANDIDATES` values: all of its field's if it has no more, else
    those of that many records of the batch. A number is predicted by squared error (linear beyond `_FAR` deviations,
    so that no outlier rules the loss). Fields that were not hidden count too: the cut has to carry them to the label
    party.
    """

    def __init__(
        self, bottom: Bottom, features: Features, rows: Rows, share: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.share = share
        fields, numbers = features.categorical.shape[1], features.numeric.shape[1]
        with torch.device("meta"):  # PyTorch would draw weights from its own generator
            self.decoder = nn.Linear(bottom.deep_width, _DECODER_WIDTH)
            if bottom.embedding is not None:
                self.queries = nn.Linear(_DECODER_WIDTH, fields * _VALUE_WIDTH)
                # Sparse where the party's own table is, for the same reason. Values need no bias: that of the queries
                # times the value's vector is one.
                self.values = Table(features.embedding_rows, _VALUE_WIDTH, lazy=bottom.embedding.sparse)
            if numbers:
                self.numbers = nn.Linear(_DECODER_WIDTH, numbers)
        draw_weights(self.to_empty(device=generator.device), generator)
        distinct = [np.unique(features.categorical[rows, field]) for field in range(fields)]
        self.all_values = [
            torch.from_numpy(values).to(generator.device) if len(values) <= _CANDIDATES else None for values in distinct
        ]

    def forward(self, bottom: Bottom, categorical: Tensor, numeric: Tensor, generator: torch.Generator) -> Tensor:
        """Return the mean loss of a category and that of a number, added up."""
        fields = categorical.shape[1]
        shape = (len(categorical), fields + numeric.shape[1])
        visible = torch.rand(shape, generator=generator, device=generator.device) >= self.share
        inputs = [numeric * visible[:, fields:]]
        if bottom.embedding is not None:
            inputs.insert(0, (bottom.embedding(categorical) * visible[:, :fields, None]).flatten(start_dim=1))
        decoded = functional.relu(self.decoder(bottom.layers(torch.cat(inputs, dim=1))))
        loss = decoded.new_zeros(())
        if fields:
            loss = loss + self._category_loss(decoded, categorical, generator)
        if numeric.shape[1]:
            loss = loss + 2.0 * functional.huber_loss(self.numbers(decoded), numeric, delta=_FAR)
        return loss

    def _category_loss(self, decoded: Tensor, categorical: Tensor, generator: torch.Generator) -> Tensor:
        """Every record of the batch is compared with the same candidates: they are looked up once."""
        others = torch.randint(len(categorical), (_CANDIDATES,), generator=generator, device=generator.device)
        drawn = categorical.index_select(0, others).T
        candidates = [torch.unique(drawn[i]) if known is None else known for i, known in enumerate(self.all_values)]
        keys = self.values(torch.cat([categorical.flatten(), *candidates]))
        queries = self.queries(decoded).view(*categorical.shape, _VALUE_WIDTH)
        true_scores = (queries * keys[: categorical.numel()].view_as(queries)).sum(dim=2)
        return sampled_cross_entropy(queries, true_scores, keys[categorical.numel() :], categorical, candidates)


def sampled_cross_entropy(
    queries: Tensor, true_scores: Tensor, keys: Tensor, true: Tensor, candidates: Sequence[Tensor]
) -> Tensor:
    """Return the mean of `-ln softmax(true score against the scores of the candidates)`.

    A candidate that is true is left out. `queries` are `[n, F, d]`, `true_scores` and `true` `[n, F]`; `keys` `[·, d]`
    are those of all the fields' `candidates`.
    """
    loss = queries.new_zeros(())
    for field, key in enumerate(torch.split(keys, list(map(len, candidates)))):
        is_true = candidates[field] == true[:, field, None]
        scores = (queries[:, field] @ key.T).masked_fill(is_true, -math.inf)
        every = torch.cat([true_scores[:, field, None], scores], dim=1)
        loss = loss + (torch.logsumexp(every, dim=1) - true_scores[:, field]).sum()
    return loss / true.numel()


def _rate(done: float) -> float:
    """Share of the highest learning rate after this share of the steps: a straight rise, then half a cosine to 0."""
    if done < _WARM_UP:
        return done / _WARM_UP
    return 0.5 + 0.5 * math.cos(math.pi * (done - _WARM_UP) / (1.0 - _WARM_UP))


@torch.no_grad()
def _root_mean_square(bottom: Bottom, inputs: Batches, batches: Sequence[Rows]) -> float:
    cuts = [bottom(*inputs.batch(part)).square().sum(dtype=torch.float64) for part in batches]
    return math.sqrt(float(torch.stack(cuts).sum()) / (sum(map(len, batches)) * bottom.deep_width))


@torch.no_grad()
def _scale_cut(bottom: Bottom, wanted: float, size: float) -> None:
    """Scale the cut through its last layer; ReLU lets a positive factor pass."""
    last = [layer for layer in bottom.layers if isinstance(layer, nn.Linear)][-1]
    factor = wanted / size if wanted > 0.0 and size > 0.0 else 1.0
    last.weight.mul_(factor)
    last.bias.mul_(factor)


def _batches(rows: Rows, size: int) -> list[Rows]:
    """Split into batches of nearly equal sizes: a last batch of three records would count as much as a full one."""
    return np.array_split(rows, -(-len(rows) // size))


def _shuffled(rows: Rows, generator: torch.Generator) -> Rows:
    shuffled: Rows = rows[torch.randperm(len(rows), generator=generator).numpy()]
    return shuffled


def _generator(seed: int, purpose: str, device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed_of("tpsl pre-training", seed, purpose))
