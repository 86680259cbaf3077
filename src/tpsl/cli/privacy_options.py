"""The options that choose a mechanism, shared by `train` and `vault release`."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from tpsl.mechanisms import Mechanism


class MechanismName(StrEnum):
    """The paper's names and ours; `randomized_response` is another name of `discrete`."""

    auto = "auto"
    none = "none"
    laplace = "laplace"
    discrete = "discrete"
    randomized_response = "randomized_response"
    gaussian = "gaussian"
    subset_selection = "subset_selection"
    optimized_unary = "optimized_unary"


class EstimatorName(StrEnum):
    """From noisy label to gradient."""

    linear = "linear"
    unbiased = "unbiased"
    posterior = "posterior"


MechanismOption = Annotated[
    MechanismName | None,
    typer.Option(
        help="How labels are made noisy. 'auto' takes the least noise for ε; 'discrete' is randomised response; "
        "'none' protects nothing."
    ),
]
EpsilonOption = Annotated[
    float | None, typer.Option(help="Privacy budget of one draw (laplace, discrete); smaller is more private.")
]
SigmaOption = Annotated[float | None, typer.Option(help="Standard deviation of the noise (gaussian).")]
DeltaOption = Annotated[float | None, typer.Option(help="The δ for which ε is stated (gaussian).")]
EstimatorOption = Annotated[
    EstimatorName | None, typer.Option(help="'linear' is the paper; 'posterior' is ours. Costs no budget.")
]
DrawsOption = Annotated[
    int | None, typer.Option(min=1, max=2, help="1: one draw at the logit, ε. 2: the paper's Algorithm 3, 2ε.")
]


def build_mechanism(name: MechanismName, classes: int, **parameters: float | None) -> Mechanism:
    """Return the mechanism that the options name; a parameter it lacks, or does not take, is an error that names it."""
    from tpsl import mechanisms

    known: dict[MechanismName, tuple[Callable[..., Mechanism], tuple[str, ...]]] = {
        MechanismName.auto: (lambda epsilon, classes: mechanisms.best_for(epsilon, classes)[0], ("epsilon",)),
        MechanismName.none: (mechanisms.identity, ()),
        MechanismName.laplace: (mechanisms.laplace, ("epsilon",)),
        MechanismName.discrete: (mechanisms.randomized_response, ("epsilon",)),
        MechanismName.randomized_response: (mechanisms.randomized_response, ("epsilon",)),
        MechanismName.gaussian: (mechanisms.gaussian, ("sigma", "delta")),
        MechanismName.subset_selection: (mechanisms.subset_selection, ("epsilon",)),
        MechanismName.optimized_unary: (mechanisms.optimized_unary, ("epsilon",)),
    }
    build, needed = known[name]
    for parameter, value in parameters.items():
        if (value is None) == (parameter in needed):
            raise ValueError(f"mechanism '{name}' {'needs' if value is None else 'does not take'} --{parameter}")
    return build(*(parameters[parameter] for parameter in needed), classes)


def privacy_fields(
    mechanism: MechanismName | None, epsilon: float | None, sigma: float | None, delta: float | None
) -> dict[str, object]:
    """Return the fields of a job's privacy part that the options set.

    A mechanism on the command line replaces the job's mechanism with all its parameters.
    """
    given = {"epsilon": epsilon, "sigma": sigma, "delta": delta}
    if mechanism is not None:
        return {"mechanism": str(mechanism), **given}
    return {name: value for name, value in given.items() if value is not None}


def given(**options: object) -> dict[str, Any]:
    """Return the options that were given, as fields of a job."""
    return {
        name: str(value) if isinstance(value, StrEnum) else value
        for name, value in options.items()
        if value is not None
    }
