"""Label → noisy label, statistic → noisy statistic: integers, exact ε, secure sampling.

`laplace(1.0).epsilon <= 1.0`, exactly.
"""

from tpsl.mechanisms.additive_noise import Gaussian, Laplace, gaussian, laplace
from tpsl.mechanisms.base import Estimator, Mechanism, Release
from tpsl.mechanisms.discrete import RandomizedResponse, identity, randomized_response
from tpsl.mechanisms.exact import Cost, compose, epsilon_of_rho, float_above, rounded_up
from tpsl.mechanisms.integer_table import TOTAL, TableMechanism, integer_weights, table_mechanism
from tpsl.mechanisms.kary import (
    OptimizedUnary,
    SubsetSelection,
    best_for,
    optimized_unary,
    subset_selection,
    variance_of_unbiased,
)
from tpsl.mechanisms.mechanism_registry import AUTO, MECHANISMS, build_mechanism, check_parameters, from_spec
from tpsl.mechanisms.sampling import RandomWords, secure_words, seeded_words
from tpsl.mechanisms.statistic_noise import (
    DEFAULT_BOUND,
    DiscreteGaussian,
    DiscreteLaplace,
    NoNoise,
    Norm,
    StatisticNoise,
    check_bound,
    clip_rows,
    fit_noise,
    noise_from_spec,
    to_integers,
)

__all__ = [
    "AUTO",
    "DEFAULT_BOUND",
    "MECHANISMS",
    "TOTAL",
    "Cost",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "Estimator",
    "Gaussian",
    "Laplace",
    "Mechanism",
    "NoNoise",
    "Norm",
    "OptimizedUnary",
    "RandomWords",
    "RandomizedResponse",
    "Release",
    "StatisticNoise",
    "SubsetSelection",
    "TableMechanism",
    "best_for",
    "build_mechanism",
    "check_bound",
    "check_parameters",
    "clip_rows",
    "compose",
    "epsilon_of_rho",
    "fit_noise",
    "float_above",
    "from_spec",
    "gaussian",
    "identity",
    "integer_weights",
    "laplace",
    "noise_from_spec",
    "optimized_unary",
    "randomized_response",
    "rounded_up",
    "secure_words",
    "seeded_words",
    "subset_selection",
    "table_mechanism",
    "to_integers",
    "variance_of_unbiased",
]
