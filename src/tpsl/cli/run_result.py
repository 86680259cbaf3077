"""What commands print of a finished run or search: what was promised, how good it is, what to do next."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from tpsl.cli.console import Facts, Report, answer, from_here, slim_table, warn
from tpsl.files import for_json
from tpsl.net.messages import LABEL_PARTY
from tpsl.report import words
from tpsl.report.ledgers import RunLedger, result_now
from tpsl.run.evaluation import TestMetrics
from tpsl.run.job import Job
from tpsl.run.result import NOTHING_RELEASED, TrainResult
from tpsl.run.run_folder import RunFolder
from tpsl.vault.cost import is_large_delta

if TYPE_CHECKING:
    from tpsl.handover.learning import LearnResult
    from tpsl.select.candidates import TuneResult


def show_result(path: Path, result: TrainResult, json: bool, *, evaluated: bool = True) -> None:
    """Print the label party's result of the run at `path`, with that of its local head if there is one.

    A result that is not `evaluated` says nothing of true labels, but how they are evaluated.
    """
    run = RunFolder(path)
    job, origin, (result, ledger) = run.job(), run.origin(LABEL_PARTY), result_now(run, result)
    content, facts = {**result.as_dict(), **ledger.known()}, Facts(run=run.path)
    if origin:
        content["origin"] = for_json(asdict(origin))
        spent = f", {words.spent_text(origin.released.epsilon, 0.0)} in all" if origin.released else ""
        records = f"{words.records_text(origin.train_records)}{spent}"
        facts["starts from"] = f"{from_here(origin.run)} ({records}; their labels are in these weights too)"
    facts |= {**_promise(run, result, ledger), **_hold_out(result)}
    if evaluated:
        facts |= _test(result)
        if local := run.local_head():
            content["local_head"] = local
            facts["local head AUC"] = f"{local['test_auc']:.4f} (NOT PRIVATE, stays with the label party)"
    speed = f", {result.samples_per_second:,.0f} samples/s" if result.steps else ""
    headline = f"Trained on {words.records_text(result.train_records)} in {result.seconds:,.1f} s{speed}"
    if job.hands_over and not result.epochs:
        headline = f"Handed over {result.train_records:,} noisy labels, on which the feature party trains alone"
    answer(json, content, Report(headline, facts, _next_steps(run, job, result, evaluated)))


def _promise(run: RunFolder, result: TrainResult, ledger: RunLedger) -> Facts:
    """What was released, what that promises, and the vault whose ledger says so."""
    if result.mechanism == NOTHING_RELEASED:
        return {"guarantee": "ε = 0: nothing was released, the feature parties got nothing back"}
    noise, noted = result.mechanism, run.noted_ledger()
    if result.statistic_records < result.train_records:  # the others have noisy labels
        noise += f", estimator {result.estimator}" + (f", {result.draws} draws of each" if result.draws > 1 else "")
    large = f". {words.LARGE_DELTA_TEXT}" if is_large_delta(result.total_delta, result.train_records) else ""
    total = words.spent_text(result.total_epsilon, result.total_delta)
    return {
        "mechanism": noise,
        "guarantee": words.guarantee_text(result) + large,
        "vault": from_here(noted.vault) if noted else None,
        "of the vault": "; ".join(words.vault_texts(ledger, total)),
        "scratch run": "its vault counts in no total, and nothing of it may leave" if run.is_scratch else None,
    }


def _hold_out(result: TrainResult) -> Facts:
    from tpsl.run.evaluation import TOO_FEW

    statistic, area = result.statistic_records, None
    if math.isfinite(result.validation_auc):
        interval = f"95 % interval {result.validation_auc_low:.2f} to {result.validation_auc_high:.2f}"
        area = f"{result.validation_auc:.2f}, {interval} (estimated from noisy labels)"
    elif math.isfinite(result.validation_loss) and result.classes == 2:
        area = f"– ({TOO_FEW})"
    chosen = not statistic and result.kept_epoch != result.epochs
    return {
        "private head": f"fitted on noisy statistics of {statistic:,} labels" if statistic else None,
        "epoch kept": f"{result.kept_epoch} of {result.epochs}" if chosen else None,
        "hold-out AUC": area,
    }


def _test(result: TrainResult) -> Facts:
    from tpsl.metrics import no_better_than_guessing

    if math.isnan(result.test_log_loss):
        return {"test AUC": "– (no true label of a test record is known here)" if result.epochs else None}
    interval = f"95 % interval {result.test_auc_low:.4f} to {result.test_auc_high:.4f}"
    guesses = no_better_than_guessing(result.test_auc_low)
    has_none = math.isnan(result.test_auc)
    return {
        "test AUC": "– (it needs test records of two classes)" if has_none else f"{result.test_auc:.4f}, {interval}",
        "verdict": "no better than guessing: the interval of the test AUC reaches 0.5" if guesses else None,
        "test log loss": f"{result.test_log_loss:.4f}, calibration error {result.test_calibration_error:.4f}",
    }


def _next_steps(run: RunFolder, job: Job, result: TrainResult, evaluated: bool) -> dict[str, str]:
    if not evaluated:  # what depends on true labels is not computed by a process that a peer can see
        what = "test metrics and local head" if job.training.head == "local" else "test metrics"
        return {} if job.hands_over else {what: f"tpsl label evaluate {run.path}"}
    parties = job.data.feature_parties
    if math.isnan(result.test_log_loss):  # at a feature party, which has no label to look at
        records = " ".join(f"--records {party}=new.csv" for party in parties)
        return {"score new records": f"tpsl predict {run.path} {records} --out scores.csv"} if result.epochs else {}
    recorded = all((run.party(party) / "transcript").is_dir() for party in parties)
    attack = {"play the attacker": f"tpsl attack {run.path}"} if recorded else {}
    return {"see it as a page": f"tpsl report {run.path}", **attack}


def show_learned(result: LearnResult, party: str, json: bool) -> None:
    """Print what a learner has made of noisy labels that were handed over."""
    guarantee = words.spent_text(result.epsilon, result.delta) + ("" if result.private else "  (NOT PRIVATE)")
    facts: Facts = {"run": Path(result.out), "guarantee": guarantee, **words.learned_texts(result)}
    steps = {"score new records": f"tpsl predict {result.out} --records {party}=new.csv --out scores.csv"}
    answer(json, result.as_dict(), Report(f"Learned from {result.records:,} noisy labels", facts, steps))


def show_tuned(result: TuneResult, out: Path, json: bool, steps: Mapping[str, str] = MappingProxyType({})) -> None:
    """Print what a search has found, and how its ensemble is used; `steps` are what to do before that."""
    for name in result.diverged:
        warn(f"{name}: diverged, so that it is no candidate")
    best, searched = result.best, len({candidate.configuration for candidate in result.candidates})
    facts: Facts = {
        "best by noisy labels": f"{best.configuration}, epoch {best.epoch}",
        "its test AUC": _auc(best),
        "ensemble": f"of all by weight: test AUC {_auc(result.ensemble)}",
        "guarantee": f"{words.guarantee_text(result)}: one release for all of them",
        "the best job": out / "best.yaml",
    }
    then = {"train the best job": f"tpsl train {out / 'best.yaml'}", "see it as a page": f"tpsl report {out}"}
    headline = f"Searched {searched} configurations on one release"
    answer(json, result.as_dict(), Report(headline, facts, {**steps, **then}, [_candidates(result)]))


def _candidates(result: TuneResult) -> Table:
    numbers = ("epoch", "noisy validation loss", "weight", "test AUC")
    rows = []
    for each in result.candidates:
        loss = f"{each.validation_loss:.4f} ± {each.validation_loss_se:.4f}"
        cells = (each.configuration, str(each.epoch), loss, f"{each.weight:.3f}", _auc(each))
        rows.append([Text(cell, "bold" if each == result.best else "") for cell in cells])
    return slim_table(("configuration", *numbers), rows, numbers=numbers)


def _auc(metrics: TestMetrics) -> str:
    return words.auc_text(for_json(metrics.test_auc))  # none where no true label of a test record is known here
