"""The stage `statistic`: one release, the same head after every interruption, and harmless against hostile vectors."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tpsl.audit import replay
from tpsl.data.dataset import load
from tpsl.mechanisms import randomized_response
from tpsl.net.asking import Answers, AtHome
from tpsl.net.failures import BadMessage
from tpsl.net.messages import Message
from tpsl.report.ledgers import result_now
from tpsl.run.job import Job, make_job
from tpsl.run.observer import Watching
from tpsl.run.one_process import train, train_together
from tpsl.run.role import LabelRole
from tpsl.run.run_folder import RunError, RunFolder
from tpsl.run.schedule import Schedule
from tpsl.run.setup import RunSetup
from tpsl.run.stages import begin
from tpsl.run.stages.collect import STATISTIC, STATISTIC_HEAD
from tpsl.run.stages.farewell import FINISH
from tpsl.run.vaults import RunVault, VaultChoice
from tpsl.run.warm_start import StartingPoint
from tpsl.vault import NO_LIMITS, ReleasePolicy, Vault, VaultError

WIDTH = 8
FIELDS = 6
DATA = {"source": "synthetic", "rows": 1500, "numeric_fields": 3, "categorical_fields": 3, "signal": 3.0}
PRETRAIN = {"method": "masked", "epochs": 1}


def job(codes: bool = True, epsilon: float = 2.0, **changes: Any) -> Job:
    content = {
        "data": DATA,
        "privacy": {"epsilon": epsilon, "noise_seed": 1},
        "model": {"embedding_dim": 4, "bottom": [16, WIDTH], "top": [8]},
        "training": {"batch_size": 128, "epochs": 2, "checkpoint_every": 4, "validation": 0.1, "patience": 0},
        "statistic": {"share_codes": codes},
    }
    return make_job(content, changes, "test")


def weights(run: Path) -> dict[str, bytes]:
    """All that was learned and predicted, by its place in the run."""
    return {str(path.relative_to(run)): path.read_bytes() for path in sorted(run.glob("**/*.safetensors"))}


def test_each_label_leaves_once(tmp_path: Path) -> None:
    agreed = job()
    data = load(agreed.data)
    result = train(agreed, tmp_path / "run", data=data)
    schedule = Schedule(agreed, data.train, data.test)
    with Vault.open(tmp_path / "run" / "label" / "vault") as vault:
        ledger = vault.ledger()
        assert vault.verify() == []
    released = sorted((entry.kind, entry.details["records"]) for entry in ledger.entries if entry.epsilon)
    assert released == [("released", len(schedule.labelled)), ("statistic", len(schedule.statistic))]
    assert [len(part.released_under) for part in ledger.spent] == [1, 1]
    assert result.total_epsilon == result.epsilon <= 2.0
    assert result.total_delta == result.delta == 1e-6
    assert result.statistic_records == len(schedule.statistic)
    assert result.steps == schedule.total_steps == 0
    assert result.kept_epoch == result.epochs + 1
    kept = RunFolder(tmp_path / "run").metrics()[-1]
    assert (kept["head"], kept["test_auc"]) == ("statistic", result.test_auc)
    assert result.test_auc > 0.7


def test_without_a_hold_out_the_statistic_is_the_only_release(tmp_path: Path) -> None:
    result = train(job(training={"validation": 0.0}), tmp_path / "run")
    with Vault.open(tmp_path / "run" / "label" / "vault") as vault:
        assert [entry.kind for entry in vault.ledger().entries if entry.epsilon] == ["statistic"]
    assert result.mechanism == "gaussian statistic"
    assert result.test_auc > 0.7


def test_laplace_noise_promises_epsilon_alone(tmp_path: Path) -> None:
    result = train(job(codes=False, statistic={"noise": "laplace"}), tmp_path / "run")
    assert (result.total_delta, result.delta) == (0.0, 0.0)
    assert result.total_epsilon <= 2.0


def test_ten_classes(tmp_path: Path) -> None:
    result = train(job(data={**DATA, "classes": 10, "rows": 4000}, privacy={"epsilon": 8.0}), tmp_path / "run")
    assert result.classes == 10
    assert result.test_auc > 0.6


def test_what_the_label_party_does_not_permit_is_refused_before_anything_is_stored(tmp_path: Path) -> None:
    for limits, reason in (
        ({"max_epsilon": 1.9}, "ε = 2 in all, more than the ε = 1.9"),
        ({"max_delta": 1e-7}, "δ = 1e-06 in all, more than 1e-07"),
    ):
        choice = VaultChoice(tmp_path / "vault", policy=ReleasePolicy(**limits))
        with pytest.raises(ValueError, match=reason):
            train(job(privacy={"noise_seed": None}), tmp_path / "run", vault=choice)
    assert not Vault.exists(tmp_path / "vault")


def test_training_does_not_start_from_a_run_with_a_statistic(tmp_path: Path) -> None:
    train(job(), tmp_path / "run")
    setup = RunSetup(job(), RunFolder(tmp_path / "next"), start=StartingPoint(tmp_path / "run"))
    with pytest.raises(RunError, match="with a statistic"):
        train_together(setup, VaultChoice())


class Interrupted(Exception):
    pass


def interrupting(at: str) -> Watching:
    """Watching that ends the process at a notice."""

    def notice(text: str) -> None:
        if text.startswith(at):
            raise Interrupted

    return Watching(notice=notice)


@pytest.mark.parametrize("at", ["feature: ", "statistic of"], ids=["while pre-training", "after the release"])
def test_an_interrupted_run_ends_with_the_same_head_and_draws_nothing_twice(tmp_path: Path, at: str) -> None:
    agreed = job(training={"pretrain": PRETRAIN})
    train(agreed, tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(agreed, tmp_path / "broken", watching=interrupting(at))
    train(agreed, tmp_path / "broken")
    assert weights(tmp_path / "whole") == weights(tmp_path / "broken")
    metrics = [(tmp_path / run / "label" / "metrics.jsonl").read_bytes() for run in ("whole", "broken")]
    assert metrics[0] == metrics[1]
    with Vault.open(tmp_path / "broken" / "label" / "vault") as vault:
        assert sum(entry.kind == "statistic" for entry in vault.ledger().entries) == 1


def test_the_same_job_on_the_same_vault_costs_nothing_and_another_map_is_refused(tmp_path: Path) -> None:
    private = {"noise_seed": None}
    for run in ("one", "other"):
        train(job(privacy=private), tmp_path / run, vault=tmp_path / "vault")
    assert weights(tmp_path / "one") == weights(tmp_path / "other")
    with Vault.open(tmp_path / "vault") as vault:
        assert sum(entry.kind == "statistic" for entry in vault.ledger().entries) == 1
    with pytest.raises(ValueError, match="released before"):
        train(job(codes=False, privacy=private), tmp_path / "third", vault=tmp_path / "vault")


def test_flipped_labels_behind_the_same_statistic_change_no_byte(tmp_path: Path) -> None:
    result = replay(job(training={"pretrain": PRETRAIN}), tmp_path / "replay", seed=1)
    assert result.passed
    assert result.flipped > 500
    compared = {path.name for path in (tmp_path / "replay" / "before" / "label").iterdir()}
    assert STATISTIC_HEAD in compared


class Strict(AtHome):
    """Checks shapes as where questions come over a network."""

    def ask(self, method: str, step: int, part: int, said: Answers) -> Answers:
        assert self._due is not None
        for name, message in said.items():
            self._due.require(message, name)
        return super().ask(method, step, part, said)


def label_in(agreed: Job, tmp_path: Path) -> tuple[AtHome, RunFolder]:
    """Return a label party that can be asked anything, after a feature party without checkpoints has agreed."""
    side, run = load(agreed.data).label_side, RunFolder(tmp_path / "run")
    with run.started(agreed, ["label"]):
        setup = RunSetup(agreed, run)
        role = LabelRole(setup, side.records, RunVault(setup, side, run.label / "vault", NO_LIMITS))
    label = Strict(partial(begin, role), "float32")
    label.agree({"feature": Message()})
    return label, run


def hostile_parts() -> dict[str, list[torch.Tensor]]:
    """What no honest feature party sends of 1080 statistic's records, and what the label party says of it."""
    cut, width = torch.zeros(1080, WIDTH), FIELDS + WIDTH
    return {
        "contain numbers that are not finite": [torch.full((1080, width), torch.nan)],
        "are no codes": [torch.cat([torch.full((1080, FIELDS), -1.0), cut], dim=1)],
        "are no codes ": [torch.cat([torch.full((1080, FIELDS), 1.5), cut], dim=1)],
        "are no codes  ": [torch.cat([torch.full((1080, FIELDS), 2.0**24), cut], dim=1)],
        "have shape \\(1080, 7\\), not \\(1080, 8 to 1032\\)": [torch.zeros(1080, 7)],
        "have shape \\(1080, 1033\\), not \\(1080, 8 to 1032\\)": [torch.zeros(1080, 1033)],
        "have shape \\(7, 14\\), not \\(1080, 8 to 1032\\)": [torch.zeros(7, width)],
        "have shape \\(420, 13\\), not \\(420, 14\\)": [torch.zeros(1080, width), torch.zeros(420, width - 1)],
    }


@pytest.mark.parametrize("reason", hostile_parts())
def test_hostile_shares_are_refused(tmp_path: Path, reason: str) -> None:
    label, _ = label_in(job(), tmp_path)
    with pytest.raises(BadMessage, match=reason.strip()):
        for part, share in enumerate(hostile_parts()[reason]):
            label.ask(STATISTIC, 0, part, {"feature": Message(tensor=share)})
    assert not Vault.exists(tmp_path / "run" / "label" / "vault")


def test_vectors_aimed_at_one_record_are_bounded_and_nothing_comes_back(tmp_path: Path) -> None:
    """The strongest attack: all records but the target look alike, so that the statistic speaks of the target alone."""
    agreed = job(codes=False, epsilon=0.5)
    label, run = label_in(agreed, tmp_path)
    share = torch.zeros(1080, WIDTH)
    share[17] = 3e38
    questions = [(STATISTIC, 0, share), (STATISTIC, 1, torch.zeros(420, WIDTH)), (FINISH, 0, None), (FINISH, 1, None)]
    for method, part, tensor in questions:
        (answer,) = label.ask(method, 0, part, {"feature": Message(tensor=tensor)}).values()
        assert replace(answer, part=0) == Message()
    with Vault.open(run.label / "vault") as vault:
        (entry,) = [entry for entry in vault.ledger().entries if entry.kind == "statistic"]
    assert entry.epsilon <= 0.5 and entry.details["records"] == 1080
    head = load_file(run.label / STATISTIC_HEAD)
    assert head.pop("map.expansion.values").isnan().all()  # without codes the map reads numbers alone, and no cells
    assert all(torch.isfinite(tensor).all() for tensor in head.values() if tensor.is_floating_point())
    predicted = RunFolder(tmp_path / "run").predictions(1)
    assert np.isfinite(predicted["test"]).all()


def test_a_later_release_of_the_statistics_records_shows_in_the_result(tmp_path: Path) -> None:
    private = {"noise_seed": None}
    result = train(job(privacy=private, training={"validation": 0.0}), tmp_path / "run", vault=tmp_path / "vault")
    again = randomized_response(1.0)
    with Vault.open(tmp_path / "vault") as vault:
        vault.release(again, policy=ReleasePolicy(compose=True))
    now, _ = result_now(RunFolder(tmp_path / "run"), result)
    assert result.total_epsilon <= 2.0 < now.total_epsilon < result.total_epsilon + again.epsilon + 1e-9


@pytest.mark.parametrize("killed", [False, True], ids=["told", "killed right after the release"])
def test_a_run_releases_one_statistic_even_where_composing_is_permitted(tmp_path: Path, killed: bool) -> None:
    """A malicious feature party comes back after the release with other vectors, again and again."""
    agreed, run = job(privacy={"noise_seed": None}), RunFolder(tmp_path / "run")
    side = load(agreed.data).label_side
    setup, records = RunSetup(agreed, run), len(Schedule(agreed, side.records.train, side.records.test).statistic)
    first, other = (np.full((records, 2), number, np.int32) for number in (1, 2))

    noted: dict[Path, bytes] = {}

    def read(vectors: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the vectors; what the run has noted by then is all that it knows if it is killed after the release."""
        noted.update({path: path.read_bytes() for path in run.label.glob("*.json")})
        yield vectors

    def released(vectors: np.ndarray) -> np.ndarray:
        vault = RunVault(setup, side, tmp_path / "vault", ReleasePolicy(compose=True))
        return vault.statistic(2, read(vectors)).values

    with run.started(agreed, ["label"]):
        values = released(first)
        if killed:
            for path in run.label.glob("*.json"):
                path.write_bytes(noted[path]) if path in noted else path.unlink()
        with pytest.raises(VaultError, match="released before"):
            released(other)
        assert (released(first) == values).all()
    with Vault.open(tmp_path / "vault") as vault:
        assert [entry.kind for entry in vault.ledger().entries].count("statistic") == 1
