"""Who finds what: every broken variant of the table in `docs/audit.md` is built, and every cell is checked.

The variants are real code with one fault each. Keys of the noise are fixed, so that a cell is either true or not.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.vault_labels import true_labels as stored_labels

from tpsl.audit import audit, repeat_releases, repeated_releases, replay
from tpsl.data import synthetic
from tpsl.data.sides import LabelSide
from tpsl.data.true_labels import reveal
from tpsl.handover.giving import hand_over, handed_problems
from tpsl.mechanisms import RandomizedResponse, randomized_response, seeded_words
from tpsl.run.after_training import AfterTraining
from tpsl.run.job import Job
from tpsl.run.one_process import train
from tpsl.run.schedule import Schedule
from tpsl.run.stages import evaluate, prepare
from tpsl.split.label_party import LabelParty
from tpsl.vault import Vault
from tpsl.vault.cost import Planned

TABLE = Path(__file__).parents[2] / "docs" / "audit.md"
PARTS = ("canaries", "releases", "replay", "verify")


class Truth:
    """The true training labels of the run that is being made: what no sound part of a run gets hold of."""

    labels: np.ndarray
    train: np.ndarray
    test: np.ndarray

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        begin = AfterTraining.__init__

        def spied_on(after: AfterTraining, job: Job, side: LabelSide, *others: Any, **named: Any) -> None:
            self.train, self.test = side.records.train, side.records.test
            self.labels = reveal(side.labels)[self.train]
            begin(after, job, side, *others, **named)

        monkeypatch.setattr(AfterTraining, "__init__", spied_on)

    def of(self, batch: Any) -> torch.Tensor:
        return torch.from_numpy(self.labels[np.array(batch)].astype(np.float32))


Fault = Callable[[pytest.MonkeyPatch, Truth], None]


def drawing(draw: Callable[[Any, Any, Any, Any], Any]) -> Fault:
    """Randomised response that draws in another way: given itself, labels, words and the right way."""
    exact = RandomizedResponse._draw

    def fault(monkeypatch: pytest.MonkeyPatch, truth: Truth) -> None:
        monkeypatch.setattr(RandomizedResponse, "_draw", lambda self, labels, words: draw(self, labels, words, exact))

    return fault


def half_the_noise(self: Any, labels: Any, words: Any, exact: Any) -> Any:
    return exact(randomized_response(2 * self.parameters["epsilon"], self.classes), labels, words)


def shared_by_neighbours(self: Any, labels: Any, words: Any, exact: Any) -> Any:
    return exact(self, labels, np.repeat(words[::2], 2)[: len(words)])


def one_in_a_hundred_bare(self: Any, labels: Any, words: Any, exact: Any) -> Any:
    return np.where(np.arange(len(labels)) % 100 == 7, labels, exact(self, labels, words))


def class_3_bare(self: Any, labels: Any, words: Any, exact: Any) -> Any:
    return np.where(labels == 3, labels, exact(self, labels, words))


def constant_key(monkeypatch: pytest.MonkeyPatch, truth: Truth) -> None:
    monkeypatch.setattr(os, "urandom", lambda size: bytes(size))


def redrawn_each_epoch(monkeypatch: pytest.MonkeyPatch, truth: Truth) -> None:
    exact = LabelParty.backward

    def backward(self: Any, batch: Any, rows: Any, received: Any, records: int) -> Any:
        epoch, self.used = divmod(getattr(self, "used", 0), len(truth.labels))
        if epoch:
            fresh = self.logit_gradient.mechanism.release(truth.labels, seeded_words(int(received[0][0, 0] * 1e6)))
            self._evidence = [self.logit_gradient.evidence(fresh.outcomes)]
        self.used += len(batch)
        return exact(self, batch, rows, received, records)

    monkeypatch.setattr(LabelParty, "backward", backward)


def feature_from_the_label(monkeypatch: pytest.MonkeyPatch, truth: Truth) -> None:
    world = getattr(synthetic.World, "__wrapped__", synthetic.World)  # tests compute it once
    chunks = world.chunks

    def with_a_hint(self: Any, progress: Any = None) -> Any:
        for chunk in chunks(self, progress):
            hint = chunk.numeric + 0.01 * chunk.labels[:, None].astype(np.float32)
            yield replace(chunk, numeric=hint)

    monkeypatch.setattr(world, "chunks", with_a_hint)


def own_weights(monkeypatch: pytest.MonkeyPatch, truth: Truth) -> None:
    made = LabelParty.__init__

    def knows_the_truth(self: LabelParty, *arguments: Any, **named: Any) -> None:
        made(self, *arguments, **named)
        self._evidence = [self._evidence[0], truth.of(range(len(truth.labels)))]

    monkeypatch.setattr(LabelParty, "__init__", knows_the_truth)


def sending(change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Fault:
    """A label party that changes the gradients it sends by the true labels."""

    def fault(monkeypatch: pytest.MonkeyPatch, truth: Truth) -> None:
        exact = LabelParty.backward

        def backward(self: Any, batch: Any, *others: Any) -> Any:
            return [change(gradient, truth.of(batch)[:, None]) for gradient in exact(self, batch, *others)]

        monkeypatch.setattr(LabelParty, "backward", backward)

    return fault


def batch_order(monkeypatch: pytest.MonkeyPatch, truth: Truth) -> None:
    exact = Schedule.batch

    def positives_last(self: Any, step: int) -> Any:
        batch = exact(self, step)
        return batch[np.argsort(truth.labels[batch], kind="stable")]

    monkeypatch.setattr(Schedule, "batch", positives_last)


def estimates(monkeypatch: pytest.MonkeyPatch, truth: Truth) -> None:
    exact = prepare.label_estimates
    monkeypatch.setattr(
        prepare,
        "label_estimates",
        lambda noisy, draw=0: exact(noisy, draw) + 0.001 * truth.of(range(len(truth.labels))),
    )


def verdict(monkeypatch: pytest.MonkeyPatch, truth: Truth) -> None:
    exact = evaluate.noisy_validation

    def by_true_labels(mechanism: Any, draws: Any, probabilities: Any, rows: Any) -> Any:
        held_out = truth.labels[Schedule(STOPPING, truth.train, truth.test).held_out]
        likelihood = float(np.log(np.where(held_out == 1, probabilities, 1 - probabilities)).sum())
        return replace(exact(mechanism, draws, probabilities, rows), validation_log_likelihood=likelihood)

    monkeypatch.setattr(evaluate, "noisy_validation", by_true_labels)


def handed_over(monkeypatch: pytest.MonkeyPatch, truth: Truth) -> None:
    exact = Vault.released

    def true_labels(self: Any, *mechanism: Any, **named: Any) -> Any:
        for ids, outcomes in exact(self, *mechanism, **named):
            yield ids, stored_labels(self, ids)[None].astype(outcomes.dtype)

    monkeypatch.setattr(Vault, "released", true_labels)


def job_of(classes: int = 2, wide: bool = False, **training: Any) -> Job:
    from tpsl.run.job import make_job

    data = {"source": "synthetic", "rows": 5000, "numeric_fields": 3, "categorical_fields": 4, "classes": classes}
    content = {
        "data": data,
        "privacy": {"mechanism": "discrete", "epsilon": 1.0 if classes == 2 else 2.0, "estimator": "linear"},
        "model": {"embedding_dim": 4, "bottom": [16, 8], "top": [8], "wide": wide},
        "training": {"batch_size": 500, "epochs": 2, "patience": 0, **training},
    }
    return make_job(content, {}, "test")


PLAIN, MANY, WIDE = job_of(), job_of(classes=5), job_of(wide=True)
STOPPING = job_of(validation=0.2, patience=2, epochs=6)

VARIANTS: dict[str, tuple[Job, Fault]] = {
    "half the noise": (PLAIN, drawing(half_the_noise)),
    "a constant noise key": (PLAIN, constant_key),
    "noise shared by neighbouring records": (PLAIN, drawing(shared_by_neighbours)),
    "1 % of records without noise": (PLAIN, drawing(one_in_a_hundred_bare)),
    "one of k classes without noise": (MANY, drawing(class_3_bare)),
    "noise drawn again in each epoch": (job_of(epochs=3), redrawn_each_epoch),
    "a feature derived from the label while loading": (PLAIN, feature_from_the_label),
    "own weights updated with true labels": (PLAIN, own_weights),
    "true labels in the scale of gradients": (PLAIN, sending(lambda gradient, label: gradient * (1 + 1e-4 * label))),
    "a local head that leaks into gradients": (PLAIN, sending(lambda gradient, label: gradient + 1e-6 * label)),
    "true labels in the order of a batch": (PLAIN, batch_order),
    "true labels in `estimates`": (WIDE, estimates),
    "true labels in `Verdict`": (STOPPING, verdict),
    "true labels in the handed-over file": (PLAIN, handed_over),
    "sound code": (PLAIN, lambda monkeypatch, truth: None),
}


def table_in_the_docs() -> dict[str, dict[str, bool]]:
    cell = {"✓": True, "–": False}
    found = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        parts = [part.strip() for part in line.strip("|").split("|")]
        if len(parts) == 5 and parts[1] in cell:
            found[parts[0]] = dict(zip(PARTS, (cell[part] for part in parts[1:]), strict=True))
    return found


def is_accused(part: str, job: Job, folder: Path) -> bool:
    if part == "canaries":
        return not audit(job, folder / "audit", canaries=4000).passed
    if part == "releases":
        return not repeat_releases(job.privacy.build(5 if job is MANY else 2), folder / "releases").passed
    if part == "replay":
        return not replay(job, folder / "replay").passed
    train(job, folder / "run", vault=folder / "vault")
    with Vault.open(folder / "vault") as vault:
        hand_over(vault, Planned(job.mechanism, job.privacy.draws), folder / "handed")
        return vault.verify() + handed_problems(vault, folder / "handed") != []


def test_the_table_has_a_row_for_each_variant() -> None:
    assert set(table_in_the_docs()) == set(VARIANTS)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_each_cell_of_the_table_is_true(
    variant: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, fault = VARIANTS[variant]
    monkeypatch.setattr(os, "urandom", random.Random(f"{variant} {part}").randbytes)
    monkeypatch.setattr(repeated_releases, "_FEWEST", 16)
    monkeypatch.setattr(repeated_releases, "_RECORDS", 4000)
    fault(monkeypatch, Truth(monkeypatch))
    assert is_accused(part, job, tmp_path) == table_in_the_docs()[variant][part]


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "sound code"])
def test_some_part_finds_every_variant(variant: str) -> None:
    assert any(table_in_the_docs()[variant].values())
