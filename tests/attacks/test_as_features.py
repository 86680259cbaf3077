from typing import Any

import numpy as np
import pytest
import torch

from tpsl.attacks.as_features import as_features
from tpsl.data.config import SyntheticData
from tpsl.data.dataset import load

RECORDS = 1500


class Given:
    def __init__(self, *arrays: Any) -> None:
        self._arrays = arrays

    def __len__(self) -> int:
        return RECORDS

    def batch(self, rows: np.ndarray) -> Any:
        return tuple(np.asarray(array)[rows] for array in self._arrays)


def test_features_of_a_table_stay_as_they_are() -> None:
    table = load(SyntheticData(rows=20)).feature_parties
    assert as_features(table)["feature"] is table["feature"]


@pytest.mark.parametrize("pixels", [(1, 5, 4), (3, 40, 40)])
def test_images_become_their_principal_components(pixels: tuple[int, int, int]) -> None:
    """Two hidden numbers of each record decide all pixels: the components tell them, and are of one scale."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(RECORDS, 2, generator=generator)
    images = torch.tensordot(hidden, torch.randn(2, *pixels, generator=generator), dims=1)
    found = as_features({"left": Given(images)})["left"]
    assert found.categorical.shape == (RECORDS, 0)
    assert len(found.numeric_fields) == 16
    strongest = found.numeric[:, -2:]
    assert np.allclose(strongest.std(axis=0), 1, atol=1e-3)
    told, *_ = np.linalg.lstsq(strongest, hidden.numpy(), rcond=None)
    assert np.allclose(strongest @ told, hidden.numpy() - hidden.numpy().mean(axis=0), atol=0.1)


def test_sequences_are_read_by_what_occurs_in_them() -> None:
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, RECORDS)
    tokens = rng.integers(0, 50, (RECORDS, 12))
    tokens[label == 1, 3] = 77  # wherever the word stands
    tokens = rng.permuted(tokens, axis=1)
    found = as_features({"reader": Given(tokens, np.full(RECORDS, 12))})["reader"].numeric
    weights, *_ = np.linalg.lstsq(found, label - label.mean(), rcond=None)
    assert np.corrcoef(found @ weights, label)[0, 1] > 0.7
