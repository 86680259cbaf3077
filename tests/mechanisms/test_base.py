"""What holds for every mechanism: what it refuses, what a release says of itself, what a spec and a digest mean."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tpsl.mechanisms import (
    Mechanism,
    from_spec,
    gaussian,
    identity,
    laplace,
    optimized_unary,
    randomized_response,
    secure_words,
    seeded_words,
    subset_selection,
)

PRIVATE = [
    laplace(1.0),
    laplace(0.5, 3),
    randomized_response(1.0),
    randomized_response(2.0, 10),
    gaussian(1.0, 1e-5),
    gaussian(2.0, 1e-6, 5),
    subset_selection(1.0, 10),
    optimized_unary(1.0, 2),
    optimized_unary(2.0, 5),
]
ALL = [*PRIVATE, identity(), identity(4)]
WITH_EPSILON: dict[str, Callable[[Any], Mechanism]] = {
    "laplace": laplace,
    "randomized_response": randomized_response,
    "subset_selection": lambda epsilon: subset_selection(epsilon, 10),
    "optimized_unary": lambda epsilon: optimized_unary(epsilon, 10),
}


@pytest.mark.parametrize("build", WITH_EPSILON.values(), ids=WITH_EPSILON)
@pytest.mark.parametrize(
    ("epsilon", "complaint"),
    [
        (0, "must be a positive number, got 0"),
        (0.0, "must be a positive number, got 0.0"),
        (-1.0, "must be a positive number, got -1.0"),
        (math.nan, "must be a positive number, got nan"),
        (-math.inf, "must be a positive number, got -inf"),
        (math.inf, "inf is too large to represent: the largest is 40; for no noise use 'none'"),
        (40.000001, "40.000001 is too large to represent"),
        (1e-9, "1e-09 is too small to represent: the smallest is 0.001"),
        (5e-324, "5e-324 is too small to represent"),
        (True, "must be a number, got True"),
        ("1", "must be a number, got '1'"),
        (None, "must be a number, got None"),
        (1 + 0j, r"must be a number, got \(1\+0j\)"),
    ],
)
def test_bad_epsilon_is_named(build: Callable[..., Mechanism], epsilon: object, complaint: str) -> None:
    with pytest.raises(ValueError, match=f"^epsilon {complaint}"):
        build(epsilon)


@pytest.mark.parametrize("build", WITH_EPSILON.values(), ids=WITH_EPSILON)
@pytest.mark.parametrize("epsilon", [1, np.float64(1.0), np.float32(1.0), np.int64(1)])
def test_every_kind_of_real_number_is_an_epsilon(build: Callable[..., Mechanism], epsilon: Any) -> None:
    assert build(epsilon).digest == build(1.0).digest
    assert json.dumps(build(epsilon).spec()) == json.dumps(build(1.0).spec())


@pytest.mark.parametrize("classes", [1, 0, -2, 2.5, 3.0, True, "3", None])
@pytest.mark.parametrize(
    "build",
    [
        lambda k: laplace(1.0, k),
        lambda k: randomized_response(1.0, k),
        lambda k: gaussian(1.0, 1e-5, k),
        lambda k: subset_selection(1.0, k),
        lambda k: optimized_unary(1.0, k),
        identity,
    ],
    ids=["laplace", "randomized_response", "gaussian", "subset_selection", "optimized_unary", "identity"],
)
def test_bad_number_of_classes_is_named(build: Callable[[Any], Mechanism], classes: object) -> None:
    with pytest.raises(ValueError, match="number of classes must be an integer of at least 2") as caught:
        build(classes)
    assert repr(classes) in str(caught.value)


@pytest.mark.parametrize("mechanism", [laplace(1.0), randomized_response(1.0), identity()], ids=str)
@pytest.mark.parametrize(
    ("labels", "complaint"),
    [
        ([0, 1, 2, 0], "label 2 at position 2 is not an integer from 0 to 1"),
        ([0, -1], "label -1 at position 1 is not an integer from 0 to 1"),
        ([0.0, 1.0, 3.0], "label 3.0 at position 2 is not an integer from 0 to 1"),
        ([1.0, math.nan], "label nan at position 1 is not an integer from 0 to 1"),
        ([math.inf, 1.0], "label inf at position 0 is not an integer from 0 to 1"),
        ([0, 0.5], "label 0.5 at position 1 is not an integer from 0 to 1"),
        ([2**63], "label 9223372036854775808 at position 0 is not an integer from 0 to 1"),
        (["0", "1"], "labels must be integers, got <U1: '0' at position 0"),
        ([0, 1, None], "labels must be integers, got object: None at position 2"),
        ([b"0"], "labels must be integers"),
        ([0j, 1], "labels must be integers, got complex128"),
        (np.array(["2020-01-01"], dtype="M8[D]"), "labels must be integers"),
        ([[0, 1], [1, 0]], r"labels must be one-dimensional, got shape \(2, 2\)"),
        (1, r"labels must be one-dimensional, got shape \(\)"),
        (np.zeros((0, 2)), r"labels must be one-dimensional, got shape \(0, 2\)"),
    ],
)
def test_bad_labels_are_named_with_their_position(mechanism: Mechanism, labels: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=f"^{complaint}"):
        mechanism.release(labels, rng=1)


def test_the_last_class_is_a_label_and_the_one_after_it_is_not() -> None:
    assert len(randomized_response(1.0, 300).release([299, 0], rng=1)) == 2
    with pytest.raises(ValueError, match="label 300 at position 1 is not an integer from 0 to 299"):
        randomized_response(1.0, 300).release([0, 300], rng=1)


@pytest.mark.parametrize("mechanism", ALL, ids=str)
@pytest.mark.parametrize(
    "empty", [[], np.array([], dtype=np.int64), np.array([], dtype=bool)], ids=["list", "int", "bool"]
)
def test_no_labels_give_an_empty_release(mechanism: Mechanism, empty: Any) -> None:
    release = mechanism.release(empty)
    assert len(release) == 0
    assert release.outcomes.shape == (0, *mechanism.outcome_shape)
    assert release.noisy.shape == ((0,) if mechanism.classes == 2 else (0, mechanism.classes))


@pytest.mark.parametrize("mechanism", ALL, ids=str)
@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint8, np.int64, np.uint64, np.float16, np.float32, np.float64])
def test_the_type_of_the_labels_does_not_matter(mechanism: Mechanism, dtype: type) -> None:
    labels = np.array([0, 1, 1, 0, 1], dtype=dtype)
    assert np.array_equal(mechanism.release(labels, rng=3).outcomes, mechanism.release([0, 1, 1, 0, 1], rng=3).outcomes)


@pytest.mark.parametrize("mechanism", PRIVATE, ids=str)
def test_seeded_release_repeats_and_says_it_is_not_private(mechanism: Mechanism) -> None:
    labels = np.random.default_rng(0).integers(0, mechanism.classes, 500)
    first, again, other = (mechanism.release(labels, rng=seed) for seed in (1, 1, 2))
    assert np.array_equal(first.outcomes, again.outcomes)
    assert not np.array_equal(first.outcomes, other.outcomes)
    for release in (first, mechanism.release(labels, seeded_words(1, "context"))):
        assert release.private is False
        assert "NOT PRIVATE (seeded noise)" in str(release)
        assert "NOT PRIVATE (seeded noise)" in repr(release)


@pytest.mark.parametrize("mechanism", PRIVATE, ids=str)
def test_secure_release_never_repeats_and_is_private(mechanism: Mechanism) -> None:
    labels = np.random.default_rng(0).integers(0, mechanism.classes, 500)
    releases = [mechanism.release(labels), mechanism.release(labels), mechanism.release(labels, secure_words())]
    assert len({release.outcomes.tobytes() for release in releases}) == 3
    for release in releases:
        assert release.private is True
        assert "NOT PRIVATE" not in str(release)
        assert str(release) == repr(release) == f"release of 500 labels by {mechanism}"


@pytest.mark.parametrize("mechanism", PRIVATE, ids=str)
def test_labels_released_in_parts_from_one_stream_are_labels_released_together(mechanism: Mechanism) -> None:
    """So the chunks that bound the memory of a release change nothing; 150 000 labels are more than one chunk."""
    labels = np.random.default_rng(0).integers(0, mechanism.classes, 150_000)
    stream = seeded_words(8)
    parts = [mechanism.release(part, stream).outcomes for part in np.split(labels, [0, 1, 7, 40_000, 140_001])]
    assert np.array_equal(np.concatenate(parts), mechanism.release(labels, rng=8).outcomes)


@pytest.mark.parametrize("mechanism", PRIVATE, ids=str)
def test_one_label_moves_no_other_outcome(mechanism: Mechanism) -> None:
    labels = np.zeros(1000, dtype=np.uint8)
    flipped = labels.copy()
    flipped[500] = 1
    a, b = mechanism.release(labels, rng=9).outcomes, mechanism.release(flipped, rng=9).outcomes
    assert np.array_equal(np.delete(a, 500, axis=0), np.delete(b, 500, axis=0))


@pytest.mark.parametrize("mechanism", ALL, ids=str)
def test_outcomes_are_small_integers_that_cannot_be_changed(mechanism: Mechanism) -> None:
    release = mechanism.release(np.zeros(10), rng=1)
    assert release.outcomes.dtype == mechanism.outcome_dtype == np.min_scalar_type(mechanism.outcomes - 1)
    with pytest.raises(ValueError, match="read-only"):
        release.outcomes[...] = 0


@pytest.mark.parametrize("rng", [1.5, "1", np.random.default_rng(0)])
def test_other_sources_of_randomness_are_refused(rng: Any) -> None:
    with pytest.raises(TypeError):
        laplace(1.0).release([0, 1], rng)


@pytest.mark.parametrize("mechanism", ALL, ids=str)
def test_spec_survives_json_and_means_the_same_mechanism(mechanism: Mechanism) -> None:
    rebuilt = from_spec(json.loads(json.dumps(mechanism.spec())))
    assert type(rebuilt) is type(mechanism)
    assert rebuilt.spec() == mechanism.spec()
    assert (rebuilt.digest, rebuilt.epsilon, rebuilt.delta) == (mechanism.digest, mechanism.epsilon, mechanism.delta)
    labels = np.arange(100) % mechanism.classes
    assert np.array_equal(rebuilt.release(labels, rng=1).outcomes, mechanism.release(labels, rng=1).outcomes)


def test_spec_names_are_those_of_the_command_line() -> None:
    assert [m.spec()["mechanism"] for m in ALL] == [m.name for m in ALL]
    assert {m.name for m in ALL} == {
        "laplace",
        "discrete",
        "gaussian",
        "none",
        "subset_selection",
        "optimized_unary",
    }


@pytest.mark.parametrize(
    "spec", [{}, {"mechanism": "Laplace", "epsilon": 1.0}, {"mechanism": None}, {"mechanism": ["laplace"]}]
)
def test_unknown_mechanism_is_refused(spec: dict[str, Any]) -> None:
    known = "none, laplace, discrete, gaussian, subset_selection, optimized_unary"
    with pytest.raises(ValueError, match=f"unknown mechanism .* known are {known}"):
        from_spec(spec)


@pytest.mark.parametrize(
    "spec",
    [
        {"mechanism": "laplace"},
        {"mechanism": "laplace", "epsilon": 1.0, "delta": 1e-5},
        {"mechanism": "discrete", "epsilon": 1.0, "sigma": 1.0},
        {"mechanism": "gaussian", "sigma": 1.0},
        {"mechanism": "none", "epsilon": 1.0},
        {"mechanism": "subset_selection", "epsilon": 1.0},
        {"mechanism": "subset_selection", "epsilon": 1.0, "classes": 10, "size": 3},
        {"mechanism": "optimized_unary", "classes": 10},
    ],
)
def test_missing_and_unknown_parameters_are_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"mechanism '{spec['mechanism']}' does not take these parameters"):
        from_spec(spec)


def test_bad_values_in_a_spec_are_named() -> None:
    with pytest.raises(ValueError, match="epsilon must be a positive number, got -1"):
        from_spec({"mechanism": "laplace", "epsilon": -1})


def test_different_mechanisms_have_different_digests() -> None:
    different = [
        *ALL,
        laplace(1.0000001),
        laplace(2.0, 3),  # its coordinates have the table of laplace(1.0): the classes must count
        laplace(2.0, 4),
        randomized_response(1.0000001),
        randomized_response(1.0, 3),
        randomized_response(1.0, 4),
        gaussian(1.0000001, 1e-5),
        gaussian(1.0, 1e-5, 3),
        gaussian(1.0, 1e-5, 4),
        identity(3),
        subset_selection(1.0000001, 10),
        subset_selection(1.0, 11),
        subset_selection(2.0, 100),
        optimized_unary(2.0000001, 5),
        optimized_unary(2.0, 4),
    ]
    assert len({m.digest for m in different}) == len(different)


def test_delta_is_a_claim_about_the_draw_and_no_part_of_it() -> None:
    assert gaussian(1.0, 1e-5).digest == gaussian(1.0, 1e-6).digest
    assert gaussian(1.0, 1e-5).spec() != gaussian(1.0, 1e-6).spec()


@pytest.mark.parametrize(
    ("mechanism", "digest"),
    [
        (laplace(1.0), "ecc12675cc1c317dfc707180ac614374576a77d3fa6174c7b016b8c61e28aa88"),
        (laplace(0.1), "1d532cc7c103c6360d6e9a3adba26fe5ddad81deb522ab59fc6b206f086443ed"),
        (laplace(1.0, 10), "8d7eb3fe5aa6b84a491c68a12397fb68d8b72db32fb8748c1d9ccce55bbfb206"),
        (randomized_response(1.0), "f52cf3f14f74a9353fc79758b617d90df9d3cebe81a99eda071eabcb77426851"),
        (randomized_response(0.5, 10), "586cfe8ebfcfb550644dcd7174621a4ccfe2c1845e9d6953e4b084df632333a7"),
        (gaussian(1.0, 1e-5), "4f9ec4540cc2c983e8162043f3d47ac8d749c89608e3cd250c5041f16cc77bd8"),
        (gaussian(2.0, 1e-6, 5), "25cf61c054f144de47a3791869b0552edd8f6ed8a848a958480a0ceb96ad19c9"),
        (subset_selection(1.0, 10), "6307981477a235cfd3954981d87e7e18a18f6fd7cea7d523ce51aec571650060"),
        (subset_selection(1.0, 100), "02ffdaa6aa776012e7f4ad32873682413f522184bfc7bafea6f9e1eaf7ba00fe"),
        (optimized_unary(1.0, 2), "dd47ad6006b3d84792c2d49a90574a0bf1b172ca5498ff7f5fc54b3612fe65d4"),
        (optimized_unary(1.0, 10), "a48621ba451c9973f4cbdab27926b94dcf23513a3ce9ea38f010f8eafef98359"),
        (identity(), "f7bc31df95000fd2c69c9eb62685ad9aea09afe8dd2d89a03abdfeca5c13a301"),
    ],
    ids=str,
)
def test_tables_do_not_change_between_versions(mechanism: Mechanism, digest: str) -> None:
    """A vault remembers digests: a table that changes makes every vault disagree with its ledger."""
    assert mechanism.digest == digest


@pytest.mark.parametrize(
    ("mechanism", "shown"),
    [
        (laplace(1.0), "laplace (ε = 1)"),
        (laplace(0.5, 3), "laplace (ε = 0.5, 3 classes)"),
        (randomized_response(1.2345641), "discrete (ε = 1.23457)"),
        (gaussian(1.0, 1e-5), "gaussian (ε = 4.37715, δ = 1e-05)"),
        (identity(), "none (ε = inf)"),
        (subset_selection(1.0, 10), "subset_selection (ε = 1, 10 classes)"),
    ],
)
def test_a_shown_epsilon_is_rounded_up(mechanism: Mechanism, shown: str) -> None:
    assert str(mechanism) == shown


@pytest.mark.parametrize("mechanism", ALL, ids=str)
def test_a_mechanism_cannot_be_changed(mechanism: Mechanism) -> None:
    with pytest.raises(AttributeError):
        mechanism.epsilon = 0.1  # type: ignore[misc]
