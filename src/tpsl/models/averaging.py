"""An average of the weights over the steps of training, for prediction.

At small ε a step follows the noise as much as the labels, and the weights move about a point without coming to rest.
Their average lies nearer to it. It is computed from the weights alone, so it is post-processing of the release.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor


class WeightAverage:
    """The exponential average `a ← a + (1-d_t)·(p - a)` of some weights, with `d_t = min(d, (1+t) / (10+t))` at step t.

    Early on, the average looks back over about a tenth of the steps so far, so that a short run is not weighed down by
    where it started. It never changes the weights. Weights that `in_place` puts aside are the same memory when they
    come back.
    """

    def __init__(self, weights: Mapping[str, Tensor], decay: float) -> None:
        if not 0 < decay < 1:
            raise ValueError(f"the decay of a weight average lies between 0 and 1, got {decay}")
        self._weights = dict(weights)
        self._decay = decay
        # Where the weights are, so that a CUDA graph can count.
        self._steps = torch.zeros((), dtype=torch.float64, device=next(iter(self._weights.values())).device)
        self._averages: dict[str, Tensor] = {}
        self.is_in_place = False

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights as they are after one more step."""
        self._steps += 1
        if not self._averages:
            self._averages = {name: weight.detach().clone() for name, weight in self._weights.items()}
        rate = (1 - ((1 + self._steps) / (10 + self._steps)).clamp(max=self._decay)).float()
        for name, average in self._averages.items():
            average.lerp_(self._weights[name], rate)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the averages in place of the weights, and the weights back at the end, without copying either."""
        weights = {name: self._weights[name].data for name in self._averages}
        before = self.is_in_place
        try:
            self.is_in_place = True
            for name, average in self._averages.items():
                self._weights[name].data = average
            yield
        finally:
            for name, weight in weights.items():
                self._weights[name].data = weight
            self.is_in_place = before

    def state(self) -> dict[str, Tensor]:
        """Return the number of steps and the averages, for a checkpoint."""
        return {"steps": self._steps.long()} | {name: a.clone() for name, a in self._averages.items()}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over a state that `state` returned."""
        averages = {name: tensor for name, tensor in tensors.items() if name != "steps"}
        steps = int(tensors["steps"])
        shapes = {name: weight.shape for name, weight in self._weights.items()} if steps > 0 else {}
        if {name: average.shape for name, average in averages.items()} != shapes:
            raise ValueError("the averages in the state are those of other weights")
        self._steps.fill_(steps)
        self._averages = {name: average.to(self._weights[name].device, copy=True) for name, average in averages.items()}
