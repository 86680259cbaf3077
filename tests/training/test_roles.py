"""Both roles against peers that follow a script: what is asked when, restarts, and what no honest peer says."""

import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tpsl.data.dataset import load
from tpsl.net.asking import Answers, AtHome, Script
from tpsl.net.failures import NOT_FINITE, BadMessage, PeerRestarted
from tpsl.net.messages import Message, Peer
from tpsl.training.checkpoint import saved_steps
from tpsl.training.job import Job, make_job
from tpsl.training.observer import Watching
from tpsl.training.one_process import train
from tpsl.training.role import FeatureRole, FeatureRun, LabelRole
from tpsl.training.run_folder import RunFolder
from tpsl.training.setup import RunSetup
from tpsl.training.stages import attend_as_features, attend_as_label, begin
from tpsl.training.vaults import RunVault
from tpsl.vault import Vault

WIDTH = 8
STEPS = 10  # two epochs of 400 training records


def job(members: int = 1, **training: Any) -> Job:
    content = {
        "data": {"source": "synthetic", "rows": 500, "numeric_fields": 3, "categorical_fields": 2},
        "privacy": {"mechanism": "discrete", "epsilon": 1.0},
        "model": {"embedding_dim": 4, "bottom": [16, WIDTH], "top": [8], "members": members},
        "training": {"batch_size": 80, "epochs": 2, "checkpoint_every": 3, "patience": 0, **training},
    }
    return make_job(content, {}, "test")


def tensor(rows: int = 80, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed))


class ScriptedLabel:
    """A label party that answers what a test says; else with gradients that depend on the step alone."""

    def __init__(self, **answers: Callable[[int, int], Message]) -> None:
        self.answers, self.asked, self.offered = answers, list[tuple[str, int, int]](), list[tuple[int, ...]]()
        self.starts = [Message()]

    def agree(self, said: Answers) -> Answers:
        self.offered.append(said["feature"].numbers)
        return {"feature": self.starts.pop(0) if len(self.starts) > 1 else self.starts[0]}

    def ask(self, method: str, step: int, part: int, said: Answers) -> Answers:
        return self.ask_ahead(method, step, part, said)()

    def ask_ahead(self, method: str, step: int, part: int, said: Answers) -> Callable[[], Answers]:
        self.asked.append((method, step, part))

        def answered() -> Answers:
            self.asked.append((f"answer to {method}", step, part))
            if method in self.answers:
                return {"feature": self.answers[method](step, part)}
            sent = said["feature"].tensor
            return {"feature": Message(tensor=tensor(len(sent), step)) if method == "Step" else Message()}

        return answered


def feature_against(label: ScriptedLabel, tmp_path: Path, **training: Any) -> FeatureRole:
    """Run a feature party against a label party that follows a script."""
    agreed = job(**training)
    run = RunFolder(tmp_path / "run")
    with run.started(agreed, ["feature"]):
        role = FeatureRole(RunSetup(agreed, run), load(agreed.data).feature_sides["feature"])
        attend_as_features(FeatureRun([role], label))
    return role


def label_in(tmp_path: Path, **training: Any) -> AtHome:
    """Return a label party that can be asked anything."""
    agreed = job(**training)
    side, run = load(agreed.data).label_side, RunFolder(tmp_path / "run")
    with run.started(agreed, ["label"]):
        setup = RunSetup(agreed, run)
        role = LabelRole(setup, side.records, RunVault(setup, side, run.label / "vault"))
    return AtHome(partial(begin, role), "float32")


@pytest.mark.parametrize(("staleness", "micro_batches"), [(0, 1), (0, 4), (1, 1), (2, 2)])
def test_the_feature_party_runs_ahead_as_far_as_agreed(tmp_path: Path, staleness: int, micro_batches: int) -> None:
    def limit(answered: int) -> int:
        """Steps whose embeddings come before the gradients of step `answered`: not beyond a checkpoint."""
        end = min(stop for stop in (3, 5, 6, 9, 10) if stop > answered)
        return min(answered + 1 + staleness, end)

    label = ScriptedLabel()
    feature_against(label, tmp_path, staleness=staleness, micro_batches=micro_batches)
    seen = label.asked
    forwards = [(step, part) for kind, step, part in seen if kind == "Step"]
    assert forwards == [(step, part) for step in range(STEPS) for part in range(micro_batches)]
    for step in range(STEPS):
        before = seen[: seen.index(("answer to Step", step, 0))]
        assert len([kind for kind, *_ in before if kind == "Step"]) == micro_batches * limit(step)
    assert [(kind, step) for kind, step, _ in seen if kind == "Evaluate"] == [("Evaluate", 5), ("Evaluate", 10)]
    assert [(kind, part) for kind, _, part in seen[-4::2]] == [("Finish", 0), ("Finish", 1)]


def test_a_restart_in_the_middle_leads_to_the_same_weights(tmp_path: Path) -> None:
    restarts = [(4, 3), (9, 6), (8, 0)]

    def gradients(step: int, part: int) -> Message:
        if restarts and restarts[0][0] == step:
            back.starts = [Message(step=restarts.pop(0)[1])]
            raise PeerRestarted("label")
        return Message(tensor=tensor(80, step))

    straight = feature_against(ScriptedLabel(), tmp_path / "straight")
    back = ScriptedLabel(Step=gradients)
    again = feature_against(back, tmp_path / "back")
    for mine, other in zip(straight.party.bottom.parameters(), again.party.bottom.parameters(), strict=True):
        assert torch.equal(mine, other)
    assert saved_steps(again.folder / "checkpoints") == {9, 10}
    assert back.offered == [(), (3,), (6, 9), (6,)]


BAD_FOR_FEATURE = {
    "too few rows": (tensor(79), "bad-message"),
    "no rows": (tensor(0), "bad-message"),
    "too wide": (torch.zeros(80, WIDTH + 1), "bad-message"),
    "nothing": (None, "bad-message"),
}


@pytest.mark.parametrize("name", BAD_FOR_FEATURE)
def test_a_feature_party_stops_at_a_bad_answer(tmp_path: Path, name: str) -> None:
    answer, code = BAD_FOR_FEATURE[name]
    with pytest.raises(BadMessage) as bad:
        feature_against(ScriptedLabel(Step=lambda step, part: Message(tensor=answer)), tmp_path)
    assert bad.value.code == code


@pytest.mark.parametrize("step", [3, 1, 1 << 60])
def test_a_feature_party_starts_only_where_it_offered(tmp_path: Path, step: int) -> None:
    label = ScriptedLabel()
    label.starts = [Message(step=step)]
    with pytest.raises(BadMessage, match="which was not offered"):
        feature_against(label, tmp_path)


@pytest.mark.parametrize("numbers", [(), (1,), (1, 2), (0, 0), (1, 0, 0)])
def test_a_feature_party_believes_no_verdict_that_there_cannot_be(tmp_path: Path, numbers: tuple[int, ...]) -> None:
    label = ScriptedLabel(Evaluate=lambda step, part: Message(numbers=numbers))
    with pytest.raises(BadMessage):
        feature_against(label, tmp_path, patience=1, validation=0.2)


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_the_label_party_stops_at_numbers_that_are_not_finite(tmp_path: Path, number: float) -> None:
    label = label_in(tmp_path)
    label.agree({"feature": Message()})
    with pytest.raises(BadMessage) as bad:
        label.ask("Step", 0, 0, {"feature": Message(tensor=tensor() * number)})
    assert bad.value.code == NOT_FINITE


def test_labels_are_released_once_whatever_is_asked_again(tmp_path: Path) -> None:
    label = label_in(tmp_path)
    for _ in range(3):
        label.agree({"feature": Message()})
        label.ask("Step", 0, 0, {"feature": Message(tensor=tensor())})
    with Vault.open(tmp_path / "run" / "label" / "vault") as vault:
        assert [entry.kind for entry in vault.ledger().entries].count("released") == 1


def test_checkpoints_that_only_one_side_claims_are_not_used(tmp_path: Path) -> None:
    label = label_in(tmp_path)
    assert label.agree({"feature": Message(numbers=(3, 6, 1 << 40))})["feature"].step == 0


@pytest.mark.parametrize("at", [2, 4, 9])
def test_an_interrupted_run_with_members_and_averages_ends_with_the_same_weights(tmp_path: Path, at: int) -> None:
    agreed = job(members=3, averaging=0.8)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    result = train(agreed, whole, vault=tmp_path / "vault", record_steps=STEPS)

    def interrupt(done: int, total: int, note: str) -> None:
        if done == at:
            raise Interrupted

    with pytest.raises(Interrupted):
        train(agreed, broken, vault=tmp_path / "vault", record_steps=STEPS, watching=Watching(progress=interrupt))
    assert train(agreed, broken, vault=tmp_path / "vault", record_steps=STEPS).test_auc == result.test_auc
    for file in ("feature/bottom.safetensors", "label/top.safetensors", "feature/transcript/gradients.f32"):
        assert (whole / file).read_bytes() == (broken / file).read_bytes(), file
    assert (whole / "feature/transcript/gradients.f32").stat().st_size == 2 * 400 * 3 * WIDTH * 4


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("at", [1, 4, 7])
@pytest.mark.parametrize(
    "training",
    [
        {"staleness": 2, "micro_batches": 3, "wire": "bfloat16"},
        {"staleness": 1},
        {"staleness": 1, "micro_batches": 2, "wire": "int8"},
    ],
    ids=["parts", "whole batches", "int8"],
)
def test_an_interrupted_run_that_runs_ahead_ends_with_the_same_weights(
    tmp_path: Path, training: dict[str, Any], at: int
) -> None:
    agreed = job(**training)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(agreed, whole, vault=tmp_path / "vault", record_steps=STEPS)

    def interrupt(done: int, total: int, note: str) -> None:
        if done == at:
            raise Interrupted

    with pytest.raises(Interrupted):
        train(agreed, broken, vault=tmp_path / "vault", record_steps=STEPS, watching=Watching(progress=interrupt))
    train(agreed, broken, vault=tmp_path / "vault", record_steps=STEPS)
    compared = ["feature/bottom.safetensors", "label/top.safetensors", "label/trajectory.f32"]
    compared += [f"feature/transcript/{name}" for name in ("rows.i64", "sizes.i64", "embeddings.f32", "gradients.f32")]
    for file in compared:
        assert (whole / file).read_bytes() == (broken / file).read_bytes(), file


def test_wire_and_staleness_change_the_result_and_micro_batches_hardly(tmp_path: Path) -> None:
    def top(**training: Any) -> torch.Tensor:
        name = "-".join(str(value) for value in training.values()) or "plain"
        train(job(**training), tmp_path / name, vault=tmp_path / "vault")
        from safetensors.torch import load_file

        return torch.cat([part.flatten() for part in load_file(tmp_path / name / "label" / "top.safetensors").values()])

    plain = top()
    torch.testing.assert_close(top(micro_batches=4), plain, rtol=0, atol=1e-5)
    changes = ({"wire": "bfloat16"}, {"wire": "float16"}, {"wire": "int8"}, {"staleness": 1})
    for change in changes:
        other = top(**change)
        assert not torch.equal(other, plain)
        torch.testing.assert_close(other, plain, rtol=0, atol=0.05)


def test_a_restart_of_the_label_party_is_a_new_agreement(tmp_path: Path) -> None:
    """The first label party is gone in step 4; the second one goes on from a checkpoint."""
    gone: list[int] = []

    def gradients(step: int, part: int) -> Message:
        if step == 4 and not gone:
            gone.append(step)
            raise PeerRestarted("label")
        return Message(tensor=tensor(80, step))

    label = ScriptedLabel(Step=gradients)
    label.starts = [Message(), Message(step=3)]
    feature_against(label, tmp_path)
    assert label.offered == [(), (3,)]
    assert RunFolder(tmp_path / "run").party_result("feature") is not None


def test_a_run_does_not_count_how_long_its_parties_took_to_come(tmp_path: Path) -> None:
    agreed = job()
    sides = load(agreed.data)
    run = RunFolder(tmp_path / "run")

    class LateDesk:
        """The feature party comes after two seconds, and asks in the same process."""

        def gather(self, without: Any = ()) -> Answers:
            time.sleep(2)
            return {"feature": Message()}

        def start(self, answers: Answers) -> dict[str, Peer]:
            self.answers = answers
            return {"feature": Peer("feature")}

        def answer_all(self, script: Script) -> None:
            label = AtHome(lambda said: (self.answers, script), "float32")
            attend_as_features(FeatureRun([feature], label))

    with run.started(agreed, ["label", "feature"]):
        setup = RunSetup(agreed, run)
        begun = time.perf_counter()
        label = LabelRole(setup, sides.label_side.records, RunVault(setup, sides.label_side, run.label / "vault"))
        feature = FeatureRole(setup, sides.feature_sides["feature"])
        attend_as_label(label, LateDesk())
        elapsed = time.perf_counter() - begun
    result = run.result()
    assert result is not None
    assert 0 < result.seconds <= elapsed - 2
