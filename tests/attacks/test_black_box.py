import numpy as np
import pytest

from tpsl.attacks.black_box import norm_scores, spectral_scores


@pytest.fixture
def gradients() -> np.ndarray:
    rng = np.random.default_rng(0)
    return (rng.normal(size=(300, 1)) * rng.normal(size=8) + 0.1 * rng.normal(size=(300, 8))).astype(np.float32)


def test_norm(gradients: np.ndarray) -> None:
    np.testing.assert_allclose(norm_scores(gradients), np.linalg.norm(gradients, axis=1) ** 2, rtol=1e-5)


@pytest.mark.parametrize("scale", [1.0, 1e-18])
def test_spectral_is_the_projection_on_the_top_singular_vector(gradients: np.ndarray, scale: float) -> None:
    gradients = (gradients * np.float32(scale)).astype(np.float32)
    centred = gradients.astype(np.float64) - gradients.mean(axis=0, dtype=np.float64)
    direction = np.linalg.svd(centred, full_matrices=False)[2][0]
    np.testing.assert_allclose(spectral_scores(gradients), np.abs(centred @ direction), rtol=1e-3, atol=1e-4 * scale)


def test_spectral_tells_two_clusters_apart() -> None:
    """Lemma A.1 of the paper: a rare cluster far from the rest has the larger scores."""
    rng = np.random.default_rng(1)
    rare = rng.random(2000) < 0.1
    vectors = (rng.normal(size=(2000, 16)) + 12.0 * rare[:, None] * np.eye(16)[0]).astype(np.float32)
    scores = spectral_scores(vectors)
    assert scores[rare].min() > scores[~rare].max()
