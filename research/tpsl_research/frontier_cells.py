"""What the frontier compares: algorithms, how each is tuned, and the job of each cell.

A cell is an algorithm, an ε and a seed. The paper's algorithms and ours start from the same base job: the same data,
network, batches and hold-out.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from tpsl.mechanisms import randomized_response
from tpsl.run.job import Job, make_job
from tpsl.run.method import best_method
from tpsl.select.parallel import load_once
from tpsl.select.space import configuration, default_space
from tpsl_research.paper import DISCRETE, GAUSSIAN, LAPLACE, NON_PRIVATE
from tpsl_research.sweep import gaussian_sigma_like_laplace

Part = Literal["private", "local"]
Row = dict[str, Any]

EPSILONS = (0.1, 0.5, 1.0, 2.0)
BASELINES = (LAPLACE, DISCRETE, GAUSSIAN)
NETWORK = "network on noisy labels"
HANDED_OVER = "network on noisy labels handed over"
TREES = "trees on noisy labels handed over"
STATISTIC = "central statistic"
AUTO = "auto"
JOINED_LOGISTIC = "logistic regression, joined features"
JOINED_TREES = "boosted trees, joined features"
CEILING = "network on n_eff clean labels"

METHODS: dict[str, str] = {
    "laplace": LAPLACE,
    "discrete": DISCRETE,
    "gaussian": GAUSSIAN,
    "network": NETWORK,
    "hand-over": HANDED_OVER,
    "trees": TREES,
    "statistic": STATISTIC,
    "auto": AUTO,
    "joined-logistic": JOINED_LOGISTIC,
    "joined-trees": JOINED_TREES,
    "ceiling": CEILING,
}
"""The algorithms of private heads, by the names of the command line."""

BASELINE_SPACE: tuple[dict[str, Any], ...] = tuple(
    configuration(learning_rate, weight_decay=weight_decay, averaging=0.995)
    for weight_decay in (1e-4, 0.0)
    for learning_rate in (1e-3, 3e-3, 5e-4)
)
"""As many configurations as ours, over what a baseline can be tuned by; Discrete and Gaussian get the first two."""

TRAINING: dict[str, Any] = {
    "epochs": 3,
    "validation": 0.1,
    "patience": 0,
    "checkpoint_every": 1 << 30,  # at the end of an epoch alone
}
"""How every cell trains, besides its batches and what it is tuned over."""

MOST_EPOCHS_AT_SMALL_EPSILON = 2
"""Below ε = 2 a third epoch learns the recorded noise by heart, with every mechanism."""

ONE_EPOCH_BELOW = 0.25
"""With a wide part, whose deep part has little to add at such an ε and much to spoil."""

_LARGEST_BATCH, _SMALLEST_BATCH, _STEPS = 1024, 64, 96
_LOCAL = configuration(1e-3, weight_decay=1e-4, averaging=0.995)["training"]
_MASKED = {"method": "masked"}


def batch_size_for(records: int) -> int:
    """Return the batch of all algorithms for this many training records: at most 1024, and 96 steps an epoch or more.

    A larger one leaves networks without noise short of steps on small data, and lowers what all losses refer to.
    """
    largest = 1 << int(math.log2(max(records / _STEPS, 1)))
    return min(_LARGEST_BATCH, max(_SMALLEST_BATCH, largest))


def base_job(job: Job, training: Mapping[str, Any]) -> Job:
    """Return the job that all cells start from: the data and the network of `job`, trained as the frontier does.

    The data are loaded, because their number decides the batch; `training` replaces single fields of that part.
    """
    content = job.model_dump(mode="json", exclude_none=True, include={"data", "model"})
    fitted = TRAINING | {"batch_size": batch_size_for(len(load_once(job).train))}
    plain = {"wide": False, "members": 1}
    return make_job(content, {"model": plain, "training": {**fitted, **training}}, "the frontier")


@dataclass(frozen=True)
class Cell:
    """One point of the frontier for one seed."""

    part: Part
    algorithm: str
    epsilon: float | None
    """None without noise, 0 where nothing is sent back."""
    seed: int

    @property
    def name(self) -> str:
        """What progress calls it."""
        level = "ε = ∞" if self.epsilon is None else f"ε = {self.epsilon:g}"
        return f"{self.algorithm}, {self.part} head, {level}, seed {self.seed}"

    def privacy(self) -> dict[str, Any]:
        """Return the job's privacy part."""
        if self.epsilon == 0:
            return {"gradients": "none"}
        if self.algorithm == NON_PRIVATE:
            return {"mechanism": "none", "estimator": "linear"}
        if self.epsilon is None or self.algorithm == CEILING:
            return {"mechanism": "none", "estimator": "posterior"}
        if self.algorithm == GAUSSIAN:
            sigma = gaussian_sigma_like_laplace(self.epsilon)
            noise: dict[str, Any] = {"mechanism": "gaussian", "sigma": sigma, "delta": 1e-5, "estimator": "linear"}
        else:
            paper = {LAPLACE: ("laplace", "linear"), DISCRETE: ("discrete", "linear")}
            mechanism, estimator = paper.get(self.algorithm, ("auto", "posterior"))
            noise = {"mechanism": mechanism, "epsilon": self.epsilon, "estimator": estimator}
        return {**noise, "noise_seed": self.seed}

    def space(self, classes: int) -> tuple[dict[str, Any], ...]:
        """Return what the cell is tuned over, in the part `private`."""
        if self.algorithm in (NON_PRIVATE, LAPLACE):
            return BASELINE_SPACE
        return BASELINE_SPACE[:2] if self.algorithm in BASELINES else default_space(classes, own_networks=False)

    def job(self, base: Job) -> Job:
        """Return the job that the cell is tuned from, or trains; one that the data do not allow is an error.

        `auto` is what it stands for on these records.
        """
        content = {**base.model_dump(mode="json", exclude_none=True), "privacy": self.privacy()}
        changes: dict[str, Any] = {"training": self._training(base)}
        if self.part == "local":
            changes["model"] = {"wide": self.algorithm == NETWORK and self.epsilon != 0}
        elif self.algorithm in (STATISTIC, AUTO):
            changes["method"] = "statistic" if self.algorithm == STATISTIC else "auto"
            changes["statistic"] = {"share_codes": True}
        job = make_job(content, changes, self.name)
        if job.method == "auto":
            job, _ = best_method(job, len(load_once(job).train))
        if job.method == "network":
            return job
        # Nothing is chosen by noisy labels, so there is no hold-out set.
        return make_job(job.model_dump(mode="json", exclude_none=True), {"training": {"validation": 0.0}}, self.name)

    def stands_for(self, base: Job) -> tuple[Cell, ...]:
        """Return the cells whose rows `auto` makes its own of: the statistic, or what learns from noisy labels.

        That is the network and, where labels can be handed over, trees: an ensemble of both. Where the statistic of
        `auto` is another than that of its row, and for all other algorithms, there is none.
        """
        if self.algorithm != AUTO:
            return ()
        job = self.job(base)
        if job.method != "network":
            statistic = replace(self, algorithm=STATISTIC)
            return (statistic,) if statistic.job(base) == job else ()
        names = (NETWORK, TREES) if job.needs_split_training() is None else (NETWORK,)
        return tuple(replace(self, algorithm=name) for name in names)

    def _training(self, base: Job) -> dict[str, Any]:
        """Return what the cell changes of the base job's training part, besides what it is tuned over."""
        changes: dict[str, Any] = {"seed": self.seed}
        if self.epsilon is not None and self.epsilon < 2 and self.algorithm != CEILING:
            few = self.part == "private" and self.algorithm not in BASELINES and self.epsilon < ONE_EPOCH_BELOW
            changes["epochs"] = min(base.training.epochs, 1 if few else MOST_EPOCHS_AT_SMALL_EPSILON)
        if self.part == "local":
            stopping = {"validation": 0.0} if self.epsilon == 0 else {"patience": 1}
            pretrain = _MASKED if self.algorithm == NETWORK else None
            changes |= {**_LOCAL, **stopping, "head": "local", "pretrain": pretrain}
        elif self.algorithm == HANDED_OVER:
            changes["exchange"] = "labels"
        return changes

    def key(self, base: Job) -> str:
        """Return the name of this cell's files: a digest of all that decides its result."""
        try:
            job: Any = self.job(base).agreed()
        except ValueError as error:  # which is then its result
            job = [base.agreed(), str(error)]
        space = self.space(base.classes) if self.part == "private" else None
        content = [job, asdict(self), space]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:20]


def cells(
    seeds: Sequence[int],
    epsilons: Sequence[float],
    parts: Sequence[Part],
    algorithms: Sequence[str] = tuple(METHODS.values()),
) -> list[Cell]:
    """Return all cells, seed after seed, so that unfinished results are whole frontiers of fewer seeds.

    Labels handed over give the network that they give without: one seed shows it. An ε that no mechanism can have is an
    error, before anything is computed.
    """
    for epsilon in epsilons:
        randomized_response(epsilon)
    found = []
    for seed in seeds:
        chosen = [name for name in algorithms if name != HANDED_OVER or seed == seeds[0]]
        if "private" in parts:
            found += [Cell("private", NON_PRIVATE, None, seed), Cell("private", NETWORK, None, seed)]
            found += [Cell("private", name, epsilon, seed) for epsilon in epsilons for name in chosen]
        if "local" in parts:
            local = [name for name in (*BASELINES, NETWORK) if name in algorithms]
            found.append(Cell("local", NETWORK, 0.0, seed))
            found += [Cell("local", name, epsilon, seed) for epsilon in epsilons for name in local]
    return found
