"""What the label party's vaults say of a run's labels: the ledger of its vault, and the sum over all known vaults."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from pathlib import Path
from typing import Any

from tpsl.files import for_json
from tpsl.report.run_view import RunView, SumOverVaults
from tpsl.report.words import records_text, rounded_up
from tpsl.training.job import Job
from tpsl.training.result import TrainResult
from tpsl.training.run_folder import RunFolder
from tpsl.transport.peers import LABEL_PARTY
from tpsl.vault import Ledger, Spent, Vault, VaultError, VaultSum, default_place
from tpsl.vault.accounting import spent_under
from tpsl.vault.ledger import Entry, describe_release
from tpsl.vault.place import folders_of_vaults
from tpsl.vault.storage import DATABASE

_HEADER = 100  # bytes of an SQLite file


@dataclass(frozen=True)
class RunLedger:
    """What is known of a run's vault."""

    content: dict[str, Any] | None
    """Its ledger, ready for JSON."""
    note: str
    """Why there is no ledger, or nothing."""
    total: Spent | None
    """What the run's records have spent in all; None if nothing was released yet."""

    @property
    def heads(self) -> list[str]:
        """The hashes of its entries, oldest first."""
        return [entry["hash"] for entry in self.content["entries"]] if self.content else []


def read_ledger(run: RunFolder, job: Job, classes: int, vault: Path | None = None) -> RunLedger:
    """Read the ledger of a run's vault as it is now, so that a later release shows; else what the run has noted.

    `vault` says where the vault is now, if it is not where the run has noted.
    """
    noted = run.noted_ledger()
    then = Spent(noted["epsilon"], noted["delta"], bool(noted["private"])) if noted else None
    path = vault or run.vault()
    state = _state_of(path)
    if state is None:
        if vault is not None:
            raise ValueError(f"there is no vault at {vault}")
        return RunLedger(None, _absent(noted), then)
    released = _noted_releases(noted) if noted else {_description(job, classes)}
    now = _total_of(run, state, released)
    if vault is not None and now is None:
        what = " and ".join(sorted(released))
        raise ValueError(f"the vault {vault} has not released what the run {run.path} was trained on: {what}")
    # A vault that was restored from a backup may know less than the run: what was spent then stays spent.
    total = now.joined(then) if now and then else now or then
    return RunLedger(_content(state.ledger, path), "", total)


def result_now(run: RunFolder, result: TrainResult) -> TrainResult:
    """Return a run's result with what its records have spent by now: others may have released from its vault since.

    A vault that cannot be read at this moment leaves the totals as the run has noted them at its end.
    """
    noted = run.noted_ledger()
    if noted is None:
        return result
    try:
        state = _state_of(Path(noted["vault"]))
    except VaultError:
        return result
    now = _total_of(run, state, _noted_releases(noted)) if state else None
    if now is None:
        return result
    total = now.joined(Spent(result.total_epsilon, result.total_delta, result.private))
    return replace(result, total_epsilon=total.epsilon, total_delta=total.delta, private=total.private)


def classes_in(run: RunFolder) -> int | None:
    """Return the number of classes of a run's vault, if it can be reached."""
    state = _state_of(run.vault())
    return state.ledger.classes if state else None


def with_sums(views: Sequence[RunView], vaults: Sequence[Path | None], sums: Mapping[Path, VaultSum]) -> list[RunView]:
    """Return the views with what the records of their vaults have spent over all known ones, if these are several."""
    summed = []
    for view, vault in zip(views, vaults, strict=True):
        found = sums.get(vault.resolve()) if vault is not None else None
        summed.append(RunView(**{**view, "over_vaults": _sum_view(found) if found and len(found.parts) > 1 else None}))
    return summed


def known_vaults(own: Iterable[Path | None]) -> list[Path]:
    """Return the folders of all vaults whose releases are added up, resolved, each once; no vault is opened.

    Known are the runs' own vaults, those beside them, and those in the label party's place; not those of scratch runs.
    """
    there = [path for path in own if path is not None and (path / DATABASE).is_file()]
    there = [path for path in there if not (_is_in_run(path) and RunFolder(path.parent.parent).is_scratch)]
    places = {default_place(), *(path.parent for path in there)}
    beside = [vault for place in places for vault in folders_of_vaults(place)]
    return sorted({path.resolve() for path in (*there, *beside)})


def vault_label(vault: Path) -> str:
    """Return the end of a vault's path, which tells it from others: no page says where the label party's files are."""
    return "/".join(vault.parts[-3 if _is_in_run(vault) else -2 :])


def _is_in_run(vault: Path) -> bool:
    return vault.parts[-2:] == ("label", "vault")


def _sum_view(found: VaultSum) -> SumOverVaults:
    return SumOverVaults(
        epsilon=for_json(found.total.epsilon),
        epsilon_text=rounded_up(found.total.epsilon, 4),
        delta_text=rounded_up(found.total.delta, 2) if found.total.delta else "",
        private=found.total.private,
        vaults=[
            {"vault": vault_label(path), "epsilon_text": rounded_up(part.epsilon, 4)}
            for path, part in found.parts.items()
        ],
    )


def _description(job: Job, classes: int) -> str:
    """Return what a run releases, in the words of the ledger."""
    privacy = job.privacy
    return describe_release(str(privacy.build(classes)), privacy.draws, privacy.noise_seed) if job.releases else ""


def _noted_releases(noted: Mapping[str, Any]) -> set[str]:
    """Return what a run has noted of its releases, in the words of the ledger: noisy labels, and statistics if any."""
    return {*([noted["release"]] if "release" in noted else []), *noted.get("statistics", [])}


@dataclass(frozen=True)
class _VaultState:
    """What a vault says at one moment: enough for all runs that have released from it, and small."""

    ledger: Ledger
    counts_people: bool
    ways: Sequence[tuple[Sequence[Entry], int]]
    """Under which releases records went out, and how many went out like that."""


def _state_of(vault: Path) -> _VaultState | None:
    """Return what a vault says now, or None where there is none; it is read again only if its file has changed."""
    if not (vault / DATABASE).is_file():
        return None
    try:
        with (vault / DATABASE).open("rb") as file:
            header, state = file.read(_HEADER), os.fstat(file.fileno())
    except OSError as error:
        raise VaultError(f"vault {vault} cannot be read ({error.strerror})") from error
    return _read_state(vault, (state.st_ino, state.st_size, state.st_mtime_ns, header))


@lru_cache(maxsize=64)
def _read_state(vault: Path, version: tuple[object, ...]) -> _VaultState | None:
    """`version` differs whenever the file does: SQLite counts the transactions in its header."""
    if not Vault.exists(vault):
        return None
    with Vault.open(vault) as opened:
        return _VaultState(opened.ledger(), opened.counts_people, opened.ways_out())


def _total_of(run: RunFolder, vault: _VaultState, released: set[str]) -> Spent | None:
    """Return the most that any record has spent in all which had a release of the run; None if none had.

    In a vault that counts people it is the most that anybody has spent. Where the run started from another one, labels
    of other releases are in its weights, and it is the most of all records.
    """
    of_all = run.origin(LABEL_PARTY) is not None
    parts = [
        spent_under(history, count)
        for history, count in vault.ways
        if of_all or any(entry.description in released for entry in history)
    ]
    found = reduce(Spent.joined, parts) if parts else None
    unit = vault.ledger.largest_unit if found and vault.counts_people else None
    return found.joined(Spent(unit.epsilon, unit.delta, who="person")) if found and unit else found


def _absent(noted: dict[str, Any] | None) -> str:
    if noted is None:
        return "The vault is not in this run’s folder, and the run has noted no other; `tpsl report --vault` names it."
    return (
        f"The vault {vault_label(Path(noted['vault']))} cannot be reached; `tpsl report --vault FOLDER` says where it "
        f"is. At {noted['time'][:19].replace('T', ' ')} UTC the run noted ε = {rounded_up(noted['epsilon'], 4)}, "
        f"δ = {rounded_up(noted['delta'], 2)} for its records, and the ledger’s head {noted['head']}."
    )


def _content(ledger: Ledger, vault: Path) -> dict[str, Any]:
    unit = ledger.largest_unit
    return {
        "vault": vault_label(vault),
        "classes": ledger.classes,
        "records": ledger.records,
        "released_records": ledger.released_records,
        "private": ledger.private,
        "epsilon_text": rounded_up(ledger.epsilon_per_record, 4),
        "delta_text": rounded_up(ledger.delta_per_record, 2),
        "unit_text": f"{rounded_up(unit.epsilon, 4)} ({records_text(unit.records)})" if unit else None,
        "head": ledger.head,
        "entries": [
            {
                "sequence": entry.sequence,
                "time": entry.time,
                "what": entry.description if entry.is_release else entry.kind,
                "records": entry.details.get("records"),
                "epsilon_text": rounded_up(entry.epsilon, 4) if entry.is_release else "",
                "delta_text": rounded_up(entry.delta, 2) if entry.is_release else "",
                "hash": entry.hash,
            }
            for entry in ledger.entries
        ],
    }
