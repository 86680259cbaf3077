"""The wide part as a graph scores records as the additive model does."""

import numpy as np
import torch

from tpsl.data.features import Features
from tpsl.export.wide_graph import WideScore
from tpsl.party.wide import AdditiveModel, fit_additive


def drawn(rows: int, seed: int, categories: int = 4, numbers: int = 2) -> Features:
    """Return records of three fields of categories and some numbers."""
    draw = np.random.default_rng(seed)
    codes = draw.integers(0, categories, (rows, 3)) + np.arange(3) * 10
    numeric = (3 * draw.normal(size=(rows, numbers))).astype(np.float32)
    return Features(codes.astype(np.int32), numeric, 30, ("a", "b", "c"), ("x", "y")[:numbers])


def scores(model: AdditiveModel, features: Features) -> np.ndarray:
    found = WideScore(model)(torch.from_numpy(features.categorical), torch.from_numpy(features.numeric))
    assert found.shape == (len(features), 1) and found.dtype == torch.float32
    return found[:, 0].numpy()


def test_scores_are_those_of_the_model() -> None:
    seen, others = drawn(3000, 0), drawn(500, 1, categories=9)  # five of nine categories are new
    parity = (seen.categorical[:, 0] + seen.categorical[:, 1]) % 2 == 0
    crossed = (seen.numeric[:, 0] > 0) == (seen.categorical[:, 2] > 21)
    model = fit_additive(seen, np.arange(3000), (parity.astype(np.float64) + crossed) / 2)
    assert {axis.categorical for pair in model.pairs for axis in pair} == {True, False}
    for features in (seen, others):
        expected = model.scores(features, np.arange(len(features)))
        np.testing.assert_allclose(scores(model, features), expected, rtol=1e-6, atol=1e-6)


def test_a_number_on_the_edge_of_a_bin_is_in_the_upper_one() -> None:
    seen = drawn(3000, 0)
    model = fit_additive(seen, np.arange(3000), (seen.numeric[:, 0] * seen.numeric[:, 1] > 0).astype(np.float64))
    edges = [axis.edges for pair in model.pairs for axis in pair if not axis.categorical]
    numeric = np.repeat(np.concatenate(edges).astype(np.float32)[:, None], 2, axis=1)
    on_edges = Features(
        np.tile(np.array([0, 10, 20], np.int32), (len(numeric), 1)), numeric, 30, *[("a", "b", "c"), ("x", "y")]
    )
    expected = model.scores(on_edges, np.arange(len(numeric)))
    np.testing.assert_allclose(scores(model, on_edges), expected, rtol=1e-6, atol=1e-6)


def test_a_table_without_numbers() -> None:
    seen = drawn(200, 0, numbers=0)
    model = fit_additive(seen, np.arange(200), (seen.categorical[:, 0] > 1).astype(np.float64))
    np.testing.assert_allclose(scores(model, seen), model.scores(seen, np.arange(200)), rtol=1e-6)
