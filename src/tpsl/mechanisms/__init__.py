"""Label → noisy label, statistic → noisy statistic: integers, exact ε, secure sampling.

`laplace(1.0).epsilon <= 1.0`, exactly.
"""

from tpsl.mechanisms.auc_prediction import PredictedAUC, auc_ceiling, predicted_auc
from tpsl.mechanisms.choice import best_for, variance_of_unbiased
from tpsl.mechanisms.cost import Cost, compose
from tpsl.mechanisms.gaussian import Gaussian, gaussian
from tpsl.mechanisms.identity import Identity, identity
from tpsl.mechanisms.known import AUTO, MECHANISMS, build_mechanism, check_parameters, from_spec
from tpsl.mechanisms.laplace import Laplace, laplace
from tpsl.mechanisms.mechanism import Estimator, Mechanism, Release
from tpsl.mechanisms.optimized_unary import OptimizedUnary, optimized_unary
from tpsl.mechanisms.quantise import DEFAULT_BOUND, clip_rows, to_integers
from tpsl.mechanisms.random_words import RandomWords, secure_words, seeded_words
from tpsl.mechanisms.randomized_response import RandomizedResponse, randomized_response
from tpsl.mechanisms.statistic_auc import predicted_statistic_auc
from tpsl.mechanisms.statistic_noise import (
    DiscreteGaussian,
    DiscreteLaplace,
    NoNoise,
    StatisticNoise,
    fit_noise,
    noise_from_spec,
)
from tpsl.mechanisms.subset_selection import SubsetSelection, subset_selection
from tpsl.mechanisms.table_mechanism import TableMechanism, integer_weights

__all__ = [
    "AUTO",
    "DEFAULT_BOUND",
    "MECHANISMS",
    "Cost",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "Estimator",
    "Gaussian",
    "Identity",
    "Laplace",
    "Mechanism",
    "NoNoise",
    "OptimizedUnary",
    "PredictedAUC",
    "RandomWords",
    "RandomizedResponse",
    "Release",
    "StatisticNoise",
    "SubsetSelection",
    "TableMechanism",
    "auc_ceiling",
    "best_for",
    "build_mechanism",
    "check_parameters",
    "clip_rows",
    "compose",
    "fit_noise",
    "from_spec",
    "gaussian",
    "identity",
    "integer_weights",
    "laplace",
    "noise_from_spec",
    "optimized_unary",
    "predicted_auc",
    "predicted_statistic_auc",
    "randomized_response",
    "secure_words",
    "seeded_words",
    "subset_selection",
    "to_integers",
    "variance_of_unbiased",
]
