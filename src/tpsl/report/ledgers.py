"""What a run's labels have spent in all, by the ledger of its vault and by what other runs remember."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from tpsl.report.known_vaults import Memory, ledger_at, spent_in
from tpsl.report.run_view import VaultFacts
from tpsl.report.words import rounded_up, time_text
from tpsl.run.job import Job
from tpsl.run.result import LedgerNote, TrainResult
from tpsl.run.run_folder import RunFolder
from tpsl.vault import Ledger, Spent, VaultError
from tpsl.vault.cost import as_json
from tpsl.vault.ledger import describe_release


@dataclass(frozen=True, kw_only=True)
class RunLedger(VaultFacts):
    """What is known of a run's vault, and of others that have released its labels and are gone."""

    content: Ledger | None = None
    note: str = ""
    """Why there is no ledger, or nothing."""
    total: Spent | None = None
    """What the run's records have spent in all; None if nothing was released yet."""

    def known(self) -> dict[str, Any]:
        """Return what is to be known besides the total, ready for JSON."""
        return {field.name: getattr(self, field.name) for field in fields(VaultFacts)}


def read_ledger(run: RunFolder, job: Job, memory: Memory | None = None) -> RunLedger:
    """Read the ledger of a run's vault as it is now, so that a later release shows; else what the run has noted.

    Vaults that are gone count with what was noted of them, by the run, and by the others that `memory` knows.
    """
    memory = memory or Memory.of([run.path])
    noted, total, ledger = run.noted_ledger(), memory.own(run), ledger_at(memory.place(run))
    besides, gone = memory.besides(run)
    if ledger is not None and noted is None:
        total = spent_in(run, ledger, {_description(job, ledger.classes)})
    total = total.plus(besides) if total else None
    if ledger is None:
        return RunLedger(note=_absent(noted), total=total, gone_vaults=gone)
    return RunLedger(
        content=ledger,
        total=total,
        gone_vaults=gone,
        epsilon_all_labels=as_json(ledger.all_labels.epsilon) if ledger.all_labels else None,
        apart=ledger.apart,
    )


def result_now(run: RunFolder, result: TrainResult) -> tuple[TrainResult, RunLedger]:
    """Return a run's result with what its records have spent by now, and what is known of its vault.

    Others may have released from its vault since. A vault that cannot be read at this moment leaves the totals as the
    run has noted them at its end.
    """
    try:
        found = read_ledger(run, run.job()) if run.noted_ledger() else RunLedger()
    except VaultError:
        found = RunLedger()
    if found.total is None:
        return result, found
    total = found.total.joined(Spent(result.total_epsilon, result.total_delta, result.private))
    result = replace(result, total_epsilon=total.epsilon, total_delta=total.delta, private=total.private)
    return result, found


def vault_label(vault: Path) -> str:
    """Return the end of a vault's path, which tells it from others: no page says where the label party's files are."""
    in_run = vault.parts[-3:-1] == ("label", "vault")
    return "/".join(vault.parts[-4 if in_run else -2 :])


def _description(job: Job, classes: int) -> str:
    """Return what a run releases, in the words of the ledger."""
    privacy = job.privacy
    return describe_release(str(privacy.build(classes)), privacy.draws, privacy.noise_seed) if job.releases else ""


def _absent(noted: LedgerNote | None) -> str:
    if noted is None:
        return "The vault is not in this run’s folder, and the run has noted no other."
    time, epsilon, delta = time_text(noted.time), rounded_up(noted.epsilon, 4), rounded_up(noted.delta, 2)
    return (
        f"The vault {vault_label(noted.vault)} is gone; `tpsl vault move` moves one so that it is found. At {time} UTC "
        f"the run noted ε = {epsilon}, δ = {delta} for its records, and the ledger’s head {noted.head}."
    )
