"""An evaluation that may be handed over: a function of released labels, charged to the test records, or refused."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tpsl import metrics
from tpsl.data.dataset import Dataset, load, load_label_party
from tpsl.data.rawtable import NO_LABEL
from tpsl.data.sides import LabelSide
from tpsl.data.true_labels import TrueLabels, reveal
from tpsl.mechanisms import Mechanism, laplace, randomized_response
from tpsl.progress import Notice, no_notice
from tpsl.run.evaluation import (
    EvaluationTerms,
    SharedEvaluation,
    evaluate_test_records,
    read_shared,
)
from tpsl.run.job import Job, make_job
from tpsl.run.one_process import train
from tpsl.run.run_folder import RunFolder
from tpsl.run.vaults import VaultChoice
from tpsl.vault import NO_LIMITS, ReleasePolicy, Spent, Vault

TEST = 200
HALF = randomized_response(0.5, 2)


def job(classes: int = 2, **training: Any) -> Job:
    content = {
        "data": {
            "source": "synthetic",
            "rows": 1000,
            "numeric_fields": 4,
            "categorical_fields": 1,
            "classes": classes,
        },
        "privacy": {"mechanism": "discrete", "epsilon": 1.0},
        "model": {"embedding_dim": 4, "bottom": [8], "top": [8]},
        "training": {"batch_size": 100, "epochs": 1, **training},
    }
    return make_job(content, {}, "test")


@cache
def data() -> Dataset:
    return load(job().data)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    train(job(), tmp_path / "run", data=data(), vault=tmp_path / "counted")
    return RunFolder(tmp_path / "run")


def shared(
    run: RunFolder,
    mechanism: Mechanism = HALF,
    side: LabelSide | None = None,
    policy: ReleasePolicy | None = None,
    notices: list[str] | None = None,
) -> SharedEvaluation:
    say = no_notice if notices is None else notices.append
    return evaluated(run, mechanism, side, policy, say)[0]


def evaluated(
    run: RunFolder,
    mechanism: Mechanism = HALF,
    side: LabelSide | None = None,
    policy: ReleasePolicy | None = None,
    notice: Notice = no_notice,
) -> tuple[SharedEvaluation, Spent]:
    """What may be shared, and what the records have spent in all."""
    terms = EvaluationTerms(mechanism, run.vault(), policy or ReleasePolicy(), notice)
    return evaluate_test_records(run, side or data().label_side, terms)


def flipped() -> LabelSide:
    """The same records with other labels of all test records."""
    labels = reveal(data().labels).copy()
    labels[data().test] ^= 1
    return data().with_labels(labels).label_side


def test_its_epsilon_is_in_the_ledger_and_the_vault_stays_sound(run: RunFolder) -> None:
    notices: list[str] = []
    found, total = evaluated(run, notice=notices.append)
    assert (found.epsilon, found.records) == (0.5, TEST)
    assert (total.epsilon, total.private, total.records) == (0.5, True, TEST)
    assert (found.job, found.versions) == (job().digest(), run.versions())
    with Vault.open(run.vault()) as vault:
        released = [(one.epsilon, one.details["records"]) for one in vault.ledger().entries if one.kind == "released"]
        assert vault.total(data().label_side.records.test_ids).epsilon == 0.5
        assert vault.total(data().label_side.records.training_ids).epsilon == 1.0
        assert vault.verify() == []
        assert vault.statement()["released_records"] == 1000
    assert released == [(1.0, 800), (0.5, TEST)]
    assert f"adding {TEST} test labels to the vault {run.vault()}" in notices
    assert f"{TEST} noisy labels released with discrete (ε = 0.5)" in notices


def test_asking_again_draws_nothing_also_for_another_run_on_the_vault(run: RunFolder, tmp_path: Path) -> None:
    first = shared(run)
    with Vault.open(run.vault()) as vault:
        head = vault.head()
    assert shared(run).to_json() == first.to_json()
    other = RunFolder(tmp_path / "other")
    train(job(seed=7), other.path, data=data(), vault=run.vault())
    second, total = evaluated(other)
    assert second.metrics != first.metrics
    assert total.epsilon == 0.5
    with Vault.open(run.vault()) as vault:
        assert vault.head() == head


def test_given_the_noisy_labels_nothing_in_the_file_depends_on_true_ones(run: RunFolder) -> None:
    content = shared(run).to_json()
    records, other = data().label_side.records, flipped()
    with pytest.raises(ValueError, match=f"^{TEST} of the {TEST} test records that the vault .* have another label"):
        shared(run, side=other)
    with Vault.open(run.vault()) as vault:
        vault.add([(records.test_ids, reveal(other.labels)[records.test], None)])
    assert shared(run, side=other).to_json() == content


def test_it_judges_the_predictions_of_the_epoch_that_was_kept(tmp_path: Path) -> None:
    train(job(epochs=3, validation=0.2, patience=1), tmp_path / "run", data=data(), vault=tmp_path / "counted")
    run = RunFolder(tmp_path / "run")
    result = run.result()
    assert result is not None
    sure = shared(run, randomized_response(20.0, 2), policy=ReleasePolicy(max_epsilon=20))  # hardly any noise
    kept = run.predictions(result.kept_epoch)["test"]
    truth = reveal(data().labels)[data().test]
    assert sure.metrics.auc.value == pytest.approx(result.test_auc, abs=1e-6)
    assert sure.metrics.log_loss.value == pytest.approx(metrics.log_loss(kept, truth), abs=1e-6)
    assert sure.metrics.accuracy.value == pytest.approx(result.test_accuracy, abs=1e-6)


def test_the_file_has_json_and_no_label(run: RunFolder) -> None:
    content = json.loads(shared(run).to_json())
    assert set(content) == {
        "shared_metrics",
        "job",
        "versions",
        "of",
        "records",
        "classes",
        "mechanism",
        "epsilon",
        "delta",
        "metrics",
    }
    assert sum(one["records"] for one in content["metrics"]["reliability"]) == TEST
    drowned = json.loads(shared(run, randomized_response(0.01, 2), policy=ReleasePolicy(compose=True)).to_json())
    assert drowned["metrics"]["auc"]["value"] is None
    assert drowned["metrics"]["auc"]["reason"].startswith("noise hides")


def test_what_was_written_is_read_again(run: RunFolder, tmp_path: Path) -> None:
    found = shared(run, randomized_response(0.01, 2))  # with an AUC that is NaN
    (tmp_path / "file.json").write_bytes(found.to_json())
    again = read_shared(tmp_path / "file.json", found.job, found.versions)
    assert again.to_json() == found.to_json()
    assert math.isnan(again.metrics.auc.value)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda content: b"{", r"is damaged \(Invalid JSON"),
        (lambda content: b"[" * 100_000, r"is damaged \(Invalid JSON"),
        (lambda content: content + b" " * (1 << 20), "has more than 1,048,576 bytes"),
        (lambda content: b"[]", "is damaged"),
        (lambda content: content.replace(b'"shared_metrics": 1', b'"shared_metrics": 2'), "shared_metrics: Input"),
        (lambda content: content.replace(b'"records": 200', b'"records": "200"'), "records: Input"),
        (lambda content: content.replace(b'"job": "', b'"job": "0'), "speaks of a run of another job$"),
        (lambda content: content.replace(b'"feature": "', b'"feature": "0'), "speaks of another run of this job$"),
    ],
)
def test_a_file_of_the_other_side_is_not_trusted(
    run: RunFolder, tmp_path: Path, change: Callable[[bytes], bytes], sentence: str
) -> None:
    found = shared(run)
    assert list(found.versions) == ["feature"]
    (tmp_path / "file.json").write_bytes(change(found.to_json()))
    with pytest.raises(ValueError, match=rf"^{tmp_path / 'file.json'}: .*{sentence}"):
        read_shared(tmp_path / "file.json", found.job, found.versions)


def test_many_classes_have_every_metric(tmp_path: Path) -> None:
    agreed = job(classes=3)
    train(agreed, tmp_path / "run", vault=tmp_path / "counted")
    side = load_label_party(agreed.data)
    found = shared(RunFolder(tmp_path / "run"), randomized_response(5.0, 3), side)
    assert found.classes == 3
    for one in (found.metrics.auc, found.metrics.log_loss, found.metrics.accuracy):
        assert np.isfinite(one.value) and one.standard_error > 0
    result = RunFolder(tmp_path / "run").result()
    assert result is not None
    assert abs(found.metrics.auc.value - result.test_auc) < 5 * found.metrics.auc.standard_error


def test_what_the_label_party_does_not_permit_leaves_the_vault_as_it_was(run: RunFolder) -> None:
    with Vault.open(run.vault()) as vault:
        head = vault.head()
    with pytest.raises(ValueError, match=r"bring the records to ε = 0\.5 in all, more than the ε = 0\.4 that"):
        shared(run, policy=ReleasePolicy(max_epsilon=0.4))
    with Vault.open(run.vault()) as vault:
        assert vault.head() == head
    shared(run)
    for other in (randomized_response(0.7, 2), laplace(0.5, 2)):
        with pytest.raises(
            ValueError, match=f"^{TEST} records were released before under something else .*--set local.compose=true"
        ):
            shared(run, other)
    assert evaluated(run, laplace(0.5, 2), policy=ReleasePolicy(compose=True))[1].epsilon == 1.0


def test_runs_that_cannot_be_evaluated_for_others_are_refused(run: RunFolder, tmp_path: Path) -> None:
    (run.path / "result.json").rename(tmp_path / "result.json")
    with pytest.raises(ValueError, match=r"run: the run is not finished"):
        shared(run)
    (tmp_path / "result.json").rename(run.path / "result.json")
    fewer = data().label_side.records
    side = LabelSide(replace(fewer, test=fewer.test[:-1]), data().labels)
    with pytest.raises(ValueError, match=r"predicted 200 test records, and the data have 199: they have changed since"):
        shared(run, side=side)
    content = job(head="local").model_dump() | {"privacy": {"gradients": "none"}}
    train(make_job(content, {}, "test"), tmp_path / "local", data=data())
    with pytest.raises(ValueError, match=r"local: has a local head alone .* cannot be evaluated for others"):
        shared(RunFolder(tmp_path / "local"))


def test_a_vault_of_other_records_is_not_charged(run: RunFolder, tmp_path: Path) -> None:
    Vault.create(tmp_path / "vault", batches=[(["somebody"], [1], None)], apart="others").close()
    with pytest.raises(ValueError, match="does not know 800 of the 800 training records"):
        evaluate_test_records(run, data().label_side, EvaluationTerms(HALF, tmp_path / "vault", ReleasePolicy()))


def test_nothing_of_a_scratch_run_is_shared(run: RunFolder, tmp_path: Path) -> None:
    """No total counts its noise, nor what its vault would release for the metrics."""
    train(job(), tmp_path / "scratch", data=data())
    scratch = RunFolder(tmp_path / "scratch")
    for which, vault in ((scratch, scratch.vault()), (scratch, run.vault()), (run, scratch.vault())):
        terms = EvaluationTerms(HALF, vault, ReleasePolicy())
        with pytest.raises(ValueError, match="scratch run"):
            evaluate_test_records(which, data().label_side, terms)
    for vault in (scratch.vault(), run.vault()):
        with Vault.open(vault) as opened:
            assert opened.total(None).epsilon == 1.0


def test_labels_that_have_not_arrived_are_waited_for(run: RunFolder) -> None:
    """Which labels are there may depend on what they are: the positive ones may come first."""
    records, labels = data().label_side.records, reveal(data().labels)
    late = labels.copy()
    late[records.test[:3]] = NO_LABEL
    side = LabelSide(records, TrueLabels(late, records.class_names))
    with pytest.raises(ValueError, match=f"^3 of the {TEST} test records have no label yet, and which of them"):
        shared(run, side=side)
    with Vault.open(run.vault()) as vault:
        assert not vault.knows(records.test_ids).any()
        vault.add([(records.test_ids.slice(0, 3), labels[records.test[:3]], None)])
    assert shared(run, side=side).records == TEST


def test_units_add_up_over_training_and_test_records(tmp_path: Path) -> None:
    with (tmp_path / "shop.csv").open("w", newline="") as shop, (tmp_path / "bank.csv").open("w", newline="") as bank:
        csv.writer(shop).writerows([["id", "pages"], *([f"r{row}", row % 7] for row in range(60))])
        csv.writer(bank).writerows([["id", "bought", "who"], *([f"r{row}", row % 2, "one"] for row in range(60))])
    label = {"path": str(tmp_path / "bank.csv"), "label": "bought", "unit": "who"}
    features = [{"path": str(tmp_path / "shop.csv"), "numeric": ["pages"]}]
    tables = {"source": "table", "split": "random", "features": features, "label": label}
    agreed = make_job({**job().model_dump(), "data": tables}, {}, "test")
    train(agreed, tmp_path / "run", vault=VaultChoice(tmp_path / "counted", policy=NO_LIMITS))
    side = load_label_party(agreed.data)
    shared(RunFolder(tmp_path / "run"), side=side)
    with Vault.open(tmp_path / "counted") as vault:
        assert vault.ledger().largest_unit == Spent(epsilon=48 * 1.0 + 12 * 0.5, delta=0.0, records=60, who="unit")
    others = replace(side.records, units=pa.array(["another"] * 60))
    with pytest.raises(ValueError, match="unit"):
        shared(RunFolder(tmp_path / "run"), side=LabelSide(others, side.labels))
