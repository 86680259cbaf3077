"""What a command prints of a finished run: what was promised, how good it is, what to do next."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tpsl.cli.console import Facts, Report, answer, from_here
from tpsl.files import for_json

if TYPE_CHECKING:
    from tpsl.report.ledgers import RunLedger
    from tpsl.training.job import Job
    from tpsl.training.result import Origin, TrainResult
    from tpsl.training.run_folder import RunFolder


def show_result(path: Path, result: TrainResult, json: bool, *, evaluated: bool = True) -> None:
    """Print the label party's result of the run at `path`, with that of its local head if there is one.

    A result that is not `evaluated` says nothing of true labels, but how they are evaluated.
    """
    from tpsl.net.peers import LABEL_PARTY
    from tpsl.report.ledgers import result_now
    from tpsl.training.run_folder import RunFolder

    run = RunFolder(path)
    job, origin, (result, ledger) = run.job(), run.origin(LABEL_PARTY), result_now(run, result)
    local = run.local_head() if evaluated else None
    steps = _next_steps(run, result) if evaluated else _evaluation(run, job)
    facts = {
        "run": run.path,
        **({"starts from": _starts_from(origin)} if origin else {}),
        **_promise(run, result, ledger),
        **_quality(result),
        **(_test_quality(result) if evaluated else {}),
        **({"local head AUC": f"{local['test_auc']:.4f} (NOT PRIVATE, stays with the label party)"} if local else {}),
    }
    content = {**result.as_dict(), **ledger.facts, **({"local_head": local} if local else {})}
    if origin:
        content["origin"] = for_json(asdict(origin))
    answer(json, content, Report(_headline(job, result), facts, steps))


def _headline(job: Job, result: TrainResult) -> str:
    from tpsl.report.words import records_text

    if job.hands_over and not result.epochs:
        return f"Handed over {result.train_records:,} noisy labels, on which the feature party trains alone"
    speed = f", {result.samples_per_second:,.0f} samples/s" if result.steps else ""
    return f"Trained on {records_text(result.train_records)} in {result.seconds:,.1f} s{speed}"


def _starts_from(origin: Origin) -> str:
    from tpsl.report.words import records_text, spent_text

    spent = f", {spent_text(origin.released.epsilon, 0.0)} in all" if origin.released else ""
    records = records_text(origin.train_records)
    return f"{from_here(origin.run)} ({records}{spent}; their labels are in these weights too)"


def _promise(run: RunFolder, result: TrainResult, ledger: RunLedger) -> Facts:
    """What was released, what that promises, and the vault whose ledger says so."""
    from tpsl.report.words import LARGE_DELTA_TEXT, guarantee_text, spent_text, vault_texts
    from tpsl.training.result import NOTHING_RELEASED
    from tpsl.vault.cost import is_large_delta

    if result.mechanism == NOTHING_RELEASED:
        return {"guarantee": "ε = 0: nothing was released, the feature parties got nothing back"}
    large = f". {LARGE_DELTA_TEXT}" if is_large_delta(result.total_delta, result.train_records) else ""
    noted = run.noted_ledger()
    noise, of_vault = result.mechanism, vault_texts(ledger.facts, spent_text(result.total_epsilon, result.total_delta))
    if result.statistic_records < result.train_records:  # the others have noisy labels
        noise += f", estimator {result.estimator}" + (f", {result.draws} draws of each" if result.draws > 1 else "")
    return {
        "mechanism": noise,
        "guarantee": guarantee_text(result) + large,
        **({"vault": from_here(noted.vault)} if noted else {}),
        **({"of the vault": "; ".join(of_vault)} if of_vault else {}),
        **({"scratch run": "its vault counts in no total, and nothing of it may leave"} if run.is_scratch else {}),
    }


def _quality(result: TrainResult) -> dict[str, str]:
    """What noisy labels of held-out records say of the private head."""
    from tpsl.training.noisy_metrics import TOO_FEW

    found = {}
    if result.statistic_records:
        found["private head"] = f"fitted on noisy statistics of {result.statistic_records:,} labels"
    elif result.kept_epoch != result.epochs:
        found["epoch kept"] = f"{result.kept_epoch} of {result.epochs}"
    if math.isfinite(result.validation_auc):
        interval = f"95 % interval {result.validation_auc_low:.2f} to {result.validation_auc_high:.2f}"
        found["hold-out AUC"] = f"{result.validation_auc:.2f}, {interval} (estimated from noisy labels)"
    elif math.isfinite(result.validation_loss) and result.classes == 2:
        found["hold-out AUC"] = f"– ({TOO_FEW})"
    return found


def _test_quality(result: TrainResult) -> dict[str, str]:
    """What true labels of test records say of the private head."""
    from tpsl.metrics import no_better_than_guessing

    found = {}
    if not math.isnan(result.test_log_loss):
        interval = f"95 % interval {result.test_auc_low:.4f} to {result.test_auc_high:.4f}"
        found["test AUC"] = (
            "– (it needs test records of two classes)"
            if math.isnan(result.test_auc)
            else f"{result.test_auc:.4f}, {interval}"
        )
        if no_better_than_guessing(result.test_auc_low):
            found["verdict"] = "no better than guessing: the interval of the test AUC reaches 0.5"
        found["test log loss"] = f"{result.test_log_loss:.4f}, calibration error {result.test_calibration_error:.4f}"
    elif result.epochs:
        found["test AUC"] = "– (no true label of a test record is known here)"
    return found


def _evaluation(run: RunFolder, job: Job) -> dict[str, str]:
    """What computes what depends on true labels, which a process that a peer can see does not."""
    if job.hands_over:
        return {}
    what = "test metrics and local head" if job.training.head == "local" else "test metrics"
    return {what: f"tpsl label evaluate {run.path}"}


def _next_steps(run: RunFolder, result: TrainResult) -> dict[str, str]:
    from tpsl.data.dataset import feature_party_names

    parties = feature_party_names(run.job().data)
    if math.isnan(result.test_log_loss):  # at a feature party, which has no label to look at
        records = " ".join(f"--records {party}=new.csv" for party in parties)
        return {"score new records": f"tpsl predict {run.path} {records} --out scores.csv"} if result.epochs else {}
    recorded = all((run.party(party) / "transcript").is_dir() for party in parties)
    attack = {"play the attacker": f"tpsl attack {run.path}"} if recorded else {}
    return {"see it as a page": f"tpsl report {run.path}", **attack}
