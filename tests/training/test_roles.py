"""Both roles against peers that follow a script: the order of messages, rewinds, and what no honest peer sends."""

import math
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tpsl.transport.channel import Channel, JobStopped, PeerRestarted
from tpsl.transport.checks import BadMessage
from tpsl.transport.in_process import InProcessMeeting, pair, run_together
from tpsl.transport.messages import Bye, Finished, Message, Position, Rewind, Start, Stop, TensorMessage

from tpsl.data.dataset import load
from tpsl.training.checkpoint import saved_steps
from tpsl.training.job import Job, make_job
from tpsl.training.observer import Watching
from tpsl.training.one_process import train
from tpsl.training.role import FeatureRole, LabelRole
from tpsl.training.run_folder import RunFolder
from tpsl.training.setup import RunSetup
from tpsl.training.stages import attend_as_feature, attend_as_label
from tpsl.training.vaults import RunVault
from tpsl.vault import Vault

Embeddings = partial(TensorMessage, "embeddings")
Gradients = partial(TensorMessage, "gradients")
TestEmbeddings = partial(TensorMessage, "test embeddings")

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


Script = Callable[[Channel], Coroutine[Any, Any, Any]]


def feature_against(script: Script, tmp_path: Path, **training: Any) -> FeatureRole:
    """Run a feature role against a label party that follows the script."""
    agreed = job(**training)
    run = RunFolder(tmp_path / "run")
    with run.started(agreed, ["feature"]):
        role = FeatureRole(RunSetup(agreed, run), load(agreed.data).feature_sides["feature"])
        mine, theirs = pair(("feature", "label"), "float32")
        run_together(attend_as_feature(role, InProcessMeeting({"label": mine})), script(theirs))
    return role


def label_against(script: Script, tmp_path: Path, **training: Any) -> RunFolder:
    """Run a label role against a feature party that follows the script."""
    agreed = job(**training)
    side = load(agreed.data).label_side
    run = RunFolder(tmp_path / "run")
    with run.started(agreed, ["label"]):
        setup = RunSetup(agreed, run)
        role = LabelRole(setup, side.records, RunVault(setup, side, run.label / "vault"))
        mine, theirs = pair(("label", "feature"), "float32")
        run_together(attend_as_label(role, InProcessMeeting({"feature": mine})), script(theirs))
    return run


def tensor(rows: int = 80, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed))


async def begin(channel: Channel, step: int = 0, round: int = 1) -> tuple[int, ...]:
    """The label party's side of an agreement on a step."""
    await channel.send(Rewind(round))
    while not isinstance(position := await channel.receive(), Position) or position.round != round:
        pass
    await channel.send(Start(round, step))
    return position.checkpoints


async def finish(channel: Channel) -> None:
    """The label party's side of the end."""
    while not isinstance(await channel.receive(), Finished):
        pass
    await channel.send(Bye())
    assert await channel.receive() == Bye()
    await channel.send(Bye())


@pytest.mark.parametrize(("staleness", "micro_batches"), [(0, 1), (0, 4), (1, 1), (2, 2)])
def test_the_feature_party_runs_ahead_as_far_as_agreed(tmp_path: Path, staleness: int, micro_batches: int) -> None:
    seen: list[tuple[str, int, int]] = []

    async def label(channel: Channel) -> None:
        await begin(channel)
        answered = 0
        while answered < STEPS:
            # Take whatever comes without an answer: the party has stopped when nothing more does.
            while len([kind for kind, *_ in seen if kind == "embeddings"]) < micro_batches * limit(answered):
                message = await channel.receive()
                assert isinstance(message, TensorMessage) and message.topic in ("embeddings", "test embeddings")
                seen.append((message.topic, message.step, message.part))
            for part in range(micro_batches):
                await channel.send(Gradients(answered, part, tensor(80 // micro_batches)))
            seen.append(("Gradients", answered, 0))
            answered += 1
        await finish(channel)

    def limit(answered: int) -> int:
        """Steps whose embeddings come before the gradients of step `answered`: not beyond a checkpoint."""
        end = min(stop for stop in (3, 5, 6, 9, 10) if stop > answered)
        return min(answered + 1 + staleness, end)

    feature_against(label, tmp_path, staleness=staleness, micro_batches=micro_batches)
    forwards = [(step, part) for kind, step, part in seen if kind == "embeddings"]
    assert forwards == [(step, part) for step in range(STEPS) for part in range(micro_batches)]
    for step in range(STEPS):
        before = seen[: seen.index(("Gradients", step, 0))]
        assert len([kind for kind, *_ in before if kind == "embeddings"]) == micro_batches * limit(step)
    assert [(kind, step) for kind, step, _ in seen if kind == "test embeddings"][:1] == [("test embeddings", 5)]


def test_a_rewind_in_the_middle_leads_to_the_same_weights(tmp_path: Path) -> None:
    def label(*rewinds: tuple[int, int]) -> Script:
        """Gradients that depend on the step alone; at the given steps all goes back to a checkpoint."""

        async def script(channel: Channel) -> None:
            await begin(channel)
            left, round, step = list(rewinds), 1, 0
            while step < STEPS:
                message = await channel.receive()
                if isinstance(message, TensorMessage) and message.topic == "test embeddings":
                    continue
                assert isinstance(message, TensorMessage) and message.topic == "embeddings"
                if left and left[0][0] == step:
                    round, step = round + 1, left.pop(0)[1]
                    offered = await begin(channel, step, round)
                    assert step in (0, *offered)
                    continue
                assert message.step == step
                await channel.send(Gradients(step, 0, tensor(80, step)))
                step += 1
            await finish(channel)

        return script

    straight = feature_against(label(), tmp_path / "straight")
    back = feature_against(label((4, 3), (9, 6), (8, 0)), tmp_path / "back")
    for mine, other in zip(straight.party.bottom.parameters(), back.party.bottom.parameters(), strict=True):
        assert torch.equal(mine, other)
    assert saved_steps(back.folder / "checkpoints") == {9, 10}


BAD_FOR_FEATURE: dict[str, tuple[Message, str]] = {
    "wrong step": (Gradients(1, 0, tensor()), "label sent gradients of step 1, part 0; expected was step 0, part 0"),
    "wrong part": (Gradients(0, 1, tensor()), "label sent gradients of step 0, part 1; expected was step 0, part 0"),
    "too few rows": (Gradients(0, 0, tensor(79)), r"gradients from label have shape \(79, 8\), not \(80, 8\)"),
    "no rows": (Gradients(0, 0, tensor(0)), r"have shape \(0, 8\), not \(80, 8\)"),
    "NaN": (Gradients(0, 0, tensor() * math.nan), "gradients from label contain numbers that are not finite"),
    "infinite": (Gradients(0, 0, tensor() / 0), "contain numbers that are not finite"),
    "another kind": (Embeddings(0, 0, tensor()), "label sent embeddings; expected was gradients or Rewind"),
    "an early end": (Bye(), "label sent Bye; expected was gradients or Rewind"),
}


@pytest.mark.parametrize("name", BAD_FOR_FEATURE)
def test_a_feature_party_stops_at_a_bad_message(tmp_path: Path, name: str) -> None:
    message, sentence = BAD_FOR_FEATURE[name]

    async def label(channel: Channel) -> None:
        await begin(channel)
        await channel.receive()
        await channel.send(message)

    with pytest.raises(BadMessage, match=sentence):
        feature_against(label, tmp_path)


@pytest.mark.parametrize("start", [Start(1, 3), Start(2, 0), Start(1, 1 << 60)])
def test_a_feature_party_starts_only_where_it_offered(tmp_path: Path, start: Start) -> None:
    async def label(channel: Channel) -> None:
        await channel.send(Rewind(1))
        await channel.receive()
        await channel.send(start)

    with pytest.raises(BadMessage, match="which was not offered"):
        feature_against(label, tmp_path)


@pytest.mark.parametrize("division", [0, 4097, 1 << 31])
def test_a_feature_party_divides_a_batch_among_no_impossible_number_of_workers(tmp_path: Path, division: int) -> None:
    async def label(channel: Channel) -> None:
        await channel.send(Rewind(1))
        await channel.receive()
        await channel.send(Start(1, 0, division))

    with pytest.raises(BadMessage, match=f"wants to divide a batch among {division} workers, not a multiple of 1"):
        feature_against(label, tmp_path)


def test_a_feature_party_wants_an_agreement_first(tmp_path: Path) -> None:
    async def label(channel: Channel) -> None:
        await channel.send(Gradients(0, 0, tensor()))

    with pytest.raises(BadMessage, match="label sent gradients; expected was Rewind"):
        feature_against(label, tmp_path)


def test_a_stop_is_passed_on_with_its_reason(tmp_path: Path) -> None:
    async def peer(channel: Channel) -> None:
        await channel.send(Stop("party 'bank' is missing"))

    with pytest.raises(JobStopped, match="label stopped the job: party 'bank' is missing"):
        feature_against(peer, tmp_path / "feature")
    with pytest.raises(JobStopped, match="feature stopped the job: party 'bank' is missing"):
        label_against(peer, tmp_path / "label")


async def answer_rewind(channel: Channel, *checkpoints: int) -> Start:
    order = await channel.receive()
    assert isinstance(order, Rewind)
    await channel.send(Position(order.round, checkpoints))
    start = await channel.receive()
    assert isinstance(start, Start)
    return start


BAD_FOR_LABEL: dict[str, tuple[Message, str]] = {
    "wrong step": (Embeddings(1, 0, tensor()), "feature sent embeddings of step 1, part 0; expected was step 0, part"),
    "a step again": (
        Embeddings(0, 1, tensor()),
        "feature sent embeddings of step 0, part 1; expected was step 0, part",
    ),
    "too many rows": (Embeddings(0, 0, tensor(81)), r"embeddings from feature have shape \(81, 8\), not \(80, 8\)"),
    "NaN": (Embeddings(0, 0, tensor() * math.nan), "embeddings from feature contain numbers that are not finite"),
    "another kind": (TestEmbeddings(0, 0, tensor()), "feature sent test embeddings; expected was embeddings"),
    "an early end": (Finished(0), "feature sent Finished; expected was embeddings"),
    "gradients": (Gradients(0, 0, tensor()), "feature sent gradients; expected was embeddings"),
}


@pytest.mark.parametrize("name", BAD_FOR_LABEL)
def test_the_label_party_stops_at_a_bad_message(tmp_path: Path, name: str) -> None:
    message, sentence = BAD_FOR_LABEL[name]
    answers: list[Message] = []

    async def feature(channel: Channel) -> None:
        await answer_rewind(channel)
        await channel.send(message)
        answers.append(await channel.receive())

    with pytest.raises(BadMessage, match=sentence):
        label_against(feature, tmp_path)
    assert not answers


def test_a_repeated_record_gets_no_second_answer(tmp_path: Path) -> None:
    """The same step again, as if the answer had been lost: the transport repeats answers, a role never computes one."""

    async def feature(channel: Channel) -> None:
        await answer_rewind(channel)
        for _ in range(2):
            await channel.send(Embeddings(0, 0, tensor()))
        await channel.receive()
        await channel.receive()

    with pytest.raises(BadMessage, match="feature sent embeddings of step 0, part 0; expected was step 1, part 0"):
        label_against(feature, tmp_path)
    with Vault.open(tmp_path / "run" / "label" / "vault") as vault:
        assert [entry.kind for entry in vault.ledger().entries].count("released") == 1


def test_a_feature_party_that_does_not_say_where_it_stands(tmp_path: Path) -> None:
    async def feature(channel: Channel) -> None:
        while True:
            await channel.send(Embeddings(0, 0, tensor(1)))

    with pytest.raises(BadMessage, match="feature goes on sending and does not say where it stands"):
        label_against(feature, tmp_path)
    assert not (tmp_path / "run" / "label" / "vault").exists()


def test_checkpoints_that_only_one_side_claims_are_not_used(tmp_path: Path) -> None:
    async def feature(channel: Channel) -> None:
        assert await answer_rewind(channel, 3, 6, 1 << 40) == Start(1, 0)
        await channel.send(Stop("enough"))

    with pytest.raises(JobStopped):
        label_against(feature, tmp_path)


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
    agreed = job()
    run = RunFolder(tmp_path / "run")
    offered = []

    class Restarting:
        """The first label party is gone after step 4; the second one goes on."""

        def __init__(self) -> None:
            self.channels = [pair(("feature", "label"), "float32") for _ in range(2)]
            self.gathered = 0

        async def gather(self, without: Any = ()) -> dict[str, Channel]:
            self.gathered += 1
            return {"label": Gone(self.channels[0][0]) if self.gathered == 1 else self.channels[1][0]}

    class Gone:
        def __init__(self, channel: Channel) -> None:
            self._channel, self.peer, self.traffic = channel, channel.peer, channel.traffic

        async def send(self, message: Message) -> None:
            await self._channel.send(message)

        async def receive(self) -> Message:
            message = await self._channel.receive()
            if isinstance(message, Bye):
                raise PeerRestarted("label")
            return message

    async def label(channel: Channel, first: int, last: int) -> None:
        offered.append(await begin(channel, first, 1))
        for step in range(first, last):
            while getattr(await channel.receive(), "topic", None) != "embeddings":
                pass
            await channel.send(Gradients(step, 0, tensor(80, step)))
        if last == STEPS:
            await finish(channel)
        else:
            await channel.send(Bye())

    meeting = Restarting()
    with run.started(agreed, ["feature"]):
        role = FeatureRole(RunSetup(agreed, run), load(agreed.data).feature_sides["feature"])
        run_together(
            attend_as_feature(role, meeting),
            label(meeting.channels[0][1], 0, 4),
            label(meeting.channels[1][1], 3, STEPS),
        )
    assert offered == [(), (3,)]
    assert run.party_result("feature") is not None


def test_a_run_does_not_count_how_long_its_parties_took_to_come(tmp_path: Path) -> None:
    agreed = job()
    sides = load(agreed.data)
    run = RunFolder(tmp_path / "run")
    mine, theirs = pair(("label", "feature"), "float32")

    class Late(InProcessMeeting):
        async def gather(self, without: Any = ()) -> dict[str, Channel]:
            time.sleep(2)
            return await super().gather(without)

    with run.started(agreed, ["label", "feature"]):
        setup = RunSetup(agreed, run)
        begun = time.perf_counter()
        label = LabelRole(setup, sides.label_side.records, RunVault(setup, sides.label_side, run.label / "vault"))
        feature = FeatureRole(setup, sides.feature_sides["feature"])
        run_together(
            attend_as_label(label, Late({"feature": mine})),
            attend_as_feature(feature, InProcessMeeting({"label": theirs})),
        )
        elapsed = time.perf_counter() - begun
    result = run.result()
    assert result is not None
    assert 0 < result.seconds <= elapsed - 2


@pytest.mark.parametrize(("staleness", "micro_batches"), [(0, 40), (9, 4)])
def test_many_parts_under_way_do_not_block_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, staleness: int, micro_batches: int
) -> None:
    """A party that has sent as much as may be under way takes answers before it sends more; the result is the same."""
    agreed = job(staleness=staleness, micro_batches=micro_batches)
    train(agreed, tmp_path / "roomy", vault=tmp_path / "vault")
    monkeypatch.setattr("tpsl.transport.in_process.WINDOW", 6000)
    monkeypatch.setattr("tpsl.training.stages.steps.WINDOW", 6000)
    train(agreed, tmp_path / "tight", vault=tmp_path / "vault")
    for file in ("feature/bottom.safetensors", "label/top.safetensors"):
        assert (tmp_path / "roomy" / file).read_bytes() == (tmp_path / "tight" / file).read_bytes()
