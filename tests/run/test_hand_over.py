"""Noisy labels handed over: the weights and predictions of split training, from a small part of its bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file

from tpsl.data.dataset import load_feature_party
from tpsl.mechanisms import MECHANISMS, build_mechanism
from tpsl.net.asking import Answers, AtHome
from tpsl.net.codec import tensor_bytes
from tpsl.net.failures import BadMessage, PeerRestarted
from tpsl.net.messages import Message
from tpsl.run.alone import require_alone
from tpsl.run.job import Job, JobError, make_job
from tpsl.run.job_agreement import agreement
from tpsl.run.local import Local
from tpsl.run.observer import UNWATCHED, Observer, Watching
from tpsl.run.one_process import train, train_together
from tpsl.run.over_network import join, serve
from tpsl.run.role import FeatureRole, FeatureRun
from tpsl.run.run_folder import RunFolder
from tpsl.run.schedule import Schedule
from tpsl.run.setup import RunSetup
from tpsl.run.stages import attend_as_features
from tpsl.run.stages.hand_over import FILE, handed_over, packed, packed_bytes, unpacked
from tpsl.run.vaults import HAND_OVER, VaultChoice
from tpsl.run.warm_start import StartingPoint
from tpsl.vault import Vault

SYNTHETIC = {"source": "synthetic", "rows": 1500, "numeric_fields": 3, "categorical_fields": 2, "signal": 2.0}
SMALL = {"embedding_dim": 4, "bottom": [16, 8], "top": [8]}


def job(
    exchange: str = "labels",
    *,
    privacy: dict[str, Any] | None = None,
    data: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    **training: Any,
) -> Job:
    content = {
        "data": {**SYNTHETIC, **(data or {})},
        "privacy": privacy or {"epsilon": 1.0},
        "model": {**SMALL, **(model or {})},
        "training": {
            "batch_size": 256,
            "epochs": 2,
            "checkpoint_every": 3,
            "exchange": exchange,
            "patience": 0,
            **training,
        },
    }
    return make_job(content, {}, "test")


def kept(run: Path) -> dict[str, torch.Tensor]:
    """Return all weights and predictions of a run."""
    files = [*run.glob("*/*.safetensors"), *run.glob("label/predictions/*")]
    assert {file.stem for file in files} >= {"top", "bottom", "epoch-0001"}
    return {f"{file.relative_to(run)}:{name}": tensor for file in files for name, tensor in load_file(file).items()}


def same(one: Path, other: Path) -> bool:
    a, b = kept(one), kept(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


EVERYTHING = {"model": {"wide": True, "members": 2}, "validation": 0.1, "patience": 1, "averaging": 0.9}
TEN, HUNDRED = ({"data": {"classes": classes, "rows": 1200}} for classes in (10, 100))


@pytest.mark.parametrize(
    "settings",
    [
        EVERYTHING,
        {"privacy": {"mechanism": "discrete", "epsilon": 1.0, "draws": 2, "estimator": "unbiased"}, "wire": "bfloat16"},
        {"privacy": {"mechanism": "laplace", "epsilon": 1.0, "estimator": "linear"}, "staleness": 1},
        {**TEN, "privacy": {"mechanism": "optimized_unary", "epsilon": 1.0}},
        {**HUNDRED, "privacy": {"mechanism": "subset_selection", "epsilon": 1.0}, "epochs": 1},
    ],
    ids=["everything", "two draws", "laplace", "10 classes", "100 classes"],
)
def test_it_equals_split_training(tmp_path: Path, settings: dict[str, Any]) -> None:
    vault = tmp_path / "vault"
    split = train(job("gradients", **settings), tmp_path / "split", vault=vault)
    alone = train(job("labels", **settings), tmp_path / "alone", vault=vault)
    assert same(tmp_path / "split", tmp_path / "alone")
    for name in ("steps", "kept_epoch", "test_auc", "test_log_loss", "validation_auc", "epsilon", "total_epsilon"):
        np.testing.assert_equal(getattr(alone, name), getattr(split, name))
    with Vault.open(vault) as opened:
        assert [entry.kind for entry in opened.ledger().entries].count("released") == 1


def crossed(job: Job, run: Path) -> int:
    """Return how many bytes of tensors cross the border in a run in one process."""
    sizes: list[int] = []

    class Weighed(AtHome):
        def _arrived(self, method: str, party: str, message: Message, **side: bool) -> Message:
            sizes.append(tensor_bytes(message, self._dtype))
            return super()._arrived(method, party, message, **side)

    train_together(RunSetup(job, RunFolder(run)), VaultChoice(run.parent / "vault"), ask_label=Weighed)
    return sum(sizes)


def test_it_needs_a_small_part_of_the_bytes(tmp_path: Path) -> None:
    split, alone = (crossed(job(exchange), tmp_path / exchange) for exchange in ("gradients", "labels"))
    assert alone == 1200 // 8  # a bit for each training record
    assert split > 1000 * alone


class Heard(Observer):
    """Notes where the label party listens."""

    def __init__(self) -> None:
        self.address = ""
        self.opened = threading.Event()

    def event(self, name: str, **facts: Any) -> None:
        if name == "listening":
            self.address = str(facts["address"])
            self.opened.set()


def over_a_network(agreed: Job, folder: Path, watching: Watching = UNWATCHED) -> Any:
    """Run both sides as programs of their own do; return the results of the label party and of the feature party."""
    heard = Heard()
    local = Local(listen="127.0.0.1:0", vault=folder / "vault", silence=2.0, wait=20.0)
    with ThreadPoolExecutor(1) as threads:
        label = threads.submit(serve, agreed, local, folder / "label", watching=Watching(heard), insecure_loopback=True)
        assert heard.opened.wait(60)
        here = Local(connect=heard.address, wait=20.0, silence=2.0)
        result = join(agreed, "feature", here, folder / "feature", watching=watching, insecure_loopback=True)
        return label.result(), result


def test_over_a_network_the_label_party_is_done_when_training_begins(tmp_path: Path) -> None:
    """The feature party ends with both halves, equal to those of split training; the label party with its ledger."""
    agreed = job(**EVERYTHING)
    notices: list[str] = []

    class Watched(Observer):
        def event(self, name: str, **facts: Any) -> None:
            notices.append(name)

        def waiting_for(self, peer: str | None) -> None:
            notices.append(f"waiting for {peer}")

    at_label, at_feature = over_a_network(agreed, tmp_path, watching=Watching(Watched(), notice=notices.append))
    received = notices.index("1,200 noisy labels received; training goes on without the label party")
    assert "waiting for label" in notices[:received] and "waiting for label" not in notices[received:]
    assert notices.count("finished") == 1 and notices[-1] == "finished"
    train(job("gradients", **EVERYTHING), tmp_path / "split", vault=tmp_path / "vault")
    assert same(tmp_path / "split", tmp_path / "feature")
    assert (at_label.steps, at_label.epsilon, at_label.total_epsilon, at_label.private) == (0, 1.0, 1.0, True)
    assert at_feature.steps > 0 and not list((tmp_path / "label").glob("*/top.safetensors"))
    alone = RunFolder(tmp_path / "feature").result()
    assert alone is not None and np.isfinite(alone.validation_loss) and np.isnan(alone.test_auc)
    assert (alone.epsilon, alone.private) == (1.0, True)
    # A finished run needs nobody.
    again = join(
        agreed,
        "feature",
        Local(connect="127.0.0.1:9"),
        tmp_path / "feature",
        watching=UNWATCHED,
        insecure_loopback=True,
    )
    assert again == at_feature
    with Vault.open(tmp_path / "vault") as vault:
        assert [entry.kind for entry in vault.ledger().entries].count("released") == 1


def test_a_party_that_has_its_labels_trains_on_when_the_label_party_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreed = job()

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tpsl.run.over_network.train_alone", killed)
        with pytest.raises(KeyboardInterrupt):
            over_a_network(agreed, tmp_path)
    nobody = Local(connect="127.0.0.1:9", wait=0.0)
    join(agreed, "feature", nobody, tmp_path / "feature", watching=UNWATCHED, insecure_loopback=True)
    train(agreed, tmp_path / "one", vault=tmp_path / "vault")
    assert same(tmp_path / "one", tmp_path / "feature")


def test_both_sides_compare_the_table_at_the_handshake() -> None:
    """A mechanism of a user's own that is another one at the other side is noticed before a label crosses."""
    records = np.arange(40)

    epsilon = 1.0
    MECHANISMS.register("own", lambda classes: build_mechanism("discrete", classes, epsilon=epsilon)[0])
    own = job(privacy={"mechanism": "own"})

    def agreed() -> dict[str, str]:
        return dict(agreement(own, pa.array(map(str, records)), Schedule(own, records[:30], records[30:])).fields)

    one = agreed()
    epsilon = 0.5
    other = agreed()
    assert {name for name in one if one[name] != other[name]} == {"table of the mechanism"}


@pytest.mark.parametrize(
    ("name", "classes", "parameters"),
    [
        ("discrete", 2, {"epsilon": 1.0}),
        ("discrete", 10, {"epsilon": 3.0}),
        ("subset_selection", 100, {"epsilon": 1.0}),
        ("laplace", 2, {"epsilon": 1.0}),
        ("gaussian", 3, {"sigma": 1.0, "delta": 1e-5}),
    ],
)
def test_outcomes_take_as_few_bits_as_they_need(name: str, classes: int, parameters: dict[str, float]) -> None:
    mechanism = build_mechanism(name, classes, **parameters)[0]
    for records in (0, 1, 7, 1000):
        drawn = mechanism.release(np.arange(records) % classes, 5).outcomes
        row = packed(mechanism, drawn)
        bits = records * int(np.prod(mechanism.outcome_shape)) * (mechanism.outcomes - 1).bit_length()
        assert len(row) == packed_bytes(mechanism, records) == -(-bits // 8)
        found = unpacked(mechanism, torch.from_numpy(row), records)
        assert found.dtype == mechanism.outcome_dtype and (found == drawn).all()


def test_what_was_received_is_checked_when_it_is_read(tmp_path: Path) -> None:
    agreed = job()
    train(agreed, tmp_path / "run")
    folder = tmp_path / "run" / HAND_OVER / "feature"
    assert len(handed_over(agreed, folder)) == 1200
    (folder / FILE).write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"noisy_labels\.safetensors: is damaged"):
        handed_over(agreed, folder)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"head": "local"}, "the local head is trained on true labels"),
        ({"data": {"source": "flights", "layout": "natural"}}, "the label party has features of its own"),
        ({"method": "auto", "statistic": {}}, "method 'auto' may choose a sum over embeddings"),
        ({"method": "statistic"}, "method 'statistic' sums embeddings at the label party"),
    ],
)
def test_jobs_that_need_split_training_are_refused(changes: dict[str, Any], reason: str) -> None:
    content = {
        "data": {"source": "synthetic"},
        **{key: changes[key] for key in ("data", "method", "statistic") if key in changes},
    }
    training = {"exchange": "labels", **{key: value for key, value in changes.items() if key not in content}}
    with pytest.raises(JobError, match=reason) as error:
        make_job({**content, "training": training}, {}, "test")
    assert error.value.code == "needs-split-training"


def test_nobody_trains_alone_what_needs_split_training(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="a feature party cannot train this job alone: the local head"):
        require_alone(job("gradients", head="local"), None)
    with pytest.raises(JobError, match="starts from an earlier one adds up ε in the label party's vault"):
        require_alone(job("gradients"), StartingPoint(tmp_path))
    require_alone(job("gradients"), None)


HONEST = torch.full((1, 60), 0b01000001, dtype=torch.uint8)  # 240 records of three classes, two bits each
HOSTILE = {
    "too few bytes": ([HONEST[:, 1:]], r"have shape \(1, 59\), not \(1, 60\)"),
    "two draws": ([HONEST.repeat(2, 1)], r"have shape \(2, 60\), not \(1, 60\)"),
    "nothing": ([None], "are missing"),
    "an outcome that there is not": (
        [HONEST | 3],
        r"a noisy label that discrete \(ε = 1, 3 classes\) does not have",
    ),
    "other labels after a restart": ([HONEST, HONEST ^ 1], "sent other noisy labels than before"),
}


class HostileLabel:
    """A label party that hands these bytes over, and restarts after each but the last."""

    def __init__(self, handed: list[Any]) -> None:
        self.handed = list(handed)

    def agree(self, said: Answers) -> Answers:
        return {"feature": Message()}

    def ask(self, method: str, step: int, part: int, said: Answers) -> Answers:
        if method == "Finish":
            raise PeerRestarted("label")
        return {"feature": Message(tensor=self.handed.pop(0))}

    def ask_ahead(self, method: str, step: int, part: int, said: Answers) -> Callable[[], Answers]:
        return partial(self.ask, method, step, part, said)


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_label_party_that_sends_something_else_stops_the_job(tmp_path: Path, hostile: str) -> None:
    handed, sentence = HOSTILE[hostile]
    agreed = job(data={"classes": 3, "rows": 300}, privacy={"mechanism": "discrete", "epsilon": 1.0})
    run = RunFolder(tmp_path / "run")
    with run.started(agreed, ["feature"]):
        role = FeatureRole(RunSetup(agreed, run), load_feature_party(agreed.data))
        with pytest.raises(BadMessage, match=sentence):
            attend_as_features(FeatureRun([role], HostileLabel(handed)))


def test_bits_after_the_last_outcome_are_refused() -> None:
    mechanism = build_mechanism("discrete", 2, epsilon=1.0)[0]
    with pytest.raises(BadMessage, match="sent noisy labels with bits after the last one"):
        unpacked(mechanism, torch.tensor([0b10100001], dtype=torch.uint8), 7)
