from __future__ import annotations

import json
import math
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from safetensors.torch import load_file
from torch import Tensor, nn

from tpsl.audit.replay import flip_half
from tpsl.data.dataset import Dataset, load
from tpsl.data.true_labels import reveal
from tpsl.mechanisms import seeded_words
from tpsl.metrics import auc, log_loss
from tpsl.run.evaluation import ensemble_weights, noisy_validation, record_log_likelihoods
from tpsl.run.job import Job, load_job, make_job
from tpsl.run.one_process import train
from tpsl.run.own_parts import OwnParts
from tpsl.run.run_folder import RunError, RunFolder
from tpsl.run.schedule import held_out
from tpsl.run.setup import RunSetup
from tpsl.run.stages.evaluate import keep_predictions
from tpsl.run.vaults import ReleasedLabels, VaultChoice
from tpsl.select import search
from tpsl.select.candidates import TuneResult
from tpsl.select.space import OWN_NETWORKS_SPACE, configuration, default_space, describe, jobs_of
from tpsl.vault import NO_LIMITS, Vault

PRETRAIN = {"method": "masked", "epochs": 1}
WIDE: dict[str, Any] = {**configuration(1e-2), "model": {"wide": True}}
SPACE = [configuration(1e-3), configuration(1e-2, weight_decay=1e-4, pretrain=PRETRAIN), WIDE]


def base_job(**privacy: Any) -> Job:
    content: dict[str, Any] = {
        "data": {"source": "synthetic", "rows": 2000, "numeric_fields": 3, "categorical_fields": 3, "signal": 3.0},
        "privacy": {"mechanism": "auto", "epsilon": 2.0, "noise_seed": 1, **privacy},
        "model": {"embedding_dim": 4, "bottom": [16], "top": [8]},
        "training": {"batch_size": 100, "epochs": 2, "validation": 0.2},
    }
    return make_job(content, {}, "test")


def tune(job: Job, space: Any, out: Path, *, vault: Path | None = None, **options: Any) -> TuneResult:
    choice = VaultChoice(vault, NO_LIMITS, scratch=True)
    return search.tune(RunSetup(job, RunFolder(out)), space, vault=choice, **options)


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load(base_job().data)


@pytest.fixture(scope="module")
def tuned(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TuneResult]:
    out = tmp_path_factory.mktemp("tune")
    return out, tune(base_job(), SPACE, out, data=data)


class NumbersOnly(nn.Linear):
    """A half that leaves the categories out."""

    def forward(self, categories: Tensor, numbers: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(numbers)


def numbers_only(width: int, inputs: Any) -> nn.Module:
    return NumbersOnly(len(inputs.numeric_fields), width)


def rows(result: TuneResult) -> Any:
    """The candidates, with null for NaN, which equals nothing."""
    return result.as_dict()["candidates"]


def runs(out: Path) -> dict[str, RunFolder]:
    """By name of the configuration, as `describe` gives it."""
    folders = [RunFolder(path) for path in (out / "runs").iterdir()]
    return dict(zip(describe([folder.job() for folder in folders]), folders, strict=True))


def test_every_epoch_of_every_configuration_is_a_candidate(tuned: tuple[Path, TuneResult]) -> None:
    _, result = tuned
    assert [(candidate.number, candidate.epoch) for candidate in result.candidates] == [
        (number, epoch) for number in range(3) for epoch in (1, 2)
    ]
    assert not result.diverged


def test_labels_are_released_once(tuned: tuple[Path, TuneResult]) -> None:
    out, result = tuned
    with Vault.open(out / "vault") as vault:
        ledger = vault.ledger()
        assert [entry.kind for entry in ledger.entries].count("released") == 1
        assert vault.verify() == []
    assert result.epsilon == result.total_epsilon == ledger.epsilon_per_record
    assert not result.private


def test_each_run_notes_the_vault_that_all_share_and_looks_no_record_up_in_it(
    tuned: tuple[Path, TuneResult], data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, result = tuned
    shutil.rmtree(runs(out)["wide on, learning rate 0.01, weight decay 0, pretrain none"].path)
    with Vault.open(out / "vault") as vault:
        head, read = vault.head(), Vault.noisy_labels

    def once(*given: Any, **options: Any) -> Any:
        monkeypatch.setattr(Vault, "noisy_labels", None)
        return read(*given, **options)

    monkeypatch.setattr(Vault, "noisy_labels", once)
    assert tune(base_job(), SPACE, out, data=data).as_dict() == result.as_dict()
    for run in runs(out).values():
        noted = run.noted_ledger()
        assert noted is not None
        assert noted.vault.parent == out / "vault" and noted.head == head
        assert noted.epsilon == result.total_epsilon and noted.records == len(data.train)


def test_weights_and_ensemble_follow_from_noisy_labels_alone(tuned: tuple[Path, TuneResult], data: Dataset) -> None:
    out, result = tuned
    job, side = base_job(), data.label_side
    hold_out = held_out(len(data.train), 0.2, 0)
    mechanism = job.privacy.build(2)
    with Vault.open(out / "vault") as vault:
        ids = data.ids.take(pa.array(data.train[hold_out]))
        noisy = vault.noisy_labels(mechanism, ids, seed=1)
    likelihoods, tests = [], []
    for candidate in result.candidates:
        predicted = runs(out)[candidate.configuration].predictions(candidate.epoch)
        judged = noisy_validation(mechanism, noisy.draws, predicted["validation"])
        np.testing.assert_equal(asdict(judged), {name: getattr(candidate, name) for name in asdict(judged)})
        likelihoods.append(record_log_likelihoods(mechanism, noisy.draws, predicted["validation"]))
        assert likelihoods[-1].sum() == pytest.approx(judged.validation_log_likelihood)
        tests.append(predicted["test"].astype(np.float64))
        assert candidate.test_auc == auc(tests[-1], reveal(side.labels)[data.test] == 1).value
    weights = ensemble_weights(likelihoods)
    assert [candidate.weight for candidate in result.candidates] == pytest.approx(weights)
    assert result.best == result.candidates[int(np.argmax([found.sum() for found in likelihoods]))]
    mixture = weights @ np.array(tests)
    assert result.ensemble.test_auc == pytest.approx(auc(mixture, reveal(side.labels)[data.test] == 1).value, abs=1e-5)
    assert result.ensemble.test_log_loss == pytest.approx(log_loss(mixture, reveal(side.labels)[data.test]), abs=1e-6)


def test_test_labels_choose_nothing(tuned: tuple[Path, TuneResult], data: Dataset, tmp_path: Path) -> None:
    labels = reveal(data.labels).copy()
    labels[data.test] = 1 - labels[data.test]
    other = tune(base_job(), SPACE, tmp_path, data=data.with_labels(labels))
    _, result = tuned
    assert other.job == result.job
    assert [c.weight for c in other.candidates] == [c.weight for c in result.candidates]
    assert other.best.test_auc == pytest.approx(1 - result.best.test_auc)


def test_true_labels_decide_nothing(tuned: tuple[Path, TuneResult], data: Dataset, tmp_path: Path) -> None:
    """Record and replay of the whole search: half of all true labels flipped, every noisy label kept."""
    before, first = tuned
    changed = flip_half(data, seeded_words(5, "tune"))
    shutil.copytree(before / "vault", tmp_path / "vault")
    with Vault.open(tmp_path / "vault") as vault:
        vault.add([(changed.ids.take(pa.array(changed.train)), reveal(changed.labels)[changed.train], None)])
    after = tmp_path / "after"
    second = tune(base_job(), SPACE, after, vault=tmp_path / "vault", data=changed)
    assert [candidate.weight for candidate in second.candidates] == [candidate.weight for candidate in first.candidates]
    assert (second.best.configuration, second.best.epoch) == (first.best.configuration, first.best.epoch)
    assert second.job == first.job
    assert second.ensemble.test_auc != first.ensemble.test_auc  # it was measured against other labels
    files = sorted(path.relative_to(before) for path in before.glob("runs/*/*/**/*.safetensors"))
    assert len(files) > 20
    assert all((before / file).read_bytes() == (after / file).read_bytes() for file in files)


def test_a_shared_wide_part_is_the_one_that_a_run_fits_by_itself(
    tuned: tuple[Path, TuneResult], data: Dataset, tmp_path: Path
) -> None:
    out, _ = tuned
    shared = next(folder for folder in runs(out).values() if folder.job().model.wide)
    train(shared.job(), tmp_path / "alone", vault=VaultChoice(out / "vault", scratch=True), data=data)
    for file in ("feature/wide.safetensors", "feature/bottom.safetensors", "label/top.safetensors"):
        assert (tmp_path / "alone" / file).read_bytes() == (shared.path / file).read_bytes()


def test_the_default_space_depends_on_the_number_of_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = base_job().model_dump(mode="json", exclude_none=True)
    monkeypatch.setattr("tpsl.select.space.RECOMMENDED_SPACE", (WIDE,))
    monkeypatch.setattr("tpsl.select.space.MANY_CLASSES_SPACE", (configuration(1e-2), configuration(1e-3)))
    for classes, configurations in ((2, 1), (3, 2)):
        job = make_job(base, {"data": {"classes": classes}}, "test")
        result = tune(job, None, tmp_path / str(classes))
        assert {candidate.number for candidate in result.candidates} == set(range(configurations))
        assert "NaN" not in (tmp_path / str(classes) / "tune.json").read_text()


def test_a_job_of_method_auto_is_searched_as_one_of_a_network() -> None:
    auto = make_job(base_job().content() | {"method": "auto"}, {}, "test")
    for space in (SPACE, default_space(2, own_networks=False)):
        assert jobs_of(auto, space) == jobs_of(base_job(), space)
    with pytest.raises(ValueError, match="'statistic' has nothing to tune"):
        jobs_of(make_job(auto.content() | {"statistic": {}}, {}, "test"), SPACE)


def test_the_default_space_of_own_networks_has_nothing_that_is_for_ours(
    tmp_path: Path, data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither pre-training nor a wide part: a job with either is refused where a bottom half is a party's own."""
    jobs = jobs_of(base_job(), OWN_NETWORKS_SPACE)
    assert not any(job.model.wide or job.training.pretrain for job in jobs)
    monkeypatch.setattr("tpsl.select.space.OWN_NETWORKS_SPACE", OWN_NETWORKS_SPACE[:2])
    own = {"feature": OwnParts(bottom=numbers_only)}
    result = search.tune(RunSetup(base_job(), RunFolder(tmp_path), own), data=data)
    assert {candidate.number for candidate in result.candidates} == {0, 1}


def test_the_best_job_gives_the_best_candidate_again(
    tuned: tuple[Path, TuneResult], data: Dataset, tmp_path: Path
) -> None:
    out, result = tuned
    job = load_job(out / "best.yaml")
    assert job == result.job
    again = train(job, tmp_path / "again", vault=VaultChoice(out / "vault", scratch=True), data=data)
    assert again.epochs == result.best.epoch
    kept = runs(out)[result.best.configuration].predictions(result.best.epoch)
    predicted = RunFolder(tmp_path / "again").predictions(result.best.epoch)
    assert (predicted["test"] == kept["test"]).all()


def test_shared_pre_training_is_that_of_a_run_by_itself(
    tuned: tuple[Path, TuneResult], data: Dataset, tmp_path: Path
) -> None:
    out, _ = tuned
    (shared,) = [run for run in runs(out).values() if run.job().training.pretrain is not None]
    train(shared.job(), tmp_path / "alone", vault=VaultChoice(out / "vault", scratch=True), data=data)
    alone = RunFolder(tmp_path / "alone")
    for file in ("pretrained", "bottom"):
        name = f"{file}.safetensors"
        assert (alone.party("feature") / name).read_bytes() == (shared.party("feature") / name).read_bytes()


def test_what_is_finished_is_not_trained_again(
    tuned: tuple[Path, TuneResult], data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, result = tuned
    monkeypatch.setattr("tpsl.run.alone.attend_as_features", None)
    monkeypatch.setattr("tpsl.run.build.pretrain", None)
    assert tune(base_job(), SPACE, out, data=data).as_dict() == result.as_dict()
    written = json.loads((out / "tune.json").read_text())
    assert written == json.loads(json.dumps(result.as_dict()))
    assert written["best"]["test_auc"] == result.best.test_auc


def test_a_search_that_is_interrupted_in_a_run_ends_with_the_same_candidates(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run whose files are damaged is refused, and trained again once its folder is removed."""
    space = [configuration(1e-3), configuration(1e-2)]
    whole = tune(base_job(), space, tmp_path / "whole", data=data)
    evaluated = list[int]()

    def interrupted(role: Any, epoch: int, *found: Any) -> None:
        evaluated.append(epoch)
        if len(evaluated) == 4:
            raise KeyboardInterrupt
        keep_predictions(role, epoch, *found)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("tpsl.run.stages.evaluate.keep_predictions", interrupted)
        tune(base_job(), space, tmp_path / "out", data=data)
    assert rows(tune(base_job(), space, tmp_path / "out", data=data)) == rows(whole)
    run = runs(tmp_path / "out")["learning rate 0.01"]
    (run.path / "result.json").write_bytes(b"")
    (run.label / "metrics.jsonl").write_bytes(b"\0" * 100)
    with pytest.raises(RunError, match="is damaged"):
        tune(base_job(), space, tmp_path / "out", data=data)
    shutil.rmtree(run.path)
    assert rows(tune(base_job(), space, tmp_path / "out", data=data)) == rows(whole)


def test_several_workers_share_a_vault_and_find_the_same(tuned: tuple[Path, TuneResult], tmp_path: Path) -> None:
    _, result = tuned
    other = tune(base_job(), SPACE, tmp_path, workers=2)
    assert rows(other) == rows(result)
    np.testing.assert_equal(asdict(other.ensemble), asdict(result.ensemble))
    with Vault.open(tmp_path / "vault") as vault:
        assert [entry.kind for entry in vault.ledger().entries].count("released") == 1


def test_a_job_without_a_hold_out_gets_one(data: Dataset, tmp_path: Path) -> None:
    job = make_job(base_job().content(), {"training": {"validation": 0.0}}, "test")
    result = tune(job, [configuration(1e-2)], tmp_path, data=data)
    assert result.job.training.validation == 0.1
    assert result.candidates[0].configuration == "the job as it is"
    assert math.isfinite(result.ensemble.validation_loss)


def linear_top(cut: int, classes: int) -> nn.Module:
    return nn.Linear(cut, 1)


def test_parties_bring_their_own_halves(tmp_path: Path) -> None:
    own = {"label": OwnParts(top=linear_top)}
    space = [configuration(1e-2), configuration(1e-3)]
    result = search.tune(RunSetup(base_job(), RunFolder(tmp_path), own), space)
    assert len(result.candidates) == 4
    for run in runs(tmp_path).values():
        weights = load_file(run.party("label") / "top.safetensors")
        assert sorted(tuple(weight.shape) for weight in weights.values()) == [(1,), (1, 16)]


def test_runs_on_another_release_are_not_mixed_in(
    tuned: tuple[Path, TuneResult], data: Dataset, tmp_path: Path
) -> None:
    out, _ = tuned
    with pytest.raises(ValueError, match="holds runs on another release"):
        tune(base_job(noise_seed=2), SPACE, out, data=data, vault=tmp_path / "vault")


@pytest.mark.parametrize(
    ("changes", "culprit"),
    [
        ({"privacy": {"epsilon": 1.0}}, "privacy.epsilon must stay as in the job"),
        ({"privacy": {"noise_seed": 9}}, "privacy.noise_seed must stay"),
        ({"data": {"rows": 100}}, "data must stay"),
        ({"training": {"seed": 3}}, "training.seed must stay"),
        ({"training": {"validation": 0.3}}, "training.validation must stay"),
        ({"training": {"speed": 3}}, "training.speed"),
        ({}, "is the same as configuration 1"),
        ("fast", "is no mapping"),
    ],
)
def test_a_configuration_changes_neither_release_nor_hold_out(
    changes: Any, culprit: str, data: Dataset, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=f"^configuration 2 of the space: {culprit}"):
        tune(base_job(), [{}, changes], tmp_path, data=data)
    assert not list(tmp_path.iterdir()), "nothing is released for a space with a fault"


def test_a_configuration_that_diverges_is_named_and_does_not_count(data: Dataset, tmp_path: Path) -> None:
    optimizer = {"name": "sgd", "learning_rate": 50.0}
    hot = {"training": {"feature_optimizer": optimizer, "label_optimizer": optimizer}}
    job = base_job(mechanism="laplace", epsilon=0.01, estimator="linear")
    result = tune(job, [hot, configuration(1e-3)], tmp_path, data=data)
    assert [name.split(",")[0] for name in result.diverged] == ["name sgd"]
    assert math.isclose(sum(c.weight for c in result.candidates if c.number == 1), 1.0)
    with pytest.raises(ValueError, match="every configuration of the space diverged"):
        tune(job, [hot], tmp_path, data=data)


def test_nothing_is_tuned_where_nothing_is_released(tmp_path: Path) -> None:
    content = base_job().model_dump(mode="json", exclude_none=True)
    content |= {"privacy": {"gradients": "none"}, "training": {"head": "local"}}
    with pytest.raises(ValueError, match="no noisy labels to choose by"):
        tune(make_job(content, {}, "test"), SPACE, tmp_path)
    with pytest.raises(ValueError, match="no configuration"):
        tune(base_job(), [], tmp_path)


def test_names_say_what_differs() -> None:
    content = base_job().model_dump(mode="json", exclude_none=True)
    jobs = [make_job(content, dict(changes), "test") for changes in SPACE]
    assert describe(jobs) == [
        "wide off, learning rate 0.001, weight decay 0, pretrain none",
        "wide off, learning rate 0.01, weight decay 0.0001, pretrain masked",
        "wide on, learning rate 0.01, weight decay 0, pretrain none",
    ]
    split = make_job(content, {"training": {"feature_optimizer": {"learning_rate": 0.5}}}, "test")
    assert describe([jobs[0], split]) == ["learning rate 0.001", "learning rate 0.5 and 0.001"]
    slower = make_job(content, configuration(1e-2, features=0.1), "test")
    assert describe([jobs[2], slower]) == ["wide on, learning rate 0.01", "wide off, learning rate 0.001 and 0.01"]


def test_a_party_that_was_handed_labels_over_finds_the_same(
    tuned: tuple[Path, TuneResult], data: Dataset, tmp_path: Path
) -> None:
    """The same candidates, weights and predictions, without a vault and without a true label."""
    out, found = tuned
    with Vault.open(out / "vault") as vault:
        ids = data.ids.take(pa.array(data.train))
        noisy = vault.noisy_labels(base_job().mechanism, ids, seed=1)
        handed = ReleasedLabels(noisy, vault.total(ids), tmp_path / "labels.parquet")
    alone = Dataset.of_one(data.feature_sides["feature"], ("0", "1"))
    again = search.tune(RunSetup(base_job(), RunFolder(tmp_path / "alone")), SPACE, vault=handed, data=alone)
    assert [(c.configuration, c.epoch, c.weight) for c in again.candidates] == [
        (c.configuration, c.epoch, c.weight) for c in found.candidates
    ]
    assert again.best.epoch == found.best.epoch
    np.testing.assert_equal(again.untested().as_dict()["ensemble"], found.untested().as_dict()["ensemble"])
    assert math.isnan(again.ensemble.test_auc) and math.isnan(again.best.test_log_loss)
    assert (again.epsilon, again.total_epsilon, again.vault) == (2.0, 2.0, str(tmp_path / "labels.parquet"))
    for name, run in runs(out).items():
        kept, then = run.predictions(2), runs(tmp_path / "alone")[name].predictions(2)
        assert all((kept[records] == then[records]).all() for records in ("validation", "test"))
