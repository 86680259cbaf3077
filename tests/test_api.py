"""`import tpsl` and ten lines: quick to import, complete, and a run shows itself."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import tpsl
from tpsl.data.config import SyntheticData
from tpsl.data.true_labels import reveal
from tpsl.run.job import Job
from tpsl.run.run_folder import RunError
from tpsl.vault import Vault, the_vault

SYNTHETIC = SyntheticData(rows=2000, numeric_fields=3, categorical_fields=2, signal=2.0)
SMALL = {"embedding_dim": 4, "bottom": [16, 8], "top": [8]}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tpsl.Run:
    job = tpsl.job(SYNTHETIC, epsilon=2.0, batch_size=200, epochs=2, model=SMALL)
    folder = tmp_path_factory.mktemp("api")
    return tpsl.train(job, folder / "<run>", vault=folder / "vault", progress=False)


def test_importing_is_quick() -> None:
    """Nothing large is imported before it is used: the names alone need only the standard library."""
    code = "import sys, tpsl; print(dir(tpsl)); print(sorted({name.partition('.')[0] for name in sys.modules}))"
    names, modules = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split("\n")[:2]
    assert "'SplitClassifier'" in names
    large = ("torch", "numpy", "pyarrow", "pydantic", "sklearn", "rich")
    assert [name for name in large if f"'{name}'" in modules] == []


def test_every_public_name_is_there() -> None:
    assert dir(tpsl) == sorted(tpsl.__all__)
    for name in tpsl.__all__:
        assert getattr(tpsl, name) is not None
    with pytest.raises(AttributeError, match="module 'tpsl' has no attribute 'trian'"):
        tpsl.trian  # noqa: B018


def test_types_are_shipped() -> None:
    assert (Path(tpsl.__file__).parent / "py.typed").exists()


@pytest.mark.parametrize(
    ("given", "mechanism", "epsilon"),
    [
        ({}, "auto", 1.0),
        ({"epsilon": 0.5}, "auto", 0.5),
        ({"mechanism": "laplace"}, "laplace", 1.0),
        ({"mechanism": "laplace", "privacy": {"draws": 2, "epsilon": 3.0}}, "laplace", 3.0),
        ({"epsilon": float("inf")}, "none", None),
        ({"mechanism": "none"}, "none", None),
        ({"privacy": {"mechanism": "gaussian", "sigma": 1.0, "delta": 1e-5}}, "gaussian", None),
        ({"gradients": "none", "head": "local"}, "auto", None),
    ],
)
def test_a_job_from_a_few_words(given: dict[str, Any], mechanism: str, epsilon: float | None) -> None:
    job = tpsl.job(**given)
    assert (job.data.source, job.privacy.mechanism, job.privacy.epsilon) == ("flights", mechanism, epsilon)


def test_a_job_takes_every_key_of_the_file() -> None:
    job = tpsl.job(
        {"source": "synthetic", "classes": 3},
        rows=500,
        estimator="unbiased",
        learning_rate=0.1,
        members=2,
        averaging=0.9,
        seed=4,
        noise_seed=7,
        training={"order": "arrival"},
    )
    assert (job.data.rows, job.data.classes) == (500, 3)  # type: ignore[union-attr]
    assert (job.privacy.estimator, job.privacy.noise_seed) == ("unbiased", 7)
    assert job.training.feature_optimizer.learning_rate == job.training.label_optimizer.learning_rate == 0.1
    assert (job.model.members, job.training.averaging, job.training.seed, job.training.order) == (2, 0.9, 4, "arrival")


def test_a_job_takes_its_method_too() -> None:
    job = tpsl.job(epsilon=0.1, method="statistic", statistic={"share_codes": True})
    assert job.statistic is not None
    assert (job.method, job.statistic.share_codes) == ("statistic", True)
    assert tpsl.job(method="auto").method == "auto"


def test_no_key_stands_in_two_parts_of_a_job() -> None:
    """So that a key given by its name alone has one meaning."""
    names = [name for part in ("privacy", "model", "training") for name in type(getattr(Job(), part)).model_fields]
    assert len(names) == len({*names, "rows", "learning_rate", "method", "statistic"}) - 4


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"data": "flight"}, "^job: data.*'flight'"),
        ({"epsilon": -1.0}, "^job: privacy"),
        ({"epochs": 0}, "^job: training.epochs"),
        ({"epoch": 3}, "^job: there is no key 'epoch'; known are .*epochs"),
        ({"model": {"width": 3}}, "^job: model.width"),
        ({"epsilon": float("inf"), "mechanism": "laplace"}, "^job: privacy"),
    ],
)
def test_a_wrong_word_is_named(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as raised:
        tpsl.job(**given)
    assert "\n" not in str(raised.value)


def test_a_run_shows_itself(run: tpsl.Run) -> None:
    assert run.guarantee == "ε = 2"
    assert f"{run.result.test_auc:.4f}" in repr(run)


def test_a_run_is_its_folder(run: tpsl.Run) -> None:
    again = tpsl.Run(run.path)
    assert (again.job, again.result, again.metrics) == (run.job, run.result, run.metrics)
    with pytest.raises(RunError, match="is not a run folder"):
        tpsl.Run(run.path / "label")


def test_an_unfinished_run_is_refused(run: tpsl.Run, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(run.job.to_yaml())
    with pytest.raises(RunError, match="the run is not finished"):
        tpsl.Run(tmp_path)


def test_predictions_are_those_that_were_evaluated(run: tpsl.Run) -> None:
    labels, predicted = reveal(run.data.labels)[run.data.test], run.predict()
    assert run.result.test_accuracy == np.mean((predicted > 0.5) == labels)
    assert run.predict(np.arange(3)).shape == (3,)


def test_attacks_show_themselves(run: tpsl.Run) -> None:
    found = run.attack("likelihood", "norm", "no_transcript", progress=False)
    assert [result.name for result in found] == ["likelihood", "norm", "no_transcript"]
    assert len(found) == len(found.as_dicts()) == 3
    likelihood, norm, table = found["likelihood"], found["norm"], repr(found)
    assert f"{likelihood.auc:.4f}" in table and table.count("\n") == 3
    assert f"{likelihood.ceiling:.4f}" in table and f"≈ {norm.ceiling:.3f} ±" in table
    assert norm.ceiling_low < norm.ceiling < norm.ceiling_high
    assert likelihood.closed_form is not None
    assert abs(likelihood.auc - likelihood.closed_form) < 0.1
    with pytest.raises(ValueError, match="unknown attack 'psychic'"):
        run.attack("psychic", progress=False)


def test_a_plot_has_the_numbers_of_the_run(run: tpsl.Run, tmp_path: Path) -> None:
    (training,) = tpsl.Run(run.path).plot().charts
    assert list(training.series[0].y) == [entry["test_auc"] for entry in run.metrics]
    found = run.attack("likelihood", "norm", progress=False)
    picture = run.plot()
    drawn = {one.name: list(one.x) for one in picture.charts[1].series}
    assert drawn["measured, 95 % interval"] == [found["likelihood"].auc, found["norm"].auc]
    assert drawn["bound of its kind of attacker"] == [found["likelihood"].ceiling, found["norm"].ceiling]
    picture.save(tmp_path / "run.html")
    shown = picture._repr_html_()
    assert shown.count("<svg") == 2 and shown in (tmp_path / "run.html").read_text()


def linear_top(cut: int, classes: int) -> nn.Module:
    return nn.Linear(cut, 1)


def test_parties_bring_their_own_halves_as_objects(tmp_path: Path) -> None:
    own = {"label": tpsl.OwnParts(top=linear_top)}
    job = tpsl.job(SYNTHETIC, epsilon=2.0, batch_size=400, epochs=1, model=SMALL)
    run = tpsl.train(job, tmp_path / "run", own=own, record_steps=0, progress=False)
    probabilities = run.predict()
    assert run.result.test_accuracy == np.mean((probabilities > 0.5) == reveal(run.data.labels)[run.data.test])
    assert (tpsl.Run(run.path, own).predict() == probabilities).all()
    with pytest.raises(ValueError, match="linear_top when the run began: give it again"):
        tpsl.Run(run.path).predict()


def test_a_run_starts_from_an_earlier_one(tmp_path: Path) -> None:
    """It is encoded as that one was, also when its data are loaded again."""
    first, second = (tpsl.job("flights", rows=rows, epochs=1, batch_size=200, model=SMALL) for rows in (400, 600))
    earlier = tpsl.train(first, tmp_path / "first", progress=False)
    run = tpsl.train(second, tmp_path / "second", start_from=earlier.path, progress=False)
    encoders = [tpsl.Run(path).data.feature_sides["feature"].encoder for path in (earlier.path, run.path)]
    assert encoders[0] is not None and encoders[1] is not None
    assert encoders[0].digest() == encoders[1].digest()
    assert reveal(run.data.labels)[run.data.test].shape == run.predict().shape
    assert run.result.total_epsilon == earlier.result.total_epsilon == 1.0


def test_what_the_label_party_permits_goes_by_the_names_of_its_file(tmp_path: Path) -> None:
    job = tpsl.job(SYNTHETIC, epsilon=2.0, batch_size=400, epochs=1, model=SMALL)
    with pytest.raises(ValueError, match=r"options: max_epsilons: there is no such key"):
        tpsl.train(job, tmp_path / "run", progress=False, max_epsilons=3.0)
    with pytest.raises(ValueError, match="max_epsilon"):
        tpsl.train(job, tmp_path / "run", progress=False, max_epsilon=1.0)


def test_new_folders_and_seeded_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda form: "now")
    job = tpsl.job(SYNTHETIC, noise_seed=1, batch_size=800, epochs=1, model=SMALL)
    with pytest.warns(UserWarning, match="NOT private"), pytest.raises(ValueError, match="NOT PRIVATE"):
        tpsl.train(job, tmp_path / "refused", record_steps=0, progress=False)
    assert not the_vault().exists() and not Vault.exists(tmp_path / "refused" / "label" / "vault")
    with pytest.warns(UserWarning, match="NOT private"):
        one = tpsl.train(job, record_steps=0, progress=False, not_private=True)
    with pytest.warns(UserWarning, match="NOT private"):
        other = tpsl.train(job, record_steps=0, progress=False, not_private=True, data=one.data)
    assert [one.path, other.path] == [Path("runs/synthetic-auto-now"), Path("runs/synthetic-auto-now-2")]
    assert other.data is one.data
    assert one.guarantee.startswith("NOT PRIVATE")
    assert one.result.test_auc == other.result.test_auc
    with pytest.raises(ValueError, match="holds no transcript"):
        one.attack(progress=False)


def test_labels_are_released_once_and_the_total_stands_first(tmp_path: Path) -> None:
    def trained(epsilon: float, name: str, **options: Any) -> tpsl.Run:
        job = tpsl.job(SYNTHETIC, epsilon=epsilon, batch_size=800, epochs=1, model=SMALL)
        vault = the_vault() / "synthetic"
        return tpsl.train(job, tmp_path / name, vault=vault, record_steps=0, progress=False, **options)

    assert trained(5, "a").guarantee == "ε = 5"
    with pytest.raises(ValueError, match=r"local\.compose=true"):
        trained(1, "b")
    with pytest.raises(ValueError, match=r"ε = 6 in all, more than the ε = 5\.5 that the label party permits"):
        trained(1, "b", compose=True, max_epsilon=5.5)
    composed = trained(1, "b", compose=True)
    assert tpsl.Run(tmp_path / "a").guarantee == "ε = 6 in all (this run's release: ε = 5)"
    assert composed.guarantee == "ε = 6 in all (this run's release: ε = 1)"
    assert f"vault      {the_vault() / 'synthetic'}" in repr(composed)
