"""The attacker on a statistic who knows all labels but one: it reads what was added, and reaches what it should."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tpsl.attacks import AttackError, run_attacks
from tpsl.attacks.known_others import KnownOthers
from tpsl.data.dataset import Dataset, load
from tpsl.data.true_labels import reveal
from tpsl.mechanisms import noise_from_spec, seeded_words
from tpsl.run.job import make_job
from tpsl.run.one_process import ALL_STEPS, train
from tpsl.run.run_folder import RunFolder
from tpsl.run.vaults import VaultChoice
from tpsl.vault import NO_LIMITS, ReleasePolicy, Vault

DATA = {"source": "synthetic", "rows": 2000, "numeric_fields": 3, "categorical_fields": 3, "signal": 2.0}
PRETRAIN = {"method": "masked", "epochs": 1}
EPSILON = 8.0

Trained = Callable[..., tuple[RunFolder, Dataset]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A run with a statistic and seeded noise; the same request gets the same run."""
    runs: dict[tuple[Any, ...], tuple[RunFolder, Dataset]] = {}

    def run(noise: str = "gaussian", classes: int = 2, releases: int = 1) -> tuple[RunFolder, Dataset]:
        content = {
            "data": {**DATA, "classes": classes},
            "privacy": {"epsilon": EPSILON, "noise_seed": 5},
            "model": {"embedding_dim": 4, "bottom": [16, 8], "top": [8]},
            "training": {"batch_size": 256, "epochs": 1, "validation": 0.1, "pretrain": PRETRAIN},
            "statistic": {"share_codes": True, "noise": noise, "releases": releases},
        }
        asked = (noise, classes, releases)
        if asked not in runs:
            job, path = make_job(content, {}, "test"), tmp_path_factory.mktemp("known-others") / "run"
            data = load(job.data)
            vault = VaultChoice(path / "label" / "vault", NO_LIMITS)  # named, so that it counts
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("TPSL_HOME", str(path.with_name("home")))
                train(job, path, vault=vault, data=data, record_steps=ALL_STEPS)
            runs[asked] = RunFolder(path), data
        return runs[asked]

    return run


def attacker(run: RunFolder, data: Dataset, labels: np.ndarray) -> KnownOthers:
    return KnownOthers(run, data.feature_parties, data.label_side.records, labels)


def drawn(run: RunFolder) -> list[np.ndarray]:
    """The noise of each statistic in the run's vault, drawn again from its seed."""
    with Vault.open(run.vault()) as vault:
        entries = [entry for entry in vault.ledger().entries if entry.kind == "statistic"]
    found = []
    for number, entry in enumerate(entries):
        noise, count = noise_from_spec(entry.details["mechanism"]), str(number)
        words = seeded_words(5, noise.digest, entry.details["ids_digest"], *([count] if number else []))
        found.append(noise.sample(entry.details["width"], words))
    return found


@pytest.mark.parametrize("releases", [1, 2])
def test_it_finds_the_noise_that_was_added_to_the_last_integer(trained: Trained, releases: int) -> None:
    run, data = trained(releases=releases)
    found = attacker(run, data, reveal(data.labels)).noises
    assert [noise.ravel().tolist() for noise in found] == [noise.tolist() for noise in drawn(run)]
    assert len(found) == releases


def test_statistics_of_another_run_in_the_same_vault_are_not_taken_for_its_own(trained: Trained) -> None:
    run, data = trained(classes=3)
    before = attacker(run, data, reveal(data.labels)).noises
    content = run.job().model_dump(mode="json")
    other = make_job(content, {"training": {"pretrain": {"epochs": 2}}}, "test")
    policy = ReleasePolicy(max_epsilon=2 * EPSILON, not_private=True, compose=True)
    train(other, run.path.with_name("other"), data=data, vault=VaultChoice(run.vault(), policy=policy))
    assert len(drawn(run)) == 2
    (after,) = attacker(run, data, reveal(data.labels)).noises
    assert (after == before[0]).all()


def test_wrong_labels_of_others_do_not_help(trained: Trained) -> None:
    run, data = trained()
    right, wrong = (attacker(run, data, labels).noises[0] for labels in (reveal(data.labels), 1 - reveal(data.labels)))
    assert np.abs(wrong).max() > 5 * np.abs(right).max()


@pytest.mark.parametrize(
    ("noise", "classes", "releases"),
    [
        ("gaussian", 2, 1),
        ("gaussian", 4, 1),
        ("gaussian", 2, 2),
        ("laplace", 2, 1),
        ("laplace", 3, 1),
    ],
)
def test_it_reaches_its_closed_form_and_not_its_ceiling(
    trained: Trained, noise: str, classes: int, releases: int
) -> None:
    run, data = trained(noise, classes, releases)
    (found,) = run_attacks(run.path, data.labels, which=["statistic"]).attacks
    assert 0.5 < found.auc < found.ceiling < 1
    if noise == "gaussian":
        assert found.closed_form is not None
        assert found.closed_form > 0.55
        assert abs(found.auc - found.closed_form) < 1.25 * (found.auc_high - found.auc_low)
    else:
        assert found.closed_form is None


def test_a_run_without_gradients_has_this_attack_alone(trained: Trained) -> None:
    run, data = trained()
    report = run_attacks(run.path, data.labels)
    assert [found.name for found in report.attacks] == ["statistic"]
    assert (report.steps, report.records, report.delta) == (0, 0, 1e-6)
    assert 0.999 * EPSILON < report.epsilon <= EPSILON
    assert set(report.not_run.values()) == {"needs gradients, and none were sent"}
    assert report["statistic"].records == round(0.9 * len(data.train))
    with pytest.raises(AttackError, match="the attack 'norm' needs gradients"):
        run_attacks(run.path, data.labels, which=["norm"])
