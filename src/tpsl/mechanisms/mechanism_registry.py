"""Mechanisms by name: those of this package, and those that users register.

A mechanism of this package is a class, and a function that builds it, in one file, and a line in `_BUILT_IN`. A user's
mechanism is a function of `classes` and of those of `epsilon`, `sigma` and `delta` that the job must give, which
returns a table of integers: a row for each label, each row summing to 2^64 (`integer_weights` makes them of
probabilities).

    MECHANISMS.register("ordinal", ordinal)

Ledgers keep specs for ever. So a name of this package means the same table for the same parameters for ever, to the
last integer; a better table gets another name, and a name that is no longer offered can still be rebuilt from its spec.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tpsl.mechanisms.additive_noise import gaussian, laplace
from tpsl.mechanisms.base import Mechanism, check_delta, check_epsilon, check_sigma
from tpsl.mechanisms.discrete import identity, randomized_response
from tpsl.mechanisms.exact import rounded_up
from tpsl.mechanisms.integer_table import table_mechanism
from tpsl.mechanisms.kary import best_for, optimized_unary, subset_selection
from tpsl.registry import ExtensionError, Registry, called

Builder = Callable[..., Mechanism | Sequence[Sequence[int]]]

AUTO = "auto"
"""The name that stands for the recommended mechanism of an ε and a number of classes."""

_BUILT_IN: dict[str, Callable[..., Mechanism]] = {
    "none": identity,
    "laplace": laplace,
    "discrete": randomized_response,
    "gaussian": gaussian,
    "subset_selection": subset_selection,
    "optimized_unary": optimized_unary,
}
MECHANISMS: Registry[Builder] = Registry("mechanism")
for _name, _build in {AUTO: lambda epsilon, classes: best_for(epsilon, classes)[0], **_BUILT_IN}.items():
    MECHANISMS.register(_name, _build)
MECHANISMS.register("randomized_response", randomized_response)  # another name of 'discrete'

_CHECKS: dict[str, Callable[[float], float]] = {"epsilon": check_epsilon, "sigma": check_sigma, "delta": check_delta}
"""What a job can give to a mechanism beside the number of classes."""


def check_parameters(name: str, given: Mapping[str, float | None]) -> None:
    """Raise a ValueError if a mechanism lacks one of the parameters, is given one too many, or one is out of range."""
    needed = _needed(name)
    for parameter, check in _CHECKS.items():
        value = given.get(parameter)
        if (value is None) == (parameter in needed):
            example = ", as --epsilon 1" if value is None and parameter == "epsilon" else ""
            raise ValueError(f"mechanism '{name}' {'needs' if value is None else 'does not take'} {parameter}{example}")
        if value is not None:
            check(value)


def build_mechanism(name: str, classes: int, **given: float | None) -> tuple[Mechanism, str]:
    """Return the mechanism of this name for k classes, and a sentence that says why it is this one.

    Guarantee: its ε is computed from its integers and at most the ε that is given.

    Raises:
        UnknownName: no mechanism has this name.
        ExtensionError: a user's mechanism fails or exceeds ε.
        ValueError: a parameter is missing, superfluous or out of range.
    """
    check_parameters(name, given)
    parameters = {parameter: value for parameter, value in given.items() if value is not None}
    if name == AUTO:
        return best_for(**parameters, classes=classes)
    if name in _BUILT_IN:
        return _BUILT_IN[name](**parameters, classes=classes), "the job names it"
    built = called(f"the mechanism '{name}'", MECHANISMS.get(name), **parameters, classes=classes)
    mechanism = built if isinstance(built, Mechanism) else table_mechanism(name, built)
    if mechanism.classes != classes:
        raise ExtensionError(f"the mechanism '{name}' has {mechanism.classes} classes instead of {classes}")
    if mechanism.epsilon > parameters.get("epsilon", math.inf):
        asked, has = parameters["epsilon"], rounded_up(mechanism.epsilon)
        raise ExtensionError(f"the mechanism '{name}' has ε = {has}, which is above the ε = {asked:g} asked for")
    return mechanism, "the job names it"


def from_spec(spec: Mapping[str, Any]) -> Mechanism:
    """Rebuild a mechanism from its `spec()`; an unknown mechanism is refused, never guessed.

    A user's table is rebuilt from its integers: no code that a ledger names is called.
    """
    parameters = dict(spec)
    name = parameters.pop("mechanism", None)
    if isinstance(name, str) and name not in _BUILT_IN and list(parameters) == ["weights"]:
        return table_mechanism(name, parameters["weights"])
    if not isinstance(name, str) or name not in _BUILT_IN:
        raise ValueError(f"unknown mechanism {name!r}; known are {', '.join(_BUILT_IN)}")
    try:
        return _BUILT_IN[name](**parameters)
    except TypeError as error:
        raise ValueError(f"mechanism {name!r} does not take these parameters: {sorted(parameters)}") from error


def _needed(name: str) -> set[str]:
    """Return the parameters that a mechanism cannot do without, read off its signature."""
    signature = inspect.signature(MECHANISMS.get(name)).parameters.values()
    needed = {p.name for p in signature if p.default is p.empty and p.name != "classes"}
    if unknown := needed - set(_CHECKS):
        raise ExtensionError(f"the mechanism '{name}' takes {sorted(unknown)[0]!r}, which no job can give")
    return needed
