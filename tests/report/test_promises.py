from math import exp, inf
from statistics import NormalDist

import pytest

from tpsl.attacks.auc_prediction import auc_ceiling, predicted_auc
from tpsl.mechanisms import DEFAULT_BOUND, fit_noise, laplace
from tpsl.report.promises import promise_of
from tpsl.run.job import make_job


def test_the_promise_counts_every_draw_and_rounds_up() -> None:
    job = make_job({"privacy": {"mechanism": "laplace", "epsilon": 1.0, "estimator": "linear", "draws": 2}}, {}, "test")
    promise = promise_of(job, 2)
    assert promise.epsilon == 2 * laplace(1.0).epsilon
    assert promise.private
    assert promise.ceiling == pytest.approx(exp(2) / (1 + exp(2)), abs=1e-9)
    assert promise.closed_form == predicted_auc(laplace(1.0)).shortest_distance


def test_no_noise_and_seeded_noise_promise_nothing() -> None:
    plain = promise_of(make_job({"privacy": {"mechanism": "none"}}, {}, "test"), 2)
    assert (plain.epsilon, plain.epsilon_text, plain.private, plain.ceiling) == (None, "∞", False, 1.0)
    assert plain.epsilon != inf  # JSON has no infinity
    seeded = promise_of(make_job({"privacy": {"epsilon": 1.0, "noise_seed": 1}}, {}, "test"), 2)
    assert seeded.epsilon is not None and not seeded.private


def test_it_says_how_much_can_be_learned_from_the_job_and_the_number_of_records_alone() -> None:
    job = make_job({"privacy": {"epsilon": 1.0}}, {}, "test")
    noise = 1 / (exp(0.5) - exp(-0.5)) ** 2
    assert (
        f"the 10,000 noisy labels say about as much as {10_000 * 0.25 / (0.25 + noise):,.0f} clean ones"
        in promise_of(job, 2, records=10_000).worth_words
    )
    twice = make_job({"privacy": {"epsilon": 1.0, "draws": 2}}, {}, "test")
    assert f" {10_000 * 0.25 / (0.25 + noise / 2):,.0f} clean" in promise_of(twice, 2, records=10_000).worth_words
    assert promise_of(job, 2).worth_words == ""
    for content in ({"privacy": {"mechanism": "none"}}, {"privacy": {"epsilon": 1.0}, "method": "statistic"}):
        assert promise_of(make_job(content, {}, "test"), 2, records=10_000).worth_words == ""


def test_a_statistic_has_the_closed_form_of_who_knows_all_other_labels() -> None:
    content = {"privacy": {"epsilon": 1.0}, "method": "statistic"}
    promise = promise_of(make_job(content, {}, "test"), 2)
    assert promise.mechanism == "gaussian statistic"
    assert promise.attack == "statistic" and promise.closed_form is not None
    sigma = fit_noise("gaussian", 1.0, 1e-6, DEFAULT_BOUND, 2).deviation / DEFAULT_BOUND
    assert promise.closed_form == pytest.approx(NormalDist().cdf(1 / (2 * sigma)), abs=1e-4)
    assert promise.closed_form < promise.ceiling < auc_ceiling(1.0, 1e-6)
    # Two statistics share ε: together they say nearly what one says alone.
    twice = promise_of(make_job(content | {"statistic": {"releases": 2}}, {}, "test"), 2)
    assert promise.closed_form - 0.005 < twice.closed_form <= promise.closed_form
    assert promise.ceiling - 0.02 < twice.ceiling <= promise.ceiling
    held_out = promise_of(make_job(content | {"training": {"validation": 0.1}}, {}, "test"), 2)
    assert held_out.mechanism == "discrete and gaussian statistic"


def test_where_labels_are_handed_over_the_attack_is_their_likelihood() -> None:
    content = {"privacy": {"mechanism": "laplace", "epsilon": 1.0}, "training": {"exchange": "labels"}}
    promise, predicted = promise_of(make_job(content, {}, "test"), 2), predicted_auc(laplace(1.0))
    assert (promise.attack, promise.closed_form) == ("likelihood", predicted.best_score)
    by_gradients = promise_of(make_job({"privacy": content["privacy"]}, {}, "test"), 2)
    assert (by_gradients.attack, by_gradients.closed_form) == ("shortest_distance", predicted.shortest_distance)
