"""What was tried, what noisy labels make of it, and the folder of a search: the best candidate, the ensemble of all.

OUT/runs/          a run for each configuration
OUT/tune.json      the candidates; at the label party with their weights, their hold-out metrics and the ensemble's
OUT/best.yaml      the job of the best candidate; label party
OUT/release.json   a digest of the noisy labels that all runs share; label party
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator

from tpsl.data.sides import LabelRecords
from tpsl.files import for_json, write_atomically
from tpsl.model.predictors import mixture
from tpsl.model.trained import TUNE
from tpsl.run.evaluation import (
    TEST_METRICS,
    TestMetrics,
    Validation,
    ensemble_weights,
    noisy_validation,
    record_log_likelihoods,
)
from tpsl.run.job import Job, make_job
from tpsl.run.result import Epsilon
from tpsl.run.run_folder import RunFolder, read_note, write_note
from tpsl.run.schedule import held_out
from tpsl.run.stages import prepare
from tpsl.run.stages.prepare import PRETRAINED
from tpsl.run.vaults import ReleasedLabels
from tpsl.select.space import changed, describe
from tpsl.vault import NoisyLabels

NOT_EVALUATED: dict[str, Any] = dict.fromkeys(TEST_METRICS, math.nan)
_HEAD = "# Chosen by noisy labels alone. On those of {vault} this job gives the weights of the best candidate again.\n"


@dataclass(frozen=True)
class Trial:
    """One configuration of the space and its run."""

    name: str
    job: Job
    run: RunFolder

    @property
    def _mark(self) -> Path:
        return self.run.path / "diverged.txt"

    @property
    def has_diverged(self) -> bool:
        """Whether it ended before its last epoch, because its numbers were not finite any more."""
        return self._mark.exists()

    def mark_diverged(self, reason: str) -> None:
        """Note that it has diverged: none of its epochs is a candidate."""
        write_atomically(self._mark, reason.encode())

    def copy_shared(self, others: Sequence[Trial], parties: Sequence[str]) -> None:
        """Put into the folder of the run what other runs of the search have computed and it would compute again.

        Pre-trained weights depend on features, model, seed and method, and on no label; wide parts on features, the
        release, the seed and the hold-out.
        """
        for other in others:
            for file, _ in self._shared().items() & other._shared().items():
                for party in parties:
                    source, target = other.run.party(party) / file, self.run.party(party) / file
                    if source.exists() and not target.exists():  # a label party without features has no wide part
                        write_atomically(target, source.read_bytes())

    def _shared(self) -> dict[str, str]:
        """Return the files that a party computes before the first step, and what decides their content in a search."""
        key, job = pretraining_key(self.job), self.job
        return ({PRETRAINED: key} if key else {}) | ({prepare.WIDE: job.training.wire} if job.model.wide else {})


def pretraining_key(job: Job) -> str | None:
    """Return a name that jobs share exactly if their pre-trained weights are the same; None without pre-training."""
    if job.training.pretrain is None:
        return None
    agreed = job.without_wide_part().agreed()
    content = [agreed["data"], agreed["model"], agreed["training"]["seed"], agreed["training"]["pretrain"]]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:20]


def trials_of(jobs: Sequence[Job], out: Path) -> list[Trial]:
    """Return the trials of a space, whose runs are in the folder of the search."""
    runs = [RunFolder(out / "runs" / job.digest()[:20]) for job in jobs]
    return [Trial(*trial) for trial in zip(describe(jobs), jobs, runs, strict=True)]


@dataclass(frozen=True)
class Judged(Validation, TestMetrics):
    """What noisy labels of the hold-out say of a prediction: all that selection looks at. Test metrics choose nothing.

    They depend on true labels, are reported at the label party, and are NaN until they are evaluated.
    """


@dataclass(frozen=True)
class Candidate(Judged):
    """One epoch of one configuration."""

    number: int
    """Position of the configuration in the space."""
    configuration: str
    epoch: int
    run: str
    """Name of the folder of its run, which keeps the halves after each epoch."""
    weight: float
    """How much it counts in the ensemble."""


@dataclass(frozen=True)
class TuneResult:
    """All candidates, and what noisy labels make of them."""

    out: str
    mechanism: str
    epsilon: Epsilon
    """The ε of the one release, whatever the number of candidates."""
    delta: float
    total_epsilon: Epsilon
    """The largest ε that any training record has spent over all releases of the vault."""
    total_delta: float
    private: bool
    """False if any release of the training records had seeded noise or none."""
    vault: str
    job: Annotated[Job, BeforeValidator(lambda content: make_job(content, {}, "the best job"))]
    """The job of the best candidate, with its number of epochs: on the same vault it gives its weights again."""
    candidates: tuple[Candidate, ...]
    best: Candidate
    """The candidate under which the noisy labels are most likely."""
    ensemble: Judged
    """By the noisy labels that weighted it: a little too friendly."""
    diverged: tuple[str, ...]
    """Configurations that ended before their last epoch, because their numbers were not finite any more; no candidates.
    """

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-able data: null for an infinite ε, and for an AUC that noisy labels cannot tell."""
        content: dict[str, Any] = for_json(asdict(self) | {"job": self.job.model_dump(mode="json")})
        return content

    def untested(self) -> TuneResult:
        """Return it without what depends on true labels."""
        best, *candidates = (replace(each, **NOT_EVALUATED) for each in (self.best, *self.candidates))
        ensemble = replace(self.ensemble, **NOT_EVALUATED)
        return replace(self, best=best, candidates=tuple(candidates), ensemble=ensemble)


def compare(
    base: Job, trials: Sequence[Trial], records: LabelRecords, released: ReleasedLabels, out: Path
) -> TuneResult:
    """Compare every epoch of every trial by the noisy labels of held-out records; no true label is read."""
    found = [
        Candidate(
            number=number,
            configuration=trial.name,
            epoch=entry["epoch"],
            run=trial.run.path.name,
            weight=0.0,
            **{field.name: entry[field.name] for field in fields(Validation)},
            **NOT_EVALUATED,
        )
        for number, trial in enumerate(trials)
        for entry in ([] if trial.has_diverged else trial.run.metrics())
    ]
    if not found:
        raise ValueError("every configuration of the space diverged: try smaller learning rates")
    noisy, training = released.labels, trials[0].job.training
    hold_out = noisy.take(held_out(len(records.train), training.validation, training.seed))
    predicted = [trials[one.number].run.predictions(one.epoch)["validation"] for one in found]
    weights = ensemble_weights([record_log_likelihoods(hold_out.mechanism, hold_out.draws, p) for p in predicted])
    candidates = tuple(replace(one, weight=float(weight)) for one, weight in zip(found, weights, strict=True))
    best = max(candidates, key=lambda candidate: candidate.validation_log_likelihood)
    mixed = mixture((candidate.weight, p) for candidate, p in zip(candidates, predicted, strict=True))
    final = {"training": {"epochs": best.epoch, "head": base.training.head}}
    return TuneResult(
        out=str(out),
        mechanism=noisy.mechanism.name,
        epsilon=noisy.epsilon,
        delta=noisy.delta,
        total_epsilon=released.spent.epsilon,
        total_delta=released.spent.delta,
        private=released.spent.private,
        vault=str(released.origin),
        job=changed(trials[best.number].job, final, "the best job"),
        candidates=candidates,
        best=best,
        ensemble=Judged(**asdict(noisy_validation(hold_out.mechanism, hold_out.draws, mixed)), **NOT_EVALUATED),
        diverged=tuple(trial.name for trial in trials if trial.has_diverged),
    )


def check_release(out: Path, noisy: NoisyLabels) -> None:
    """Refuse a folder with runs on other noisy labels: their hold-out would be labels that they saw."""
    digest = hashlib.sha256(noisy.mechanism.digest.encode())
    for draw in noisy.draws:
        digest.update(np.ascontiguousarray(draw).tobytes())
    path, found = out / "release.json", {"sha256": digest.hexdigest()}
    if path.exists() and json.loads(path.read_text(encoding="utf-8")) != found:
        raise ValueError(f"{out}: holds runs on another release; choose another --out")
    write_atomically(path, json.dumps(found).encode())


def write_result(out: Path, result: TuneResult) -> None:
    """Write what the label party has found: the ensemble can predict, and the best job be trained again."""
    write_atomically(out / "best.yaml", (_HEAD.format(vault=result.vault) + result.job.to_yaml()).encode())
    write_note(out / TUNE, result)


def read_result(out: Path) -> TuneResult:
    """Return what the label party has found."""
    found = read_note(out / TUNE, TuneResult)
    if found is None:
        raise ValueError(f"{out / TUNE}: there is no result of a search")
    return found
