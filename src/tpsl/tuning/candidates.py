"""What was tried, and what noisy labels make of it: the best candidate, and the committee of all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from tpsl.data.sides import LabelRecords
from tpsl.files import for_json, write_atomically
from tpsl.model.predictors import mixture
from tpsl.training.evaluation import TEST_METRICS, TestMetrics
from tpsl.training.job import Job, make_job
from tpsl.training.noisy_metrics import Validation, committee_weights, noisy_validation, record_log_likelihoods
from tpsl.training.run_folder import RunFolder
from tpsl.training.schedule import held_out
from tpsl.training.vaults import ReleasedLabels
from tpsl.tuning.space import changed, describe

Metrics = TypeVar("Metrics", Validation, TestMetrics)
_NOT_EVALUATED = TestMetrics(**dict.fromkeys(TEST_METRICS, math.nan))


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


def trials_of(jobs: Sequence[Job], out: Path) -> list[Trial]:
    """Return the trials of a space, whose runs are in the folder of the search."""
    runs = [RunFolder(out / "runs" / job.digest()[:20]) for job in jobs]
    return [Trial(*trial) for trial in zip(describe(jobs), jobs, runs, strict=True)]


@dataclass(frozen=True)
class Candidate:
    """One epoch of one configuration."""

    number: int
    """Position of the configuration in the space."""
    configuration: str
    epoch: int
    run: str
    """Name of the folder of its run, which keeps the halves after each epoch."""
    validation: Validation
    """What noisy labels say: all that selection looks at."""
    test: TestMetrics
    """Depends on true labels: it is reported at the label party, and chooses nothing. NaN until they are evaluated."""
    weight: float
    """How much it counts in the committee."""

    def as_dict(self) -> dict[str, Any]:
        """Return one flat row."""
        described = {name: getattr(self, name) for name in ("number", "configuration", "epoch", "run", "weight")}
        return {**described, **asdict(self.validation), **asdict(self.test)}

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Candidate:
        """Rebuild what `as_dict` returned, after it was JSON."""
        described = {name: row[name] for name in ("number", "configuration", "epoch", "run", "weight")}
        return cls(**described, validation=_metrics(Validation, row), test=_metrics(TestMetrics, row))


@dataclass(frozen=True)
class TuneResult:
    """All candidates, and what noisy labels make of them."""

    out: str
    mechanism: str
    epsilon: float
    """The ε of the one release, whatever the number of candidates."""
    delta: float
    total_epsilon: float
    """The largest ε that any training record has spent over all releases of the vault."""
    total_delta: float
    private: bool
    """False if any release of the training records had seeded noise or none."""
    vault: str
    job: Job
    """The job of the best candidate, with its number of epochs: on the same vault it gives its weights again."""
    candidates: tuple[Candidate, ...]
    best: Candidate
    """The candidate under which the noisy labels are most likely."""
    committee: TestMetrics
    committee_validation: Validation
    """The committee judged by the noisy labels that weighted it: a little too friendly."""
    diverged: tuple[str, ...]
    """Configurations that ended before their last epoch, because their numbers were not finite any more; no candidates.
    """

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-able data: null for an infinite ε, and for an AUC that noisy labels cannot tell."""
        plain = ("out", "vault", "mechanism", "total_epsilon", "total_delta", "epsilon", "delta", "private", "diverged")
        content = {
            **{name: getattr(self, name) for name in plain},
            "best": self.best.as_dict(),
            "committee": {**asdict(self.committee_validation), **asdict(self.committee)},
            "candidates": [candidate.as_dict() for candidate in self.candidates],
            "job": self.job.model_dump(mode="json"),
        }
        return {name: for_json(value) for name, value in content.items()}

    def untested(self) -> TuneResult:
        """Return it without what depends on true labels."""
        best, *candidates = (replace(each, test=_NOT_EVALUATED) for each in (self.best, *self.candidates))
        return replace(self, best=best, candidates=tuple(candidates), committee=_NOT_EVALUATED)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> TuneResult:
        """Rebuild what `as_dict` returned, after it was JSON."""
        plain = ("out", "vault", "mechanism", "total_delta", "delta", "private")
        return cls(
            **{name: content[name] for name in plain},
            epsilon=_number(content["epsilon"], math.inf),
            total_epsilon=_number(content["total_epsilon"], math.inf),
            job=make_job(content["job"], {}, "the best job"),
            candidates=tuple(map(Candidate.from_dict, content["candidates"])),
            best=Candidate.from_dict(content["best"]),
            committee=_metrics(TestMetrics, content["committee"]),
            committee_validation=_metrics(Validation, content["committee"]),
            diverged=tuple(content["diverged"]),
        )


def _number(value: float | None, null: float = math.nan) -> float:
    return null if value is None else value


def _metrics(kind: type[Metrics], row: Mapping[str, Any]) -> Metrics:
    return kind(**{field.name: _number(row[field.name]) for field in fields(kind)})


def compare(
    base: Job, trials: Sequence[Trial], records: LabelRecords, released: ReleasedLabels, out: Path
) -> TuneResult:
    """Judge every epoch of every trial by the noisy labels of the held-out records; no true label is read."""
    candidates = _candidates(trials)
    if not candidates:
        raise ValueError("every configuration of the space diverged: try smaller learning rates")
    noisy, training = released.labels, trials[0].job.training
    judges = noisy.take(held_out(len(records.train), training.validation, training.seed))
    predicted = [trials[candidate.number].run.predictions(candidate.epoch) for candidate in candidates]
    weights = committee_weights(
        [record_log_likelihoods(judges.mechanism, judges.draws, found["validation"]) for found in predicted]
    )
    candidates = [replace(c, weight=float(weight)) for c, weight in zip(candidates, weights, strict=True)]
    best = max(candidates, key=lambda candidate: candidate.validation.validation_log_likelihood)
    weighted = [(candidate.weight, found) for candidate, found in zip(candidates, predicted, strict=True)]
    of_judges = mixture((weight, found["validation"]) for weight, found in weighted)
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
        candidates=tuple(candidates),
        best=best,
        committee=_NOT_EVALUATED,
        committee_validation=noisy_validation(judges.mechanism, judges.draws, of_judges),
        diverged=tuple(trial.name for trial in trials if trial.has_diverged),
    )


def _candidates(trials: Sequence[Trial]) -> list[Candidate]:
    """Return every epoch of every trial that has not diverged, not weighted yet."""
    found = []
    for number, trial in enumerate(trials):
        for entry in [] if trial.has_diverged else trial.run.metrics():
            judged = Validation(**{field.name: entry[field.name] for field in fields(Validation)})
            found.append(
                Candidate(number, trial.name, entry["epoch"], trial.run.path.name, judged, _NOT_EVALUATED, 0.0)
            )
    return found
