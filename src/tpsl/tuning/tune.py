"""Free model selection: train a small space of configurations on one release, and let noisy labels choose.

Every epoch of every configuration is a candidate. Candidates are compared by the noisy labels of held-out records
alone, which are released already: however many are tried, the vault's ledger does not change, and what is chosen may
cross the border. There are two answers: the `best` candidate, and the `committee` of all of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tpsl.data.dataset import Dataset
from tpsl.data.true_labels import reveal
from tpsl.files import for_json, make_private_folder, write_atomically
from tpsl.progress import Notice, Progress, no_notice, no_progress
from tpsl.training.evaluation import TestMetrics, evaluate
from tpsl.training.job import Job
from tpsl.training.loop import train
from tpsl.training.releases import noisy_labels_for
from tpsl.training.run_folder import RunFolder
from tpsl.training.schedule import held_out
from tpsl.training.setup import RunSetup
from tpsl.training.validation import Validation, noisy_validation, record_log_likelihoods
from tpsl.training.vaults import VaultChoice, choose_vault
from tpsl.transport import BadMessage
from tpsl.tuning.committee import Committee, committee_weights
from tpsl.tuning.pool import Task, load_once, run_tasks
from tpsl.tuning.pretrained import hand_over, prepare_pretrained, pretraining_key
from tpsl.tuning.space import MANY_CLASSES_SPACE, RECOMMENDED_SPACE, changed, describe, jobs_of
from tpsl.tuning.wide_parts import hand_over_wide_parts, prepare_wide_parts
from tpsl.vault import NO_LIMITS, LedgerTotal, NoisyLabels, ReleasePolicy, Vault

_DIVERGED = "diverged.txt"


@dataclass(frozen=True)
class Candidate:
    """One epoch of one configuration."""

    number: int
    """Position of the configuration in the space."""
    configuration: str
    epoch: int
    validation: Validation
    """What noisy labels say: all that selection looks at."""
    test: TestMetrics
    """Depends on true labels: it is reported at the label party, and chooses nothing."""
    weight: float
    """How much it counts in the committee."""

    def as_dict(self) -> dict[str, Any]:
        """Return one flat row."""
        described = {name: getattr(self, name) for name in ("number", "configuration", "epoch", "weight")}
        return {**described, **asdict(self.validation), **asdict(self.test)}


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
    """Configurations that ended before their last epoch, because their numbers were not finite any more."""

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-able data; an infinite ε becomes null, because JSON has no infinity."""
        plain = ("out", "vault", "mechanism", "total_epsilon", "total_delta", "epsilon", "delta", "private", "diverged")
        return {
            **{name: for_json(getattr(self, name)) for name in plain},
            "best": self.best.as_dict(),
            "committee": {**asdict(self.committee_validation), **asdict(self.committee)},
            "candidates": [candidate.as_dict() for candidate in self.candidates],
            "job": self.job.model_dump(mode="json"),
        }


def tune(
    base: Job,
    space: Sequence[Mapping[str, Any]] | None,
    out: Path,
    *,
    vault: Path | None = None,
    place: Path | None = None,
    policy: ReleasePolicy = NO_LIMITS,
    data: Dataset | None = None,
    workers: int = 1,
    device: torch.device | None = None,
    pretrained: Path | None = None,
    progress: Progress = no_progress,
    notice: Notice = no_notice,
) -> TuneResult:
    """Train every configuration of the space (changes to the base job; None: ours) on one release, and compare them.

    Guarantee: labels are released once, and everything else is post-processing of that release. The vault is found as
    `tpsl.training.train` finds it; with neither `vault` nor `place` it is `out/vault`, an experiment's own. Test
    metrics depend on true labels and choose nothing. A job without a hold-out gets one of a tenth. Runs that are done
    in `out` are not repeated. `data` must be what the job's data part loads; other workers load it by themselves.
    `pretrained` is a folder of pre-trained weights to share with others.

    Writes `out/tune.json` and `out/best.yaml`, the job of the best candidate.
    """
    if space is None:
        data = load_once(base.data) if data is None else data
        space = RECOMMENDED_SPACE if data.classes == 2 else MANY_CLASSES_SPACE
    jobs = jobs_of(base, space)
    names = describe(jobs)
    data = load_once(jobs[0].data) if data is None else data
    if vault is None and (place is None or Vault.exists(out / "vault")):
        vault = out / "vault"
    choice = VaultChoice(vault, place, policy)
    vault = choose_vault(RunSetup(jobs[0], RunFolder(out)), data.label_side, choice).path
    pretrained = out / "pretrained" if pretrained is None else pretrained
    # The release comes first: workers that open the vault at the same time then only read it.
    make_private_folder(out)
    noisy, total = noisy_labels_for(jobs[0], data.label_side, vault, notice, policy)
    _check_release(out, noisy)
    runs = [out / "runs" / job.digest()[:20] for job in jobs]
    own_data = data if workers == 1 else None
    tasks = []
    for key, job in {pretraining_key(job): job for job in jobs}.items():
        if key is not None:
            tasks.append(Task(f"pre-training {key}", partial(_pretrain, job, pretrained, device, own_data)))
    for wire, job in {job.training.wire: job for job in jobs if job.model.wide}.items():
        tasks.append(Task(_wide_task(wire), partial(_fit_wide_parts, job, out, vault, own_data)))
    for job, name, run in zip(jobs, names, runs, strict=True):
        needs = frozenset({f"pre-training {pretraining_key(job)}"})
        needs |= {_wide_task(job.training.wire)} if job.model.wide else set()
        tasks.append(Task(name, partial(_train, job, run, vault, pretrained, out / "wide", device, own_data), needs))
    progress(0, len(tasks), "")
    for done, name in enumerate(run_tasks(tasks, workers), 1):
        progress(done, len(tasks), name)
    result = _compare(base, jobs, names, runs, data, _Released(noisy, total, vault), out)
    write_atomically(out / "tune.json", json.dumps(result.as_dict(), indent=1).encode())
    write_atomically(out / "best.yaml", (_HEAD.format(vault=vault) + result.job.to_yaml()).encode())
    return result


_HEAD = "# Chosen by noisy labels alone. On the vault {vault} this job gives the weights of the best candidate again.\n"


def _check_release(out: Path, noisy: NoisyLabels) -> None:
    """Refuse a folder with runs on other noisy labels: their candidates would be judged by labels they saw."""
    digest = hashlib.sha256(noisy.mechanism.digest.encode())
    for draw in noisy.draws:
        digest.update(np.ascontiguousarray(draw).tobytes())
    path, found = out / "release.json", {"sha256": digest.hexdigest()}
    if path.exists() and json.loads(path.read_text(encoding="utf-8")) != found:
        raise ValueError(f"{out}: holds runs on another release; choose another --out")
    write_atomically(path, json.dumps(found).encode())


def _pretrain(job: Job, folder: Path, device: torch.device | None, data: Dataset | None) -> None:
    prepare_pretrained(job, load_once(job.data) if data is None else data, folder, device)


def _wide_task(wire: str) -> str:
    return f"wide part, estimates in {wire}"


def _fit_wide_parts(job: Job, out: Path, vault: Path, data: Dataset | None) -> None:
    data = load_once(job.data) if data is None else data
    noisy, _ = noisy_labels_for(job, data.label_side, vault, no_notice)
    prepare_wide_parts(job, data, noisy, out / "wide")


def _train(
    job: Job, run: Path, vault: Path, pretrained: Path, wide: Path, device: torch.device | None, data: Dataset | None
) -> None:
    """Train one configuration, unless it is finished; numbers that are not finite end it."""
    if (run / _DIVERGED).exists():
        return
    data = load_once(job.data) if data is None else data
    hand_over(job, data, pretrained, RunFolder(run))
    hand_over_wide_parts(job, data, wide, RunFolder(run))
    try:
        train(job, run, vault=vault, data=data, device=device)
    except BadMessage as error:
        # The learning rate is too large for this much noise. The epochs before are candidates all the same.
        write_atomically(run / _DIVERGED, str(error).encode())


@dataclass(frozen=True)
class _Released:
    noisy: NoisyLabels
    total: LedgerTotal
    vault: Path


def _compare(
    base: Job,
    jobs: Sequence[Job],
    names: Sequence[str],
    runs: Sequence[Path],
    data: Dataset,
    released: _Released,
    out: Path,
) -> TuneResult:
    noisy = released.noisy
    candidates = []
    for number, (name, run) in enumerate(zip(names, runs, strict=True)):
        for entry in RunFolder(run).metrics():
            judged = Validation(**{field.name: entry[field.name] for field in fields(Validation)})
            test = TestMetrics(**{field.name: entry[field.name] for field in fields(TestMetrics)})
            candidates.append(Candidate(number, name, entry["epoch"], judged, test, 0.0))
    if not candidates:
        raise ValueError("every configuration of the space diverged in its first epoch: try smaller learning rates")
    judges = noisy.take(held_out(len(data.train), jobs[0].training.validation, jobs[0].training.seed))
    predicted = [RunFolder(runs[candidate.number]).predictions(candidate.epoch) for candidate in candidates]
    weights = committee_weights(
        [record_log_likelihoods(judges.mechanism, judges.draws, found["validation"]) for found in predicted]
    )
    candidates = [replace(c, weight=float(weight)) for c, weight in zip(candidates, weights, strict=True)]
    best = max(candidates, key=lambda candidate: candidate.validation.validation_log_likelihood)
    members = {"validation": Committee(), "test": Committee()}
    for candidate, found in zip(candidates, predicted, strict=True):
        for records, committee in members.items():
            committee.add(candidate.weight, found[records])
    final = {"training": {"epochs": best.epoch, "head": base.training.head}}
    return TuneResult(
        out=str(out),
        mechanism=noisy.mechanism.name,
        epsilon=noisy.epsilon,
        delta=noisy.delta,
        total_epsilon=released.total.epsilon,
        total_delta=released.total.delta,
        private=released.total.private,
        vault=str(released.vault),
        job=changed(jobs[best.number], final, "the best job"),
        candidates=tuple(candidates),
        best=best,
        committee=evaluate(members["test"].predict(), reveal(data.labels)[data.test]),
        committee_validation=noisy_validation(judges.mechanism, judges.draws, members["validation"].predict()),
        diverged=tuple(name for name, run in zip(names, runs, strict=True) if (run / _DIVERGED).exists()),
    )
