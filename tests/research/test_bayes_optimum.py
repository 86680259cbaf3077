import math

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from tpsl_research.example_data import BayesOptimum


def test_auc_counts_expected_pairs() -> None:
    positive = np.random.default_rng(0).beta(0.5, 2, 300)
    optimum = BayesOptimum(2)
    for part in np.array_split(positive, 7):
        optimum.add(np.stack([1 - part, part], axis=1))
    # Every record stands twice, once with each label, weighted by the probability of that label.
    labels, scores = np.repeat([1, 0], 300), np.tile(positive, 2)
    weights = np.concatenate([positive, 1 - positive])
    assert optimum.facts()["bayes_auc"] == pytest.approx(roc_auc_score(labels, scores, sample_weight=weights), abs=1e-5)


def test_no_information_is_a_half() -> None:
    optimum = BayesOptimum(2)
    optimum.add(np.full((10, 2), 0.5))
    assert optimum.facts() == {"bayes_auc": 0.5, "bayes_accuracy": 0.5, "bayes_log_loss": pytest.approx(math.log(2))}


def test_certainty_is_perfect_in_every_number_of_classes() -> None:
    for classes in (2, 5):
        optimum = BayesOptimum(classes)
        optimum.add(np.eye(classes))
        facts = optimum.facts()
        assert facts["bayes_accuracy"] == 1
        assert facts["bayes_log_loss"] == 0
        assert facts.get("bayes_auc") == (1 if classes == 2 else None)
