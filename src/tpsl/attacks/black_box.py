"""Attacks on gradients (or embeddings) alone: what a feature party can compute that knows nothing of the other side.

Both score the records of one mini-batch, as in appendix A of the paper.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from tpsl.workers import one_thread

Float32s = npt.NDArray[np.float32]


def norm_scores(gradients: Float32s) -> Float32s:
    """The norm attack (Li et al.; appendix A.1): `‖g‖²`. Of the rarer class the gradients tend to be longer."""
    squares: Float32s = np.einsum("ij,ij->i", gradients, gradients)
    return squares


def spectral_scores(vectors: Float32s) -> Float32s:
    """The spectral attack (Tran, Li, Madry; appendix A.2): `|⟨g - μ, v⟩|`.

    μ is the mean of the batch and v the top singular vector of the centred batch. Given embeddings instead of
    gradients, this is the attack of Sun et al. on the forward phase.
    """
    centred = torch.from_numpy(vectors - vectors.mean(axis=0))
    # In double precision, because the squares of late, small gradients would run out of float32.
    wide = centred.double()
    covariance = wide.T @ wide
    with one_thread():
        top = torch.linalg.eigh(covariance).eigenvectors[:, -1]
    scores: Float32s = (wide @ top).abs().float().numpy()
    return scores
