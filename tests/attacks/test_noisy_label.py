"""Attacks that score by the noisy label alone reach their closed forms, whatever the features say about the labels."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch

from tpsl.attacks.attacked_run import AttackedRun
from tpsl.attacks.auc_prediction import predicted_auc
from tpsl.attacks.evidence import NoisyLabelReader
from tpsl.attacks.scoring import Evaluation
from tpsl.attacks.suite import ATTACKS
from tpsl.attacks.white_box import WhiteBox
from tpsl.mechanisms import (
    Estimator,
    Mechanism,
    gaussian,
    integer_weights,
    laplace,
    optimized_unary,
    randomized_response,
    subset_selection,
    table_mechanism,
)
from tpsl.models.halves import Top, Tops
from tpsl.perturb import LOSSES, LogitGradient, Loss, cross_entropy
from tpsl.run.job import make_job
from tpsl.run.transcript import Trajectory, TrajectoryWriter, TranscriptStep

SIGMAS = 4.9  # α = 1e-6
RECORDS = 20_000
WIDTH = 12

MECHANISMS: dict[str, Callable[[int], Mechanism]] = {
    "discrete": lambda k: randomized_response(2.0, k),
    "laplace": lambda k: laplace(2.0, k),
    "gaussian": lambda k: gaussian(1.0, 1e-5, k),
    "subset_selection": lambda k: subset_selection(0.5, k),
    "optimized_unary": lambda k: optimized_unary(2.0, k),
    "table": lambda k: table_mechanism("abstaining", abstaining(k)),
}


def abstaining(classes: int) -> list[list[int]]:
    """The label, another one, or nothing; of two labels the second is kept more often."""
    keep, nothing = np.full(classes, 0.5), np.full(classes, 0.2)
    if classes == 2:
        keep[1], nothing[1] = 0.6, 0.15
    rows = np.repeat((1 - keep - nothing)[:, None] / (classes - 1), classes, axis=1)
    np.fill_diagonal(rows, keep)
    return integer_weights(np.column_stack([rows, nothing]).tolist(), 3.0)


def simulated(
    mechanism: Mechanism, estimator: Estimator, folder: Path, loss: str = "cross_entropy"
) -> tuple[NoisyLabelReader, TranscriptStep, np.ndarray]:
    """Return one step of a network that is trained on labels 0 and k - 1, which the embeddings tell well."""
    classes = mechanism.classes
    rng = np.random.default_rng(5)
    labels = np.where(rng.random(RECORDS) < 0.4, classes - 1, 0)
    job = make_job({"model": {"bottom": [WIDTH], "top": []}, "training": {"loss": loss}}, {}, "test")
    top = Top(WIDTH, classes, job.model, torch.Generator().manual_seed(1))
    writer = TrajectoryWriter(folder, Tops([top], classes))
    writer.record()
    writer.close()
    features = rng.normal(size=(RECORDS, WIDTH))
    features[:, :3] += 1.5 * (labels != 0)[:, None]
    embeddings = torch.from_numpy(features.astype(np.float32)).requires_grad_()
    perturb = LogitGradient(mechanism, estimator, job.training.build_loss(classes))
    z = top(embeddings)
    z.backward(perturb(z.detach(), perturb.evidence(mechanism.release(labels, 3).outcomes)))
    assert embeddings.grad is not None
    seen = TranscriptStep(0, np.arange(RECORDS), embeddings.detach().numpy(), embeddings.grad.numpy())
    white_box = WhiteBox(job, ["feature"], classes, Trajectory(folder))
    return NoisyLabelReader(white_box, mechanism, estimator), seen, labels


@pytest.mark.parametrize("estimator", ["linear", "unbiased", "posterior"])
@pytest.mark.parametrize("classes", [2, 3, 5, 10])
@pytest.mark.parametrize("name", MECHANISMS)
def test_what_is_measured_is_the_closed_form(name: str, classes: int, estimator: Estimator, tmp_path: Path) -> None:
    mechanism = MECHANISMS[name](classes)
    reader, seen, labels = simulated(mechanism, estimator, tmp_path)
    hidden = classes > 2 and bool(mechanism.outcome_shape) and estimator != "posterior"
    assert reader.exact == (not hidden)
    run = cast(AttackedRun, SimpleNamespace(reader=reader))  # these attacks ask a run for nothing else
    for attack in ("shortest_distance", "shortest_distance_soft", "likelihood"):
        prepared = ATTACKS.get(attack).on(run, attack, predicted_auc(mechanism))
        closed_form = prepared.closed_form
        if hidden:
            assert closed_form is None
            continue
        assert closed_form is not None
        evaluation = Evaluation(hard=attack == "shortest_distance")
        evaluation.add(prepared.score(seen), labels, 0)
        found = evaluation.result(attack, "")
        deviation = (found.auc_high - found.auc_low) / (2 * 1.96)
        assert deviation < 0.005
        assert abs(found.auc - closed_form) < SIGMAS * deviation, attack


class Smoothed(Loss):
    """Cross-entropy against `0.9 e_j + 0.1/k`: a user's loss, without derivatives."""

    def __init__(self, classes: int) -> None:
        self.classes = classes

    def log_probabilities(self, z: torch.Tensor) -> torch.Tensor:
        return cross_entropy(self.classes).log_probabilities(z)

    def losses(self, z: torch.Tensor) -> torch.Tensor:
        plain = -self.log_probabilities(z)
        return 0.9 * plain + 0.1 * plain.mean(dim=1, keepdim=True)


LOSSES.register("smoothed for this test", Smoothed)


@pytest.mark.parametrize("estimator", ["linear", "unbiased", "posterior"])
@pytest.mark.parametrize("classes", [2, 5])
def test_noisy_labels_are_read_whatever_the_loss(classes: int, estimator: Estimator, tmp_path: Path) -> None:
    """The same noise under a user's loss says the same, record by record."""
    mechanism, found = randomized_response(1.0, classes), []
    for loss in ("cross_entropy", "smoothed for this test"):
        reader, seen, _ = simulated(mechanism, estimator, tmp_path / loss, loss)
        found.append(reader.evidence(seen))
    assert len(np.unique(found[0])) > 1
    np.testing.assert_allclose(*found, atol=2e-3)
