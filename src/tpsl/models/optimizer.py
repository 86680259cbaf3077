"""How one half is updated: SGD as in the paper, Adam or Adagrad; embedding tables apart from the dense layers.

The table's optimiser is a part of its own because it does other work: a batch touches few of its rows. Where
gradients are sparse ("lazy" updates) only touched rows are read and written.

With averaging the optimiser also keeps an average of the weights over the steps, for prediction. Tables with lazy
updates are left out of it: to average one, every step would read and write all of its rows.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from tpsl.models.averaging import WeightAverage

_AVERAGE = "average/"


class OptimizerConfig(BaseModel):
    """The optimiser of one half."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Literal["sgd", "adam", "adagrad"] = Field("adam", description="The optimiser of torch.optim.")
    learning_rate: float = Field(1e-3, gt=0, le=100, description="The step size.")
    weight_decay: float = Field(0.0, ge=0, le=10, description="L2 penalty on the dense layers (not on embeddings).")


class HalfOptimizer:
    """Updates the parameters of one half from their `.grad`, as one unit with one state.

    `averaging` is the decay of the weight average for each step, 0 for none. It does not change the updates.
    """

    def __init__(self, half: nn.Module, config: OptimizerConfig, averaging: float = 0.0) -> None:
        tables = {id(part.weight): part for part in half.modules() if isinstance(part, nn.Embedding)}
        dense: list[Tensor] = [p for p in half.parameters() if id(p) not in tables]
        self.parameters: list[Tensor] = [*half.parameters()]
        self._parts: list[torch.optim.Optimizer] = []
        if dense:
            self._parts.append(_optimizer(config, dense, config.weight_decay, sparse=False))
        for table in tables.values():
            self._parts.append(_optimizer(config, [table.weight], 0.0, sparse=table.sparse))
        lazy = {key for key, table in tables.items() if table.sparse}
        averaged = {name: p for name, p in half.named_parameters() if id(p) not in lazy}
        self._average = WeightAverage(averaged, averaging) if averaging else None

    def step(self) -> None:
        """Apply the gradients and forget them."""
        if self._average is not None and self._average.is_in_place:
            raise RuntimeError("a step while the averaged weights are in place would change the average")
        for part in self._parts:
            part.step()
        for parameter in self.parameters:
            parameter.grad = None
        if self._average is not None:
            self._average.update()

    def averaged(self) -> AbstractContextManager[None]:
        """Within this context the half has its averaged weights, to predict with or to save; a step is an error.

        Without averaging, and before there is an average, these are the weights themselves.
        """
        return nullcontext() if self._average is None else self._average.in_place()

    def state(self) -> tuple[dict[str, Tensor], str]:
        """Return the state as named tensors and a JSON text, for a checkpoint."""
        tensors: dict[str, Tensor] = {}
        settings: list[dict[str, Any]] = []
        for number, part in enumerate(self._parts):
            state = part.state_dict()
            for parameter, values in state["state"].items():
                for key, value in values.items():
                    tensors[f"{number}/{parameter}/{key}"] = torch.as_tensor(value).clone()
            settings.append(state["param_groups"])
        if self._average is not None:
            tensors |= {_AVERAGE + name: value for name, value in self._average.state().items()}
        return tensors, json.dumps(settings)

    def load_state(self, tensors: dict[str, Tensor], settings: str) -> None:
        """Take over a state that `state` returned."""
        groups = json.loads(settings)
        if len(groups) != len(self._parts):
            raise ValueError(f"the state has {len(groups)} parts, this optimiser has {len(self._parts)}")
        averages = {name.removeprefix(_AVERAGE): t for name, t in tensors.items() if name.startswith(_AVERAGE)}
        if bool(averages) != (self._average is not None):
            raise ValueError(f"the state is that of an optimiser {'with' if averages else 'without'} averaging")
        if self._average is not None:
            self._average.load_state(averages)
        states: list[dict[int, dict[str, Any]]] = [{} for _ in self._parts]
        for name, value in tensors.items():
            if not name.startswith(_AVERAGE):
                number, parameter, key = name.split("/")
                part = self._parts[int(number)]
                states[int(number)].setdefault(int(parameter), {})[key] = _as_saved(part, key, value)
        for part, state, group in zip(self._parts, states, groups, strict=True):
            part.load_state_dict({"state": state, "param_groups": group})


def _as_saved(part: torch.optim.Optimizer, key: str, value: Tensor) -> Tensor | int:
    """SparseAdam counts its steps in an int, the others in a tensor."""
    return int(value) if key == "step" and isinstance(part, torch.optim.SparseAdam) else value


def _optimizer(
    config: OptimizerConfig, parameters: list[Tensor], weight_decay: float, *, sparse: bool
) -> torch.optim.Optimizer:
    if config.name == "sgd":
        return torch.optim.SGD(parameters, lr=config.learning_rate, weight_decay=weight_decay)
    if config.name == "adagrad":
        return torch.optim.Adagrad(parameters, lr=config.learning_rate, weight_decay=weight_decay)
    if sparse:
        return torch.optim.SparseAdam(parameters, lr=config.learning_rate)
    return torch.optim.Adam(parameters, lr=config.learning_rate, weight_decay=weight_decay)
