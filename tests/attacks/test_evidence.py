"""The white-box attacker recovers each noisy label from the gradient, under every estimator."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tpsl.attacks.evidence import Evidence
from tpsl.attacks.white_box import WhiteBox
from tpsl.data.true_labels import reveal
from tpsl.mechanisms import identity
from tpsl.vault import Vault

TWO = [
    {"mechanism": "discrete", "epsilon": 1.0},
    {"mechanism": "laplace", "epsilon": 1.0},
    {"mechanism": "gaussian", "sigma": 1.0, "delta": 1e-5},
]


def released(run: Any) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return the mechanism, the rows of the transcript and the log-likelihoods of their releases, from the vault."""
    mechanism = run.job.privacy.build(run.data.classes)
    rows = np.concatenate([seen.rows for seen in run.transcript])
    with Vault.open(run.path / "label" / "vault") as vault:
        noisy = vault.noisy_labels(mechanism, run.data.ids.take(pa.array(rows)), seed=run.job.privacy.noise_seed)
    return mechanism, rows, mechanism.log_likelihood(noisy.draws[0])


def read(run: Any, mechanism: Any) -> np.ndarray:
    white_box = WhiteBox(run.job, ["feature"], run.data.classes, run.trajectory)
    evidence = Evidence(white_box, mechanism, run.job.privacy.estimator)
    return np.concatenate([evidence(seen) for seen in run.transcript])


@pytest.mark.parametrize("privacy", TWO, ids=lambda p: p["mechanism"])
@pytest.mark.parametrize("estimator", ["linear", "unbiased", "posterior"])
def test_two_classes(recorded: Callable[..., Any], privacy: dict[str, Any], estimator: str) -> None:
    run = recorded({**privacy, "estimator": estimator})
    mechanism, _, likelihood = released(run)
    found = read(run, mechanism)
    assert (found != 0).mean() > 0.95
    np.testing.assert_allclose(found[found != 0], (likelihood[:, 1] - likelihood[:, 0])[found != 0], atol=0.05)


@pytest.mark.parametrize(
    ("mechanism", "estimator"),
    [("discrete", "linear"), ("discrete", "unbiased"), ("discrete", "posterior"), ("laplace", "posterior")],
)
def test_k_classes(recorded: Callable[..., Any], mechanism: str, estimator: str) -> None:
    run = recorded({"mechanism": mechanism, "epsilon": 2.0, "estimator": estimator}, data={"classes": 4})
    table, _, likelihood = released(run)
    found = read(run, table)
    readable = (found != 0).any(axis=1)
    assert readable.mean() > 0.9
    expected = likelihood - likelihood.max(axis=1, keepdims=True)
    right = np.isclose(found, expected, atol=0.05).all(axis=1)
    assert right[readable].mean() > 0.99


def test_without_noise_the_label_itself_is_read(recorded: Callable[..., Any]) -> None:
    for estimator in ("linear", "posterior"):
        run = recorded({"mechanism": "none", "estimator": estimator})
        mechanism, rows, _ = released(run)
        found = read(run, mechanism)
        readable = found != 0
        assert readable.mean() > 0.95
        assert ((found > 0) == (reveal(run.data.labels)[rows] == 1))[readable].all()


def test_without_noise_a_label_is_read_however_sure_the_network_is() -> None:
    """A logit 40 ahead hides all others in float32; the gradient still says which label it was made for."""

    class Sure:
        def logits_and_weights(self, seen: Any) -> tuple[np.ndarray, np.ndarray]:
            logits = np.repeat([[40.0, 0.0, 0.0]], 3, axis=0)
            return logits, np.eye(3) + 1e-8

    evidence = Evidence(Sure(), identity(3), "posterior")  # type: ignore[arg-type]
    assert evidence(SimpleNamespace(step=0)).argmax(axis=1).tolist() == [0, 1, 2]  # type: ignore[arg-type]
