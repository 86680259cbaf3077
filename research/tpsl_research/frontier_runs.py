"""How a cell of the frontier is computed: tuned over a space, trained once, or learned from noisy labels alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tpsl.data.dataset import Dataset
from tpsl.data.features import Features, joined_features
from tpsl.data.order import Rows
from tpsl.data.sides import LabelSide
from tpsl.data.true_labels import reveal
from tpsl.files import for_json, write_atomically
from tpsl.handover.objective import NoisyTargets
from tpsl.handover.trees import LearnerRecords
from tpsl.mechanisms import build_mechanism
from tpsl.mechanisms.effective_labels import effective_labels
from tpsl.model.predictors import Probabilities, mixture
from tpsl.net.failures import BadMessage
from tpsl.net.messages import LABEL_PARTY
from tpsl.progress import no_notice
from tpsl.run.evaluation import TEST_METRICS, evaluate, record_log_likelihoods
from tpsl.run.job import Job, SearchStep, make_job
from tpsl.run.one_process import train, train_together
from tpsl.run.releases import noisy_labels_for
from tpsl.run.result import TrainResult
from tpsl.run.run_folder import RunFolder
from tpsl.run.schedule import held_out
from tpsl.run.setup import RunSetup
from tpsl.run.stages.prepare import PRETRAINED
from tpsl.run.vaults import ReleasedLabels
from tpsl.select.candidates import Judged, TuneResult, pretraining_key, trials_of
from tpsl.select.parallel import load_once
from tpsl.select.search import tune
from tpsl.select.space import changed, jobs_of
from tpsl.vault import NO_LIMITS, NoisyLabels
from tpsl_research.frontier_cells import (
    CEILING,
    JOINED_LOGISTIC,
    JOINED_TREES,
    NETWORK,
    TREES,
    Cell,
    Row,
    batch_size_for,
)
from tpsl_research.frontier_ensemble import Scores, write_scores
from tpsl_research.learners import Learned, boosted_trees, ensemble, logistic

_LEARNERS: dict[str, Callable[[LearnerRecords], Learned]] = {
    TREES: ensemble,
    JOINED_LOGISTIC: logistic,
    JOINED_TREES: partial(boosted_trees, plain=True),
}
_VAULT = "vault"
_FEWEST_LABELS = 100
_STEPS, _MOST_EPOCHS = 300, 10


@dataclass(frozen=True)
class Workplace:
    """Where the runs of a cell are, what cells share, what it leaves for `auto`, and where it is computed.

    `device` is for networks and statistics; trees and logistic regression stay on the cores.
    """

    work: Path
    pretrained: Path
    scores: Path
    device: torch.device | None = None


def as_one_result(row: Row) -> Row:
    """Return the row of a cell with one result: of candidates, that of their ensemble."""
    results = row["results"]
    return {**row, "results": {"run": results["ensemble"]} if "ensemble" in results else results}


def pretrained(job: Job, folder: Path, party: str) -> Path:
    """Return the file of a party's pre-trained weights, which the cells of a seed share."""
    return folder / str(pretraining_key(job)) / party / PRETRAINED


def compute(cell: Cell, base: Job, place: Workplace) -> Row:
    """Return what is found for a cell: `results` by rule, each with its test metrics, and how they came about."""
    job = cell.job(base)
    if cell.part == "local":
        return _local(job, place)
    if cell.algorithm == CEILING:
        return _ceiling(cell, job, place)
    if cell.algorithm in _LEARNERS:
        return _learned(cell, job, place)
    return _tuned(cell, job, place) if job.method == "network" else _trained(job, place)


def _tuned(cell: Cell, job: Job, place: Workplace, data: Dataset | None = None) -> Row:
    result = tune(RunSetup(job, RunFolder(place.work), device=place.device), cell.space(job.classes), data=data)
    if cell.algorithm == NETWORK and cell.epsilon is not None:
        noisy = _noisy(job, place)
        predicted = [
            (each.weight, RunFolder(place.work / "runs" / each.run).predictions(each.epoch))
            for each in result.candidates
        ]
        hold_out = noisy.take(held_out(len(load_once(job).train), job.training.validation, job.training.seed))
        said = record_log_likelihoods(
            hold_out.mechanism, hold_out.draws, mixture((weight, of["validation"]) for weight, of in predicted)
        )
        write_scores(place.scores, Scores(said, mixture((weight, of["test"]) for weight, of in predicted)))
    # Chosen by the test set: what a selection rule could reach at most. Not a selection rule.
    oracle = max(result.candidates, key=lambda candidate: candidate.test_auc)
    return {
        **_promised(result),
        "method": job.method,
        "results": {
            "best": {
                "configuration": result.best.configuration,
                "epoch": result.best.epoch,
                **_tested(result.best),
            },
            "ensemble": _tested(result.ensemble),
            "oracle": {"configuration": oracle.configuration, "epoch": oracle.epoch, **_tested(oracle)},
        },
        "candidates": result.as_dict()["candidates"],
        "diverged": list(result.diverged),
    }


def _tested(judged: Judged) -> dict[str, Any]:
    return {name: getattr(judged, name) for name in TEST_METRICS}


def tested_with_hold_out(cell: Cell, base: Job, row: Row, place: Workplace) -> Probabilities:
    """Return what a tuned cell's ensemble says of the test records once it is trained with its hold-out set, too."""
    job, every = cell.job(base), {"training": {"validation": 0.0}}
    data, released = load_once(job), _released(job, place)
    jobs = [changed(one, every, "a job without a hold-out") for one in jobs_of(job, cell.space(job.classes))]
    trials = trials_of(jobs, place.work / "with-hold-out")
    left = set[int]()
    for number, (trial, step) in enumerate(zip(trials, SearchStep.all(jobs), strict=True)):
        trial.copy_shared(trials, [*data.feature_parties, LABEL_PARTY])
        try:
            train_together(RunSetup(trial.job, trial.run, device=place.device, search=step), released, data)
            left.add(number)
        except BadMessage:  # it has diverged
            continue
    kept = [one for one in row["candidates"] if one["number"] in left]
    total = sum(one["weight"] for one in kept)
    return mixture((one["weight"] / total, trials[one["number"]].run.predictions(one["epoch"])["test"]) for one in kept)


def _noisy(job: Job, place: Workplace) -> NoisyLabels:
    return _released(job, place).labels


def _released(job: Job, place: Workplace) -> ReleasedLabels:
    """Return the noisy labels of a cell's experiment, whose vault is among its runs."""
    vault = place.work / _VAULT
    return ReleasedLabels(*noisy_labels_for(job, load_once(job).label_side, vault, no_notice, NO_LIMITS), vault)


def _trained(job: Job, place: Workplace) -> Row:
    result = _run(job, place)
    found = {name: getattr(result, name) for name in TEST_METRICS}
    return {**_promised(result), "method": job.method, "results": {"run": {"epoch": result.kept_epoch, **found}}}


def _local(job: Job, place: Workplace) -> Row:
    try:
        result = _run(job, place)
    except BadMessage as error:
        return {"results": {}, "diverged": [str(error)]}
    head = RunFolder(place.work).local_head()
    return {
        **_promised(result),
        "results": {"local": {"epoch": result.kept_epoch, **(head or {})}},
        "private_head_auc": for_json(result.test_auc),
        "diverged": [],
    }


def _run(job: Job, place: Workplace) -> TrainResult:
    data, run = load_once(job), RunFolder(place.work)
    with run.started(job, [*data.feature_parties, LABEL_PARTY]):
        for party in job.data.feature_parties:
            source, target = pretrained(job, place.pretrained, party), run.party(party) / PRETRAINED
            if source.exists() and not target.exists():
                write_atomically(target, source.read_bytes())
    return train(job, place.work, data=data, device=place.device)


def _promised(result: TrainResult | TuneResult) -> dict[str, Any]:
    return {"mechanism": result.mechanism, "exact_epsilon": for_json(result.epsilon), "delta": result.delta}


def _ceiling(cell: Cell, job: Job, place: Workplace) -> Row:
    """Train on as many clean labels as the noisy ones are worth: about what any learner can make of those."""
    data = load_once(job)
    mechanism, _ = build_mechanism("auto", data.classes, epsilon=cell.epsilon)
    counts = np.bincount(reveal(data.labels)[data.train], minlength=data.classes)
    worth = round(effective_labels(mechanism, counts.tolist()))
    if worth < _FEWEST_LABELS:
        raise ValueError(f"{len(data.train):,} noisy labels are worth {worth:,} clean ones, too few to train a network")
    kept = np.sort(np.random.default_rng(cell.seed).choice(data.train, worth, replace=False))
    batch = batch_size_for(worth)
    epochs = min(_MOST_EPOCHS, max(job.training.epochs, _STEPS * batch // worth))
    content = job.model_dump(mode="json", exclude_none=True)
    fewer = make_job(content, {"training": {"batch_size": batch, "epochs": epochs}}, cell.name)
    return {**_tuned(cell, fewer, place, _trained_on(data, kept)), "clean_labels": worth}


def _trained_on(data: Dataset, rows: Rows) -> Dataset:
    """Return the same data with these training records alone."""
    sides = {party: replace(side, train=rows) for party, side in data.feature_sides.items()}
    return Dataset(sides, LabelSide(replace(data.label_side.records, train=rows), data.labels))


def _learned(cell: Cell, job: Job, place: Workplace) -> Row:
    """Fit a learner on the noisy labels that the network of the same ε and seed gets, judged by the same records."""
    if cell.algorithm == TREES and (reason := job.needs_split_training()) is not None:
        raise ValueError(f"labels cannot be handed over: {reason}")
    data, training = load_once(job), job.training
    noisy = _noisy(job, place)
    features, targets = all_features(data), NoisyTargets(noisy.mechanism, noisy.draws)
    hold_out = held_out(len(data.train), training.validation, training.seed)
    fitted = _LEARNERS[cell.algorithm](LearnerRecords(features, data.train, targets, hold_out, cell.seed))
    tested = fitted.probabilities(features.take(data.test))
    said = record_log_likelihoods(noisy.mechanism, targets.take(hold_out).draws, fitted.predicted)
    if cell.algorithm == TREES:
        write_scores(place.scores, Scores(said, tested))
    found = evaluate(tested, reveal(data.labels)[data.test])
    return {
        "mechanism": noisy.mechanism.name,
        "exact_epsilon": for_json(noisy.epsilon),
        "delta": noisy.delta,
        "method": "trees" if cell.algorithm == TREES else "joined",
        "results": {
            "run": {
                "configuration": fitted.setting,
                "validation_log_likelihood": float(said.sum()),
                **asdict(found),
            }
        },
    }


def all_features(data: Dataset) -> Features:
    """Return the features of all parties side by side, as nobody could have them who trains with a split."""
    own = data.label_features
    parts = [*data.feature_parties.values(), *([] if own is None else [own])]
    ready = [part for part in parts if isinstance(part, Features)]
    if len(ready) < len(parts):
        raise ValueError("records that a party brings itself are read by its own network alone")
    return joined_features(ready)
