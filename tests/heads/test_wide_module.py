"""The wide part is a module: it scores records bit for bit as NumPy does, and can be exported."""

import io

import numpy as np
import pytest
import torch

from tpsl.data.features import Features
from tpsl.heads.backfitting import fit_additive
from tpsl.heads.wide_part import FAR, AdditiveModel, Axis


def drawn(rows: int, seed: int, categories: int = 4) -> Features:
    """Return records of three categories and two numbers."""
    draw = np.random.default_rng(seed)
    codes = draw.integers(0, categories, (rows, 3)) + np.arange(3) * 10
    numeric = (3 * draw.normal(size=(rows, 2))).astype(np.float32)
    return Features(codes.astype(np.int32), numeric, 30, ("a", "b", "c"), ("x", "y"))


def paired(model: AdditiveModel) -> list[Axis]:
    return [axis for group in model.groups if len(group.axes) == 2 for axis in group.axes]


def scores(model: AdditiveModel, features: Features) -> np.ndarray:
    found = model.scores(features)
    assert found.shape == (len(features),) and found.dtype == np.float32
    return found


def by_numpy(model: AdditiveModel, features: Features) -> np.ndarray:
    """What the model says, in NumPy's words; sums are in the model's order."""

    def codes(axis: Axis) -> np.ndarray:
        if len(axis.edges):
            return np.searchsorted(axis.edges.numpy(), features.numeric[:, axis.column], side="right")
        found = features.categorical[:, axis.column].astype(np.int64) - axis.low
        return np.where((found >= 0) & (found < axis.size), found, axis.size)

    odds = np.full(len(features), model.base)
    for column, slope in enumerate(model.slopes.numpy()):
        odds += slope * np.clip(features.numeric[:, column].astype(np.float64), -FAR, FAR)
    for group in model.groups:
        sizes = [axis.size + 1 for axis in group.axes]
        odds += group.effects.numpy()[np.ravel_multi_index([codes(axis) for axis in group.axes], sizes)]
    return odds.astype(np.float32)


def test_scores_are_those_of_the_model() -> None:
    seen, others = drawn(3000, 0), drawn(500, 1, categories=9)  # five of nine categories are new
    parity = (seen.categorical[:, 0] + seen.categorical[:, 1]) % 2 == 0
    crossed = (seen.numeric[:, 0] > 0) == (seen.categorical[:, 2] > 21)
    model = fit_additive(seen, np.arange(3000), (parity.astype(np.float64) + crossed) / 2)
    assert {len(axis.edges) > 0 for axis in paired(model)} == {True, False}
    for features in (seen, others):
        expected = by_numpy(model, features)
        np.testing.assert_array_equal(scores(model, features), expected)


def test_a_number_on_the_edge_of_a_bin_is_in_the_upper_one() -> None:
    seen = drawn(3000, 0)
    model = fit_additive(seen, np.arange(3000), (seen.numeric[:, 0] * seen.numeric[:, 1] > 0).astype(np.float64))
    edges = [axis.edges for axis in paired(model)]
    numeric = np.repeat(np.concatenate(edges).astype(np.float32)[:, None], 2, axis=1)
    on_edges = Features(
        np.tile(np.array([0, 10, 20], np.int32), (len(numeric), 1)), numeric, 30, *[("a", "b", "c"), ("x", "y")]
    )
    expected = by_numpy(model, on_edges)
    np.testing.assert_array_equal(scores(model, on_edges), expected)


@pytest.mark.parametrize("fields", [(0, 2), (3, 0), (3, 2)])
def test_any_table_can_be_exported(fields: tuple[int, int]) -> None:
    drawn_from = drawn(500, 0)
    categorical, numeric = drawn_from.categorical[:, : fields[0]], drawn_from.numeric[:, : fields[1]]
    seen = Features(categorical, numeric, 30, ("a", "b", "c")[: fields[0]], ("x", "y")[: fields[1]])
    says = drawn_from.categorical[:, 0] > 1 if fields[0] else drawn_from.numeric[:, 0] > 1
    model = fit_additive(seen, np.arange(500), says.astype(np.float64))
    expected = by_numpy(model, seen)
    np.testing.assert_array_equal(scores(model, seen), expected)
    inputs = torch.from_numpy(categorical), torch.from_numpy(numeric)
    archive = io.BytesIO()
    torch.export.save(torch.export.export(model, inputs), archive)
    archive.seek(0)
    kept = torch.export.load(archive).module()(*inputs)
    np.testing.assert_allclose(kept[:, 0], expected, rtol=1e-6, atol=1e-6)
