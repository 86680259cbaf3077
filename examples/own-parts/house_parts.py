"""Parts of our own, known to every command that is called as `tpsl --use house_parts …`."""

import csv
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tpsl.attacks import ATTACKS, Attack, AttackedRun
from tpsl.mechanisms import MECHANISMS, integer_weights
from tpsl.models.optimizer import OPTIMIZERS
from tpsl.perturb import LOSSES, Loss
from tpsl.run.loggers import LOGGERS, Curves, LoggedRun
from tpsl.run.observer import Observer
from tpsl.run.transcript import TranscriptStep


def ordinal(epsilon: float, classes: int) -> list[list[int]]:
    """For labels with an order, as stars: near ones are drawn rather than far ones (Ghosh et al. 2009)."""
    a, last = math.exp(-epsilon / (classes - 1)), classes - 1
    ends = [1 if o in (0, last) else 1 - a for o in range(classes)]
    rows = [[a ** abs(o - y) * ends[o] / (1 + a) for o in range(classes)] for y in range(classes)]
    return integer_weights(rows, epsilon)


class Smoothed(Loss):
    """Cross-entropy that believes each label a little less."""

    def __init__(self, classes: int, doubt: float = 0.05) -> None:
        self.doubt = doubt

    def log_probabilities(self, z: Tensor) -> Tensor:
        """Return what the network believes of each label."""
        return torch.log_softmax(z, dim=1)

    def losses(self, z: Tensor) -> Tensor:
        """Return the loss of each label; its derivative follows from it."""
        surprise = -self.log_probabilities(z)
        return (1 - self.doubt) * surprise + self.doubt * surprise.mean(dim=1, keepdim=True)


class Lion(torch.optim.Optimizer):
    """Steps of one size in the direction of the momentum's sign (Chen et al. 2023)."""

    def __init__(self, params: list[Tensor], lr: float, beta: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "beta": beta})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Take one step."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                    momentum.lerp_(parameter.grad, 1 - group["beta"])
                    parameter.sub_(momentum.sign(), alpha=group["lr"])


def expected_stars(run: AttackedRun) -> Callable[[TranscriptStep], np.ndarray]:
    """Guess the stars that the noisy label says on average; the nearer a class is to them, the larger its score."""
    stars = np.arange(run.classes)

    def scores(seen: TranscriptStep) -> np.ndarray:
        likelihood = np.exp(run.reader.evidence(seen))
        expected = likelihood @ stars / likelihood.sum(axis=1)
        return np.asarray(-np.abs(expected[:, None] - stars))

    return scores


class CsvCurves(Curves):
    """Writes one line for each point of a curve."""

    def __init__(self, run: LoggedRun, path: str) -> None:
        super().__init__(run)
        self._path = Path(path or run.folder / "curves.csv")

    def begin(self, step: int) -> None:
        """Make the file; it only grows."""
        self._path.touch()

    def write(self, step: int, when: float, values: Mapping[str, float]) -> None:
        """Add the points."""
        with self._path.open("a") as file:
            csv.writer(file).writerows((step, key, value) for key, value in values.items())


class Diary(Observer):
    """Notes what happens."""

    def __init__(self, run: LoggedRun, path: str) -> None:
        self._path = Path(path)

    def event(self, name: str, **facts: str | int | float) -> None:
        """Add a line."""
        with self._path.open("a") as file:
            print(name, facts, file=file)


MECHANISMS.register("ordinal", ordinal)
LOSSES.register("smoothed", Smoothed)
OPTIMIZERS.register("lion", Lion)
ATTACKS.register("expected_stars", Attack("transcript+weights", expected_stars, many_classes=True))
LOGGERS.register("csv", CsvCurves)
LOGGERS.register("diary", Diary)
