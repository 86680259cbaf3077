"""Mechanisms by name: what they need, and those that users register."""

from __future__ import annotations

from typing import Any

import pytest

from tpsl.mechanisms import MECHANISMS, TOTAL, Mechanism, TableMechanism, build_mechanism, integer_weights, laplace
from tpsl.registry import UnknownName


def lying(epsilon: float, classes: int) -> list[list[int]]:
    return integer_weights([[0.9, 0.1], [0.1, 0.9]], 10.0)


def without_epsilon(classes: int) -> list[list[int]]:
    return [[TOTAL // 2, TOTAL // 2], [TOTAL // 4, TOTAL - TOTAL // 4]]


def half(epsilon: float, classes: int) -> Mechanism:
    return laplace(epsilon / 2, classes)


def broken(epsilon: float, classes: int) -> list[list[int]]:
    raise ZeroDivisionError("two lines\nof reasons")


def demanding(epsilon: float, temperature: float, classes: int) -> list[list[int]]:
    return []


@pytest.fixture(autouse=True)
def _registered() -> None:
    for part in (lying, without_epsilon, half, broken, demanding):
        MECHANISMS.register(part.__name__, part)


def test_a_registered_table_becomes_a_mechanism() -> None:
    mechanism, why = build_mechanism("without_epsilon", 2)
    assert isinstance(mechanism, TableMechanism)
    assert (mechanism.name, why) == ("without_epsilon", "the job names it")


def test_a_registered_function_may_return_a_mechanism_of_this_package() -> None:
    mechanism, _ = build_mechanism("half", 3, epsilon=1.0)
    assert mechanism.spec() == laplace(0.5, 3).spec()


@pytest.mark.parametrize(
    ("name", "classes", "given", "complaint"),
    [
        (
            "lying",
            2,
            {"epsilon": 1.0},
            r"the mechanism 'lying' has ε = 2.19723, which is above the ε = 1 asked for",
        ),
        ("lying", 3, {"epsilon": 9.0}, "the mechanism 'lying' has 2 classes instead of 3"),
        ("lying", 2, {}, "mechanism 'lying' needs epsilon"),
        ("lying", 2, {"epsilon": -1.0}, "epsilon must be a positive number"),
        ("without_epsilon", 2, {"epsilon": 1.0}, "mechanism 'without_epsilon' does not take epsilon"),
        ("broken", 2, {"epsilon": 1.0}, r"the mechanism 'broken' fails \(ZeroDivisionError: two lines of reasons\)"),
        ("demanding", 2, {"epsilon": 1.0}, "the mechanism 'demanding' takes 'temperature', which no job can give"),
        ("gaussian", 2, {"sigma": 1.0}, "mechanism 'gaussian' needs delta"),
        ("gaussian", 2, {"sigma": 0.0, "delta": 0.1}, "sigma must be above 0.01"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(
    name: str, classes: int, given: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        build_mechanism(name, classes, **given)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        UnknownName, match=r"unknown mechanism 'laplce'; known are auto, none, laplace, discrete, .*, lying"
    ):
        build_mechanism("laplce", 2, epsilon=1.0)
