"""Label → noisy label: integer tables, exact ε, secure sampling. `laplace(1.0).epsilon <= 1.0`, exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tpsl.mechanisms.choice import best_for, variance_of_unbiased
from tpsl.mechanisms.gaussian import Gaussian, gaussian
from tpsl.mechanisms.identity import Identity, identity
from tpsl.mechanisms.laplace import Laplace, laplace
from tpsl.mechanisms.mechanism import Mechanism, Release
from tpsl.mechanisms.optimized_unary import OptimizedUnary, optimized_unary
from tpsl.mechanisms.prediction import PredictedAUC, auc_ceiling
from tpsl.mechanisms.random_words import RandomWords, secure_words, seeded_words
from tpsl.mechanisms.randomized_response import RandomizedResponse, randomized_response
from tpsl.mechanisms.subset_selection import SubsetSelection, subset_selection

_CONSTRUCTORS: dict[str, Callable[..., Mechanism]] = {
    "none": identity,
    "laplace": laplace,
    "discrete": randomized_response,
    "gaussian": gaussian,
    "subset_selection": subset_selection,
    "optimized_unary": optimized_unary,
}


def from_spec(spec: Mapping[str, Any]) -> Mechanism:
    """Rebuild a mechanism from its `spec()`; an unknown mechanism is refused, never guessed."""
    parameters = dict(spec)
    name = parameters.pop("mechanism", None)
    if not isinstance(name, str) or name not in _CONSTRUCTORS:
        raise ValueError(f"unknown mechanism {name!r}; known are {', '.join(_CONSTRUCTORS)}")
    try:
        return _CONSTRUCTORS[name](**parameters)
    except TypeError as error:
        raise ValueError(f"mechanism {name!r} does not take these parameters: {sorted(parameters)}") from error


__all__ = [
    "Gaussian",
    "Identity",
    "Laplace",
    "Mechanism",
    "OptimizedUnary",
    "PredictedAUC",
    "RandomWords",
    "RandomizedResponse",
    "Release",
    "SubsetSelection",
    "auc_ceiling",
    "best_for",
    "from_spec",
    "gaussian",
    "identity",
    "laplace",
    "optimized_unary",
    "randomized_response",
    "secure_words",
    "seeded_words",
    "subset_selection",
    "variance_of_unbiased",
]
