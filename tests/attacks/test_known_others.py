"""The attacker on a statistic who knows all labels but one: it reads what was added, and reaches what it should."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tpsl.attacks import AttackError, run_attacks
from tpsl.attacks.known_others import KnownOthers
from tpsl.data.dataset import Dataset, load
from tpsl.data.true_labels import reveal
from tpsl.mechanisms import noise_from_spec, seeded_words
from tpsl.training.job import make_job
from tpsl.training.one_process import ALL_STEPS, train
from tpsl.training.run_folder import RunFolder
from tpsl.vault import Vault

DATA = {"source": "synthetic", "rows": 3000, "numeric_fields": 3, "categorical_fields": 3, "signal": 2.0}
PRETRAIN = {"method": "masked", "epochs": 1, "batch_size": 256}


def trained(
    path: Path, *, epsilon: float = 8.0, classes: int = 2, noise: str = "gaussian", share: float = 1.0
) -> Dataset:
    content = {
        "data": {**DATA, "classes": classes},
        "privacy": {"epsilon": epsilon, "noise_seed": 5},
        "model": {"embedding_dim": 4, "bottom": [16, 8], "top": [8]},
        "training": {"batch_size": 256, "epochs": 1, "validation": 0.1, "pretrain": PRETRAIN},
        "statistic": {"share": share, "share_codes": True, "noise": noise},
    }
    job = make_job(content, {}, "test")
    data = load(job.data)
    train(job, path, data=data, record_steps=ALL_STEPS)
    return data


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_it_finds_the_noise_that_was_added_to_the_last_integer(tmp_path: Path, share: float) -> None:
    data = trained(tmp_path / "run", share=share)
    run = RunFolder(tmp_path / "run")
    attacker = KnownOthers(run, data.feature_parties, data.label_side.records, reveal(data.labels))
    with Vault.open(run.vault()) as vault:
        (entry,) = (entry for entry in vault.ledger().entries if entry.kind == "statistic")
    noise = noise_from_spec(entry.details["mechanism"])
    drawn = noise.sample(attacker.noise.size, seeded_words(5, noise.digest, entry.details["ids_digest"]))
    assert (attacker.noise.ravel() == drawn).all()


@pytest.mark.parametrize(
    ("noise", "classes", "share"),
    [("gaussian", 2, 1.0), ("gaussian", 4, 0.5), ("laplace", 2, 1.0), ("laplace", 3, 1.0)],
)
def test_it_reaches_its_closed_form_and_not_its_ceiling(tmp_path: Path, noise: str, classes: int, share: float) -> None:
    data = trained(tmp_path / "run", noise=noise, classes=classes, share=share)
    report = run_attacks(tmp_path / "run", data.labels, which=["statistic"])
    (found,) = report.attacks
    assert 0.5 < found.auc < found.ceiling < 1
    margin = (found.auc_high - found.auc_low) / 2
    if noise == "gaussian":
        assert found.closed_form is not None
        assert abs(found.auc - found.closed_form) < 2.5 * margin
        assert found.closed_form > 0.55
    else:
        assert found.closed_form is None


def test_a_run_without_gradients_has_this_attack_alone(tmp_path: Path) -> None:
    data = trained(tmp_path / "run", epsilon=1.0)
    report = run_attacks(tmp_path / "run", data.labels)
    assert [found.name for found in report.attacks] == ["statistic"]
    assert (report.steps, report.records, report.delta) == (0, 0, 1e-6)
    assert 0.999 < report.epsilon <= 1.0
    assert set(report.not_run.values()) == {"needs gradients, and none were sent"}
    assert report["statistic"].records == min(2048, round(0.9 * len(data.train)))
    with pytest.raises(AttackError, match="the attack 'norm' needs gradients"):
        run_attacks(tmp_path / "run", data.labels, which=["norm"])


def test_wrong_labels_of_others_do_not_help(tmp_path: Path) -> None:
    data = trained(tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    labels = np.roll(reveal(data.labels), 1)
    attacker = KnownOthers(run, data.feature_parties, data.label_side.records, labels)
    sound = KnownOthers(run, data.feature_parties, data.label_side.records, reveal(data.labels))
    assert np.abs(attacker.noise).max() > 5 * np.abs(sound.noise).max()
