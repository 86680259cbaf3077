"""Label → noisy label: integer tables, exact ε, secure sampling. `laplace(1.0).epsilon <= 1.0`, exactly."""

from tpsl.mechanisms.auc_prediction import PredictedAUC, auc_ceiling, predicted_auc
from tpsl.mechanisms.choice import best_for, variance_of_unbiased
from tpsl.mechanisms.gaussian import Gaussian, gaussian
from tpsl.mechanisms.identity import Identity, identity
from tpsl.mechanisms.known import AUTO, MECHANISMS, build_mechanism, check_parameters, from_spec
from tpsl.mechanisms.laplace import Laplace, laplace
from tpsl.mechanisms.mechanism import Estimator, Mechanism, Release
from tpsl.mechanisms.optimized_unary import OptimizedUnary, optimized_unary
from tpsl.mechanisms.random_words import RandomWords, secure_words, seeded_words
from tpsl.mechanisms.randomized_response import RandomizedResponse, randomized_response
from tpsl.mechanisms.subset_selection import SubsetSelection, subset_selection
from tpsl.mechanisms.table_mechanism import TableMechanism, integer_weights

__all__ = [
    "AUTO",
    "MECHANISMS",
    "Estimator",
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
    "TableMechanism",
    "auc_ceiling",
    "best_for",
    "build_mechanism",
    "check_parameters",
    "from_spec",
    "gaussian",
    "identity",
    "integer_weights",
    "laplace",
    "optimized_unary",
    "predicted_auc",
    "randomized_response",
    "secure_words",
    "seeded_words",
    "subset_selection",
    "variance_of_unbiased",
]
