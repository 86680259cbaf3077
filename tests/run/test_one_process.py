"""The promises about training, each with a test that can fail."""

import json
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional

from tpsl.attacks.white_box import WhiteBox
from tpsl.data.dataset import Dataset, load
from tpsl.data.features import Features
from tpsl.data.order import Rows
from tpsl.data.true_labels import reveal
from tpsl.mechanisms import from_spec
from tpsl.run.build import build_feature_party, build_label_party
from tpsl.run.job import Job, make_job
from tpsl.run.observer import Watching
from tpsl.run.one_process import train, train_together
from tpsl.run.releases import noisy_labels_for
from tpsl.run.run_folder import RunFolder
from tpsl.run.setup import RunSetup
from tpsl.run.transcript import Trajectory, Transcript
from tpsl.run.vaults import VaultChoice
from tpsl.split.label_party import LabelParty
from tpsl.vault import NO_LIMITS, Vault

ROWS = 3000
SYNTHETIC = {"source": "synthetic", "rows": ROWS, "numeric_fields": 3, "categorical_fields": 4, "signal": 2.0}
SMALL = {"embedding_dim": 4, "bottom": [16, 8], "top": [8]}


def job(privacy: dict[str, Any], *, data: dict[str, Any] | None = None, **training: Any) -> Job:
    content = {
        "data": data or SYNTHETIC,
        "privacy": privacy,
        "model": SMALL,
        "training": {"batch_size": 128, "epochs": 1, "checkpoint_every": 7, "patience": 0, **training},
    }
    return make_job(content, {}, "test")


def weights(run: Path) -> dict[str, torch.Tensor]:
    found = {}
    for file in sorted(run.glob("*/*.safetensors")):
        found |= {f"{file.relative_to(run)}:{name}": tensor for name, tensor in load_file(file).items()}
    assert found
    return found


def same_weights(one: Path, other: Path) -> bool:
    a, b = weights(one), weights(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def transcript(run: Path) -> dict[str, bytes]:
    found = {str(f.relative_to(run)): f.read_bytes() for f in sorted(run.glob("*/transcript/*"))}
    assert found
    return found


def flipped(data: Dataset, rows: np.ndarray) -> Dataset:
    labels = reveal(data.labels).copy()
    labels[rows] = 1 - labels[rows]
    return data.with_labels(labels)


PRIVATE = [
    {"mechanism": "laplace", "epsilon": 1.0, "estimator": "linear"},
    {"mechanism": "discrete", "epsilon": 1.0, "estimator": "posterior"},
    {"mechanism": "discrete", "epsilon": 1.0, "estimator": "unbiased", "draws": 2},
    {"mechanism": "gaussian", "sigma": 1.0, "delta": 1e-5, "estimator": "linear"},
]


@pytest.mark.parametrize(
    ("privacy", "flips"),
    [(PRIVATE[0], "one"), (PRIVATE[0], "all"), (PRIVATE[1], "half"), (PRIVATE[2], "all"), (PRIVATE[3], "half")],
    ids=lambda value: value if isinstance(value, str) else f"{value['mechanism']}-{value['estimator']}",
)
def test_record_and_replay(tmp_path: Path, privacy: dict[str, Any], flips: str) -> None:
    """Flip any set of true labels after the release: no byte of the transcript and no weight changes."""
    agreed = job(privacy, epochs=2)
    data = load(agreed.data)
    vault = tmp_path / "vault"
    train(agreed, tmp_path / "before", vault=vault, record_steps=10**9, data=data)
    rows = {"one": data.train[:1], "half": data.train[::2], "all": data.train}[flips]
    changed = flipped(data, rows)
    with Vault.open(vault) as opened:
        ids = data.ids.take(pa.array(data.train))
        added = opened.add([(ids, reveal(changed.labels)[data.train], None)])
        assert added.changed_after_release == len(rows)
    train(agreed, tmp_path / "after", vault=vault, record_steps=10**9, data=changed)
    assert transcript(tmp_path / "before") == transcript(tmp_path / "after")
    assert same_weights(tmp_path / "before", tmp_path / "after")


def test_record_and_replay_would_notice_a_leak(tmp_path: Path) -> None:
    """The same comparison on a vault made after the flip does differ: the test above can fail."""
    agreed = job({"mechanism": "none", "estimator": "linear"})
    data = load(agreed.data)
    train(agreed, tmp_path / "before", record_steps=10**9, data=data)
    train(agreed, tmp_path / "after", record_steps=10**9, data=flipped(data, data.train[:1]))
    assert transcript(tmp_path / "before") != transcript(tmp_path / "after")
    assert not same_weights(tmp_path / "before", tmp_path / "after")


@pytest.mark.parametrize("estimator", ["linear", "unbiased", "posterior"])
def test_without_noise_training_is_algorithm_1(tmp_path: Path, estimator: str) -> None:
    """ε = ∞ equals plain split learning bit for bit, and the unsplit network to 1e-6, over an epoch."""
    sgd = {"name": "sgd", "learning_rate": 0.1}
    agreed = job(
        {"mechanism": "none", "estimator": estimator}, feature_optimizer=sgd, label_optimizer=sgd, batch_size=256
    )
    data = load(agreed.data)
    train(agreed, tmp_path / "run", data=data)
    trained = weights(tmp_path / "run")
    noisy, _ = noisy_labels_for(agreed, data.label_side, tmp_path / "vault", lambda text: None, NO_LIMITS)
    for split in (True, False):
        held = data.feature_parties["feature"]
        f, h = (
            build_feature_party(agreed, "feature", held).bottom.members[0],
            build_label_party(agreed, ["feature"], 2, noisy, None).top.members[0],
        )
        _plain_epoch(agreed, data, f, h, split=split)
        for name, tensor in trained.items():
            plain = (f if name.startswith("feature") else h).state_dict()[name.split(":members.0.")[1]]
            if split:
                assert torch.equal(tensor, plain), name
            else:
                torch.testing.assert_close(tensor, plain, rtol=0, atol=1e-6)


def _plain_epoch(agreed: Job, data: Dataset, f: torch.nn.Module, h: torch.nn.Module, *, split: bool) -> None:
    """Algorithm 1 written out (or the same network unsplit): autograd, the loss on true labels, SGD by hand."""
    held = data.feature_parties["feature"]
    from tpsl.data.order import BatchPlan

    plan = BatchPlan(len(data.train), agreed.training.batch_size, agreed.training.seed)
    for step in range(plan.batches_per_epoch):
        rows = data.train[plan.batch(step)]
        n = len(rows)
        y = torch.from_numpy(reveal(data.labels)[rows]).float()
        e = f(torch.from_numpy(held.categorical[rows]), torch.from_numpy(held.numeric[rows]))
        if split:
            cut = e.detach().requires_grad_()
            functional.binary_cross_entropy_with_logits(h(cut), y, reduction="sum").backward()
            e.backward(cut.grad / n)
            for p in h.parameters():
                p.grad /= n
        else:
            functional.binary_cross_entropy_with_logits(h(e), y).backward()
        with torch.no_grad():
            for p in [*f.parameters(), *h.parameters()]:
                p.sub_(p.grad, alpha=0.1)
                p.grad = None


def test_recorded_noise_is_the_same_in_every_epoch_and_run(tmp_path: Path) -> None:
    """The gradients of a first epoch and of a second run determine t; the ledger shows one release."""
    agreed = job({"mechanism": "laplace", "epsilon": 1.0, "estimator": "linear"}, epochs=3)
    data = load(agreed.data)
    vault = tmp_path / "vault"
    results = [train(agreed, tmp_path / name, vault=vault, record_steps=10**9, data=data) for name in ("one", "two")]
    assert transcript(tmp_path / "one") == transcript(tmp_path / "two")
    assert same_weights(tmp_path / "one", tmp_path / "two")
    other = job({"mechanism": "laplace", "epsilon": 1.0, "estimator": "posterior"}, seed=5)
    results.append(train(other, tmp_path / "three", vault=vault, data=data))
    with Vault.open(vault) as opened:
        ledger = opened.ledger()
        assert not opened.verify()
    assert [entry.kind for entry in ledger.entries].count("released") == 1
    assert {result.epsilon for result in results} == {ledger.epsilon_per_record}
    assert ledger.epsilon_per_record <= 1.0


def test_the_noise_of_a_record_can_be_read_off_any_epoch(tmp_path: Path) -> None:
    """From transcript and weights, t = σ(z) - v: the same number for a record in all epochs, and the vault's."""
    agreed = job({"mechanism": "laplace", "epsilon": 2.0, "estimator": "linear"}, epochs=2)
    data = load(agreed.data)
    run = tmp_path / "run"
    train(agreed, run, record_steps=10**9, data=data)

    white_box = WhiteBox(agreed, ["feature"], 2, Trajectory(run / "label"))
    steps = list(Transcript(run / "feature" / "transcript"))
    rows = np.concatenate([seen.rows for seen in steps])
    recovered = np.concatenate([white_box.read(seen).weights for seen in steps])
    readable = np.concatenate([white_box.read(seen).readable for seen in steps])
    with Vault.open(run / "label" / "vault") as vault:
        mechanism = from_spec(agreed.privacy.build(2).spec())
        noisy = vault.noisy_labels(mechanism, data.ids.take(pa.array(rows)))
    truth = mechanism.noisy(noisy.draws[0])
    assert len(truth) == 2 * len(data.train)
    # Where the cut does not move the logit (dead ReLUs) there is nothing to read.
    assert readable.mean() > 0.95
    np.testing.assert_allclose(recovered[readable], truth[readable], atol=0.02)


def test_a_broken_off_run_resumes_to_the_same_weights(tmp_path: Path) -> None:
    agreed = job({"mechanism": "discrete", "epsilon": 1.0}, epochs=2)
    data = load(agreed.data)
    vault = tmp_path / "vault"
    train(agreed, tmp_path / "whole", vault=vault, record_steps=10**9, data=data)

    class Stop(Exception):
        pass

    for limit in (3, 16, 25, 36):
        with pytest.raises(Stop):

            def stop(done: int, total: int, note: str, limit: int = limit) -> None:
                if done == limit:
                    raise Stop

            train(
                agreed,
                tmp_path / "broken",
                vault=vault,
                record_steps=10**9,
                data=data,
                watching=Watching(progress=stop),
            )
    seen: list[int] = []
    train(
        agreed,
        tmp_path / "broken",
        vault=vault,
        record_steps=10**9,
        data=data,
        watching=Watching(progress=lambda done, total, note: seen.append(done)),
    )
    assert seen[0] > 28, "the last piece did not start from a late checkpoint"
    assert same_weights(tmp_path / "whole", tmp_path / "broken")
    assert transcript(tmp_path / "whole") == transcript(tmp_path / "broken")
    lines = [(tmp_path / name / "label" / "metrics.jsonl").read_text() for name in ("whole", "broken")]
    assert lines[0] == lines[1]


def test_features_on_disk_are_read_ahead_and_give_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreed = job(PRIVATE[0], micro_batches=2)
    in_memory, vault = load(agreed.data), tmp_path / "vault"
    ((name, side),) = in_memory.feature_sides.items()
    assert isinstance(side.features, Features)
    columns = {}
    for column in ("categorical", "numeric"):
        np.save(tmp_path / f"{column}.npy", getattr(side.features, column))
        columns[column] = np.load(tmp_path / f"{column}.npy", mmap_mode="r")
    on_disk = replace(in_memory, feature_sides={name: replace(side, features=replace(side.features, **columns))})
    read, readers = Features.batch, Counter[bool]()

    def noted(self: Features, rows: Rows) -> Any:
        readers[threading.current_thread() is threading.main_thread()] += 1
        return read(self, rows)

    monkeypatch.setattr(Features, "batch", noted)
    train(agreed, tmp_path / "on disk", vault=vault, data=on_disk)
    # Of 19 steps of two parts, in stretches of 7, only the first part of each stretch is not read ahead; and the test.
    steps, stretches = 19, 3
    assert readers == {False: 2 * steps - stretches, True: stretches + 1}
    train(agreed, tmp_path / "in memory", vault=vault, data=in_memory)
    assert same_weights(tmp_path / "on disk", tmp_path / "in memory")


def test_seeded_noise_is_repeatable_and_says_so(tmp_path: Path) -> None:
    agreed = job({"mechanism": "laplace", "epsilon": 1.0, "noise_seed": 3})
    results = [train(agreed, tmp_path / name) for name in ("one", "two")]
    assert same_weights(tmp_path / "one", tmp_path / "two")
    assert not any(result.private for result in results)
    secure = job({"mechanism": "laplace", "epsilon": 1.0})
    results = [train(secure, tmp_path / name) for name in ("three", "four")]
    assert not same_weights(tmp_path / "three", tmp_path / "four")
    assert all(result.private for result in results)


@pytest.mark.parametrize("privacy", PRIVATE[:2], ids=lambda p: p["mechanism"])
def test_more_than_two_classes_learn(tmp_path: Path, privacy: dict[str, Any]) -> None:
    """The paper's multi-class Laplace and Discrete (Algorithm 4) on a task of six classes, ε = 8."""
    data = {**SYNTHETIC, "rows": 6000, "classes": 6, "signal": 4.0}
    agreed = job({**privacy, "epsilon": 8.0, "noise_seed": 1}, data=data, epochs=6)
    result = train(agreed, tmp_path / "run")
    assert result.classes == 6
    assert result.epsilon <= 8.0
    assert result.test_auc > 0.6
    assert result.test_accuracy > 1.3 / 6


def test_it_learns_and_noise_costs_something(tmp_path: Path) -> None:
    auc = {}
    for name, privacy in {
        "none": {"mechanism": "none"},
        "much": {"mechanism": "discrete", "epsilon": 0.02, "noise_seed": 1},
    }.items():
        auc[name] = train(job(privacy, epochs=4, batch_size=64), tmp_path / name).test_auc
    assert auc["none"] > 0.7
    assert auc["none"] > auc["much"] + 0.1


def test_own_features_at_the_label_party(tmp_path: Path) -> None:
    data = {"source": "flights", "layout": "natural", "rows": 3000}
    agreed = job({"mechanism": "discrete", "epsilon": 2.0}, data=data)
    train(agreed, tmp_path / "run")
    held = {file.name for file in (tmp_path / "run" / "label").glob("*.safetensors")}
    assert held == {"top.safetensors", "bottom.safetensors"}


def test_the_feature_partys_folder_and_gradients_know_no_metric(tmp_path: Path) -> None:
    """Nothing that depends on true labels lies outside the label party's folder, but the result at the very end."""
    agreed = job({"mechanism": "discrete", "epsilon": 1.0})
    train(agreed, tmp_path / "run", record_steps=10**9)
    for file in (tmp_path / "run" / "feature").rglob("*"):
        if file.is_file() and file.suffix == ".json":
            assert "auc" not in file.read_text()
    assert (tmp_path / "run" / "label").stat().st_mode & 0o077 == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["test_auc"] == pytest.approx(
        json.loads((tmp_path / "run/label/metrics.jsonl").read_text())["test_auc"]
    )


def test_a_device_does_not_replace_the_callers_label_party(tmp_path: Path) -> None:
    """Who asks for a device and a label party of their own gets both."""
    devices = []

    def build(*arguments: Any) -> LabelParty:
        devices.append(arguments[-1].device)
        return build_label_party(*arguments)

    device = torch.device("cpu")
    setup = RunSetup(job({"mechanism": "none"}), RunFolder(tmp_path / "run"), device=device)
    train_together(setup, VaultChoice(), make_label_party=build)
    assert devices == [device]
