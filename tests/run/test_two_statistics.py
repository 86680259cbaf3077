"""Two statistics of the same records in one job: ε is spent by both together, and each is drawn once."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tpsl.audit import replay
from tpsl.run.job import Job, make_job
from tpsl.run.observer import Watching
from tpsl.run.one_process import train
from tpsl.run.stages.collect import STATISTIC_HEAD
from tpsl.run.vaults import VaultChoice
from tpsl.vault import ReleasePolicy, Vault
from tpsl.vault.ledger import Entry

EPSILON = 4.0


def job(classes: int = 2, noise: str = "gaussian", noise_seed: int | None = 1) -> Job:
    size = {"rows": 1500, "numeric_fields": 3, "categorical_fields": 3, "classes": classes, "signal": 3.0}
    content: dict[str, Any] = {
        "data": {"source": "synthetic", **size},
        "privacy": {"epsilon": EPSILON, "noise_seed": noise_seed},
        "model": {"embedding_dim": 4, "bottom": [16, 8], "top": [8]},
        "training": {"validation": 0.1},
        "statistic": {"releases": 2, "noise": noise, "share_codes": True},
    }
    return make_job(content, {}, "test")


def statistics(vault: Path) -> list[Entry]:
    with Vault.open(vault) as opened:
        assert opened.verify() == []
        return [entry for entry in opened.ledger().entries if entry.kind == "statistic"]


@pytest.mark.parametrize(("noise", "delta"), [("gaussian", 1e-6), ("laplace", 0.0)])
def test_both_together_spend_epsilon_and_need_no_leave_to_compose(tmp_path: Path, noise: str, delta: float) -> None:
    agreed = job(noise=noise, noise_seed=None)
    choice = VaultChoice(tmp_path / "vault", policy=ReleasePolicy(max_epsilon=EPSILON))
    result = train(agreed, tmp_path / "run", vault=choice)
    first, second = statistics(tmp_path / "vault")
    assert first.details["ids_digest"] == second.details["ids_digest"]
    assert first.details["phi_digest"] != second.details["phi_digest"]
    assert max(first.epsilon, second.epsilon) < 0.75 * EPSILON
    assert 0.999 * EPSILON <= result.total_epsilon <= EPSILON
    assert (result.epsilon, result.delta, result.total_delta) == (result.total_epsilon, delta, delta)
    # The same job on the same vault finds both again.
    again = train(agreed, tmp_path / "again", vault=choice)
    assert [entry.hash for entry in statistics(tmp_path / "vault")] == [first.hash, second.hash]
    assert again.test_auc == result.test_auc


def test_what_both_spend_together_is_refused_before_anything_is_stored(tmp_path: Path) -> None:
    choice = VaultChoice(tmp_path / "vault", policy=ReleasePolicy(max_delta=0.6e-6))
    with pytest.raises(ValueError, match="δ = 1e-06 in all, more than 6e-07"):  # one alone has half of it
        train(job(noise_seed=None), tmp_path / "run", vault=choice)
    assert not Vault.exists(tmp_path / "vault")


class Interrupted(Exception):
    pass


def test_a_run_interrupted_between_the_two_ends_with_the_same_head_and_draws_nothing_twice(tmp_path: Path) -> None:
    def notice(text: str) -> None:
        if text.startswith("statistic of"):
            raise Interrupted

    train(job(), tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(job(), tmp_path / "broken", watching=Watching(notice=notice))
    vault = tmp_path / "broken" / "label" / "vault"
    (begun,) = statistics(vault)
    train(job(), tmp_path / "broken")
    whole, broken = ((tmp_path / run / "label" / STATISTIC_HEAD) for run in ("whole", "broken"))
    assert whole.read_bytes() == broken.read_bytes()
    assert {"weights", "first.weights"} < load_file(whole).keys()
    assert [len(statistics(vault)), statistics(vault)[0].hash] == [2, begun.hash]
    metrics = [(tmp_path / run / "label" / "metrics.jsonl").read_bytes() for run in ("whole", "broken")]
    assert metrics[0] == metrics[1]


def test_ten_classes(tmp_path: Path) -> None:
    result = train(job(classes=10), tmp_path / "run")
    assert len(statistics(tmp_path / "run" / "label" / "vault")) == 2
    assert result.total_epsilon <= EPSILON
    assert result.test_auc > 0.6


def test_flipped_labels_behind_the_same_statistics_change_no_byte(tmp_path: Path) -> None:
    result = replay(job(), tmp_path / "replay", seed=1)
    assert result.passed
    assert result.flipped > 500
    assert STATISTIC_HEAD in {path.name for path in (tmp_path / "replay" / "before" / "label").iterdir()}
