import math
from pathlib import Path

import numpy as np
import pytest
import torch

from tpsl.metrics import auc
from tpsl.run.job import make_job
from tpsl.run.one_process import train, train_together
from tpsl.run.run_folder import RunFolder
from tpsl.run.setup import RunSetup
from tpsl.run.vaults import VaultChoice
from tpsl_research.defences import Defence, defended, marvell, marvell_variances, max_norm


def gradients(n: int = 4000, d: int = 16, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Two classes of gradients that norm and direction tell apart completely."""
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.arange(n) % 4 == 0).long()
    centre = torch.where(labels == 1, 3.0, -1.0)[:, None] * torch.eye(d)[0]
    return centre + 0.1 * torch.randn(n, d, generator=generator), labels


def norm_auc(g: torch.Tensor, labels: torch.Tensor) -> float:
    return auc(g.square().sum(dim=1).numpy(), labels.numpy() == 1).value


def test_max_norm_levels_the_expected_norms() -> None:
    g, labels = gradients()
    assert norm_auc(g, labels) > 0.999
    generator = torch.Generator().manual_seed(1)
    repeated = torch.stack([max_norm(g, generator) for _ in range(300)])
    expected = repeated.square().sum(dim=2).mean(dim=0)
    largest = float(g.square().sum(dim=1).max())
    # The variance of (1 + s n)² with large s is 2 s⁴: 300 draws give 8 %.
    assert float((expected / largest).median()) == pytest.approx(1.0, abs=0.1)
    assert norm_auc(repeated[0], labels) < 0.9


def test_marvell_hides_the_classes_with_the_power_it_was_given() -> None:
    g, labels = gradients()
    generator = torch.Generator().manual_seed(2)
    for power in (1.0, 16.0):
        sent = marvell(g, labels, power, generator)
        distance = float((g[labels == 1].mean(dim=0) - g[labels == 0].mean(dim=0)).square().sum())
        spent = float((sent - g).square().sum(dim=1).mean())
        assert spent == pytest.approx(power * distance, rel=0.15)
    assert norm_auc(sent, labels) == pytest.approx(0.5, abs=0.05)
    along = sent @ torch.eye(16)[0]
    assert auc(along.numpy(), labels.numpy() == 1).value < 0.8


def test_marvell_variances_are_at_an_optimum() -> None:
    share, d, distance, v, u, budget = 0.25, 16, 4.0, 0.2, 0.1, 8.0
    (a1, a0), (b1, b0) = marvell_variances(share, d, distance, v, u, budget)
    weights = np.array([share, share * (d - 1), 1 - share, (1 - share) * (d - 1)])

    def divergence(x: np.ndarray) -> float:
        p, q, r, s = x + np.array([v, v, u, u])
        return float((d - 1) * (s / q + q / s) + (r + distance) / p + (p + distance) / r)

    best = np.array([a1, b1, a0, b0])
    assert float(weights @ best) == pytest.approx(budget, rel=1e-6)
    rng = np.random.default_rng(3)
    for _ in range(2000):
        other = rng.dirichlet([0.5] * 4) * budget / weights
        if other[0] >= other[1] and other[2] >= other[3]:
            assert divergence(best) <= divergence(other) * (1 + 1e-3)


def test_batches_of_one_class_are_left_alone() -> None:
    g, _ = gradients(20)
    assert torch.equal(marvell(g, torch.zeros(20, dtype=torch.long), 4.0, torch.Generator()), g)


@pytest.mark.parametrize("name", ["gaussian-cut", "max-norm", "marvell"])
def test_a_defended_run_trains_and_sends_something_else(tmp_path: Path, name: str) -> None:
    content = {
        "data": {"source": "synthetic", "rows": 1500, "numeric_fields": 3, "categorical_fields": 2},
        "privacy": {"mechanism": "none", "estimator": "linear"},
        "model": {"embedding_dim": 4, "bottom": [16], "top": [8]},
        "training": {"batch_size": 128, "epochs": 1},
    }
    job = make_job(content, {}, "test")
    defence = Defence(name, 1.0)  # type: ignore[arg-type]
    results = [
        train(job, tmp_path / "plain", record_steps=99),
        train_together(
            RunSetup(job, RunFolder(tmp_path / "defended"), record_steps=99),
            VaultChoice(),
            make_label_party=defended(defence, seed=1),
        ),
    ]
    sent = [
        np.fromfile(tmp_path / run / "feature" / "transcript" / "gradients.f32", np.float32)
        for run in ("plain", "defended")
    ]
    assert sent[0].shape == sent[1].shape
    assert not np.array_equal(sent[0], sent[1])
    assert all(math.isfinite(result.test_auc) and not result.private for result in results)


def test_defences_refuse_noisy_labels(tmp_path: Path) -> None:
    content = {
        "data": {"source": "synthetic", "rows": 500},
        "privacy": {"mechanism": "discrete", "epsilon": 1.0},
        "model": {"bottom": [8], "top": [8]},
    }
    with pytest.raises(ValueError, match="max-norm works on true labels"):
        setup = RunSetup(make_job(content, {}, "test"), RunFolder(tmp_path / "run"))
        train_together(setup, VaultChoice(), make_label_party=defended(Defence("max-norm"), 0))
