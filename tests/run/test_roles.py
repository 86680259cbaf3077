"""Both roles against peers that do as they are told: how far ahead, restarts, and runs that are interrupted."""

import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.run.parties import Scripted, feature_against, label_role, over_loopback

from tpsl.data.dataset import load
from tpsl.net.asking import AtHome
from tpsl.net.failures import BadMessage, JobStopped, PeerRestarted
from tpsl.net.messages import Message
from tpsl.run.checkpoint import saved_steps
from tpsl.run.job import Job, make_job
from tpsl.run.observer import Watching
from tpsl.run.one_process import train
from tpsl.run.role import FeatureRole, FeatureRun
from tpsl.run.run_folder import RunFolder
from tpsl.run.setup import RunSetup
from tpsl.run.stages import attend_as_features, begin
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


def gradients(method: str, step: int, part: int, message: Message) -> Message:
    """Gradients that depend on the step alone."""
    if method != "Step":
        return Message()
    assert message.tensor is not None
    generator = torch.Generator().manual_seed(step)
    return Message(tensor=torch.randn(message.tensor.shape, generator=generator))


@pytest.mark.parametrize(("staleness", "micro_batches"), [(0, 1), (0, 4), (1, 1), (2, 2)])
def test_the_feature_party_runs_ahead_as_far_as_agreed(tmp_path: Path, staleness: int, micro_batches: int) -> None:
    label = Scripted(gradients)
    feature_against(label, job(staleness=staleness, micro_batches=micro_batches), tmp_path)

    def ahead(step: int) -> int:
        """Steps whose embeddings are sent before the gradients of this step are waited for: up to a checkpoint."""
        end = min(stop for stop in (3, 5, 6, 9, 10) if stop > step)
        return min(step + 1 + staleness, end)

    steps = [(kind, step, part) for kind, method, step, part in label.seen if method == "Step"]
    asked = [(step, part) for kind, step, part in steps if kind == "asked"]
    assert asked == [(step, part) for step in range(STEPS) for part in range(micro_batches)]
    for step in range(STEPS):
        before = steps[: steps.index(("answered", step, 0))]
        assert len([kind for kind, *_ in before if kind == "asked"]) == micro_batches * ahead(step)
    evaluated = [(kind, step) for kind, method, step, _ in label.seen if method == "Evaluate"]
    assert evaluated == [(kind, step) for step in (5, 10) for kind in ("asked", "answered")]


@pytest.mark.parametrize("restarts", [((4, 3), (9, 6), (8, 0)), ((0, 0), (5, 5)), ((9, 9),)])
def test_restarts_of_others_lead_to_the_same_weights(tmp_path: Path, restarts: tuple[tuple[int, int], ...]) -> None:
    """At the given steps all agree anew, on a checkpoint that this party has."""
    left = list(restarts)

    def restarting(method: str, step: int, part: int, message: Message) -> Message:
        if left and method == "Step" and left[0][0] == step:
            left.pop(0)
            raise PeerRestarted("label")
        return gradients(method, step, part, message)

    label = Scripted(restarting, 0, *(start for _, start in restarts))
    back = feature_against(label, job(), tmp_path / "back")
    straight = feature_against(Scripted(gradients), job(), tmp_path / "straight")
    for mine, other in zip(straight.party.bottom.parameters(), back.party.bottom.parameters(), strict=True):
        assert torch.equal(mine, other)
    assert saved_steps(back.folder / "checkpoints") == {9, 10}
    assert all(start in (0, *offered) for (_, start), offered in zip(restarts, label.offered[1:], strict=True))


@pytest.mark.parametrize("step", [3, 1, 1 << 60])
def test_a_feature_party_starts_only_where_it_offered(tmp_path: Path, step: int) -> None:
    with pytest.raises(BadMessage, match=f"start at step {step}, which was not offered"):
        feature_against(Scripted(gradients, step), job(), tmp_path)


def test_labels_are_released_once_and_not_before_all_have_agreed(tmp_path: Path) -> None:
    def released() -> int:
        with Vault.open(tmp_path / "label" / "vault") as vault:
            return [entry.kind for entry in vault.ledger().entries].count("released")

    with label_role(job(), tmp_path) as role:
        role.vault.store()  # type: ignore[attr-defined]
        assert released() == 0
        label = AtHome(partial(begin, role), "float32")
        assert released() == 0
        for _ in range(2):
            label.agree({"feature": Message()})
            label.ask("Step", 0, 0, {"feature": Message(tensor=torch.zeros(80, WIDTH))})
            assert released() == 1


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


@pytest.mark.parametrize(("staleness", "micro_batches", "calls"), [(0, 40, 4), (9, 4, 4), (2, 2, 1)])
def test_many_parts_under_way_do_not_block_each_other(
    tmp_path: Path, staleness: int, micro_batches: int, calls: int
) -> None:
    """A party that has asked as much as it may takes an answer before it asks more; the result is the same."""
    agreed = job(staleness=staleness, micro_batches=micro_batches)
    with label_role(agreed, tmp_path / "network") as role:
        over_loopback(role, lambda client: attended(agreed, tmp_path / "network", client), calls)
    train(agreed, tmp_path / "one", vault=tmp_path / "network" / "label" / "vault")
    for file in ("feature/bottom.safetensors", "label/top.safetensors"):
        assert (tmp_path / "network" / file).read_bytes() == (tmp_path / "one" / file).read_bytes()


def attended(agreed: Job, folder: Path, client: Any) -> FeatureRole:
    role = FeatureRole(RunSetup(agreed, RunFolder(folder)), load(agreed.data).feature_sides["feature"])
    attend_as_features(FeatureRun([role], client))
    return role


def test_a_run_does_not_count_how_long_its_parties_took_to_come(tmp_path: Path) -> None:
    agreed, begun = job(), time.perf_counter()

    def late(client: Any) -> None:
        time.sleep(2)
        attended(agreed, tmp_path, client)

    with label_role(agreed, tmp_path) as role:
        over_loopback(role, late)
    result = RunFolder(tmp_path).result()
    assert result is not None
    assert 0 < result.seconds <= time.perf_counter() - begun - 2


def test_a_reason_to_stop_ends_both_with_its_code(tmp_path: Path) -> None:
    def stop(client: Any) -> None:
        client.agree({"feature": Message()})
        client.stop(BadMessage("no more", "not-finite"))
        with pytest.raises(JobStopped) as told:
            client.ask("Step", 0, 0, {"feature": Message()})
        assert told.value.code == "not-finite"

    with label_role(job(), tmp_path) as role, pytest.raises(JobStopped, match="no more") as stopped:
        over_loopback(role, stop)
    assert stopped.value.code == "not-finite"
