"""From a run folder to a `RunView`, as the party that reads it may see the run.

The label party sees everything. In what a feature party sees, nothing depends on true labels: metrics of test records
are there only where the label party has handed them over, which are those of noisy labels. Where only the label
party's folder is at hand, the view is what it can hand over: what a signed statement says too, numbers of records and
what they have spent. Not the ledger's entries and hashes (a correction of labels is among them), not what people with
several records have spent over alignments (whom the label party knows may be the label), and nothing that was measured.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tpsl.data.config import TableData
from tpsl.data.dataset import feature_party_names
from tpsl.files import for_json
from tpsl.handover.learning import learned_result
from tpsl.net.messages import LABEL_PARTY
from tpsl.report.findings import FINDINGS, read_finding
from tpsl.report.known_vaults import Memory, data_group, ledger_at
from tpsl.report.ledgers import read_ledger
from tpsl.report.promises import promise_of
from tpsl.report.run_view import Promise, RunView
from tpsl.report.sightings import sightings
from tpsl.report.statements import newest_statement, own_statement
from tpsl.report.version_view import origin_of, versions_of
from tpsl.report.words import (
    FEATURES_STAY_TEXT,
    FEATURES_TEXT,
    counted,
    learned_texts,
    records_text,
    spent_text,
)
from tpsl.run.checkpoint import saved_steps
from tpsl.run.job import Job, dotted
from tpsl.run.job_sections import TrainingConfig
from tpsl.run.run_folder import RunError, RunFolder
from tpsl.vault import Spent
from tpsl.vault.ledger import Ledger

ANY_FEATURE_PARTY = "feature"
"""Stands for the one feature party that there is, whatever its name."""


def read_view(path: Path, party: str, name: str | None = None, *, memory: Memory | None = None) -> RunView:
    """Return the view of a run for a party; nothing in that of a feature party depends on true labels.

    A feature party's own folder says what it knows. Where only the label party's is, the view is what that party can
    hand over. `memory` is what runs remember of vaults, by default this one and those beside it.
    """
    if party == LABEL_PARTY:
        return read_run(path, name, memory=memory)
    run = RunFolder(path)
    party = _named(run, party)
    if run.label.is_dir() and not run.party(party).is_dir() and party in feature_party_names(run.job().data):
        return read_handed_view(path, party, name, memory=memory)
    return read_feature_run(path, party, name)


def _named(run: RunFolder, party: str) -> str:
    names = feature_party_names(run.job().data)
    if party != ANY_FEATURE_PARTY or party in names:
        return party
    there = [name for name in names if run.party(name).is_dir()] or list(names)
    if len(there) > 1:
        raise RunError(f"{run.path}: which feature party? Name it with --for: {', '.join(there)}")
    return there[0]


# ---- the label party


def read_run(path: Path, name: str | None = None, *, memory: Memory | None = None) -> RunView:
    """Return the label party's view of a run, finished or not; the run is only read.

    The first number of the promise is what the records have spent in all by now, as the run's vault says; of vaults
    that are gone, as runs have noted: those that `memory` knows, by default this one and those beside it.
    What is missing or damaged is a `ValueError` whose message is one sentence that names the file.
    """
    run = RunFolder(path)
    job = run.job()
    if not run.label.is_dir():
        raise RunError(
            f"{path}: has no folder of the label party; a feature party's page is made with --for "
            + " or ".join(feature_party_names(job.data))
        )
    result, curves = run.result(), for_json(run.metrics())
    ledger = read_ledger(run, job, memory)
    classes = result.classes if result else ledger.content["classes"] if ledger.content else job.classes
    view = job_view(path, job, LABEL_PARTY, promise_of(job, classes, result, ledger.total), classes, name)
    files = [run.path / "result.json", *run.label.glob("*.json*"), *(run.label / "checkpoints").glob("*")]
    view["updated"] = last_change([run.job_path, *files])
    view["step"] = max([0, *saved_steps(run.label / "checkpoints"), *(int(entry.get("step", 0)) for entry in curves)])
    view["epoch"] = max((int(entry["epoch"]) for entry in curves), default=0)
    view["ledger"], view["ledger_note"] = ledger.content, ledger.note
    view["spent_by"] = "ledger" if ledger.content else "note" if ledger.total else "run"
    view = {**view, **ledger.facts}
    view["statement"] = own_statement(run, ledger.place or run.vault(), ledger.heads)
    view["curves"] = curves
    view["local_head"] = for_json(run.local_head())
    view["recorded"] = not job.trains or all(
        (run.party(name) / "transcript").is_dir() for name in view["feature_parties"]
    )
    for finding in FINDINGS:
        view[finding] = read_finding(path, finding)
    if result is not None:
        content = result.as_dict()
        view["state"] = "finished"
        view["step"] = result.steps
        view["epoch"] = result.epochs
        view["kept_epoch"] = result.kept_epoch if job.training.patience and job.statistic is None else None
        view["statistic_records"] = result.statistic_records
        view["train_records"], view["test_records"] = result.train_records, result.test_records
        view["samples_per_second"], view["seconds"] = content["samples_per_second"], content["seconds"]
        view["test"] = {key: value for key, value in content.items() if key.startswith("test_") and key != _RECORDS}
    return view


_RECORDS = "test_records"


def _printable(name: str) -> str:
    """Return a name as it may go to terminals too: nothing in it moves the cursor."""
    return "".join(c if c.isprintable() else "�" for c in name)


def _data_name(job: Job) -> str:
    """Return what a reader calls the data: tables by the label column and how many others there are, as all know."""
    data = job.data
    if not isinstance(data, TableData):
        return data.source
    columns = sum(len(file.categorical) + len(file.numeric) + len(file.dates) for file in (*data.features, data.label))
    return f"table ‘{_printable(data.label.label or 'membership')}’ ({counted(columns, 'column')})"


def job_view(path: Path, job: Job, party: str, promise: Promise, classes: int, name: str | None) -> RunView:
    """Return the view of a run of which nothing is known but the job and what it promises."""
    agreed = job.agreed()
    return RunView(
        name=_printable(name or path.resolve().name),
        party=party,
        state="unfinished",
        updated=None,
        data=_data_name(job),
        data_group=data_group(job),
        classes=classes,
        train_records=None,
        test_records=None,
        step=0,
        epoch=0,
        epochs=job.training.epochs,
        kept_epoch=None,
        statistic_records=0,
        samples_per_second=None,
        seconds=None,
        feature_parties=list(feature_party_names(job.data)),
        crossed=None if job.hands_over or party == LABEL_PARTY else _sent_width(job, party),
        versions=versions_of(RunFolder(path), party, feature_party_names(job.data)),
        program=RunFolder(path).program(party),
        origin=origin_of(RunFolder(path), party),
        promise=promise,
        features_words=FEATURES_STAY_TEXT if job.hands_over else FEATURES_TEXT,
        sightings=sightings(job, promise),
        job=agreed,
        job_digest=job.digest(),
        changed=_changed(job),
        ledger=None,
        ledger_note="",
        spent_by="run",
        statement=None,
        gone_vaults=0,
        epsilon_all_labels=None,
        apart=None,
        scratch=RunFolder(path).is_scratch,
        test=None,
        learned={},
        local_head=None,
        curves=[],
        recorded=False,
        attacks=None,
        audit=None,
        replay=None,
        examination=None,
    )


def _changed(job: Job) -> dict[str, Any]:
    """Return what a job sets besides the defaults, by dotted keys; defaults of training follow from the rest of it."""
    implied = set(TrainingConfig.model_fields) - job.training.model_fields_set
    content = job.model_dump(mode="json", exclude_defaults=True, exclude={"training": implied})
    agreed = dotted(job.agreed())
    return {key: value for key, value in dotted(content).items() if key in agreed}


def _sent_width(job: Job, party: str) -> int:
    for_a_head = job.training.head == "local" or job.statistic is not None
    return job.head_width(party) if for_a_head else job.model.cut_width(party)


def last_change(files: Iterable[Path]) -> str | None:
    """Return when the newest of these files was written, in UTC; None if there is none."""
    times = []
    for file in files:
        with contextlib.suppress(FileNotFoundError):  # a run that goes on removes its old checkpoints
            times.append(file.stat().st_mtime)
    return datetime.fromtimestamp(max(times), UTC).isoformat(timespec="seconds") if times else None


# ---- a feature party


def read_feature_run(path: Path, party: str, name: str | None = None) -> RunView:
    """Return a feature party's view of a run.

    Guarantee: of the run folder, only the job and the party's own folder are opened. So whatever the label party's
    folder and the run's result hold, the view is the same.
    """
    run = RunFolder(path)
    job = run.job()
    names = feature_party_names(job.data)
    if party not in names:
        raise RunError(f"{path}: {party!r} is not a feature party of the job; they are {', '.join(names)}")
    if not run.party(party).is_dir():
        raise RunError(f"{path}: has no folder of the feature party {party!r}")
    classes = job.classes
    result, learned = run.party_result(party), learned_result(run, party)
    records = result.train_records if result is not None else learned.records if learned is not None else None
    promise = promise_of(job, classes, records=records)
    view = job_view(path, job, party, promise, classes, name)
    view["train_records"] = records
    checkpoints = run.party(party) / "checkpoints"
    files = [run.job_path, *run.party(party).glob("*.json"), *checkpoints.glob("*")]
    view["updated"] = last_change(files)
    view["step"] = max([0, *saved_steps(checkpoints)])
    view["ledger_note"] = (
        "The ledger is the label party’s; a feature party does not see it. The ε here is that of this run’s own "
        "release; what else was released of the same labels adds to it."
    )
    view["statement"] = newest_statement([run.party(party)])
    if result is not None:
        view["state"] = "finished"
        view["step"], view["epoch"] = result.steps, result.epochs
        view["samples_per_second"] = result.samples_per_second
    if learned is not None:
        view["state"], view["learned"] = "finished", learned_texts(learned)
        view["sightings"] = sightings(job, promise, learned=True)
    return view


def read_handed_view(path: Path, party: str, name: str | None = None, *, memory: Memory | None = None) -> RunView:
    """Return what the label party can hand over of a run.

    Guarantee: two runs that differ in nothing but true labels, and in what follows from these, give the same view.
    """
    run = RunFolder(path)
    job, result, memory = run.job(), run.result(), memory or Memory.of([path])
    place = memory.place(run)
    ledger, (besides, gone) = ledger_at(place), memory.besides(run)
    if ledger is None or place is None:
        raise ValueError(f"{path}: its vault cannot be reached, and it says what was spent; name it with --vault")
    records = result.train_records if result is not None else ledger.records
    stated = _stated_total(ledger, records)
    total = stated.plus(besides) if stated is not None else None
    promise = promise_of(job, ledger.classes, total=total, records=records)
    view = job_view(path, job, party, promise, ledger.classes, name)
    view["program"] = run.program(LABEL_PARTY)
    view["train_records"], view["spent_by"] = records, "ledger" if total is not None else "run"
    view["gone_vaults"], view["apart"] = gone, ledger.apart
    view["updated"] = max((entry.time for entry in ledger.entries if entry.is_release), default=None)
    found = own_statement(run, place, [entry.hash for entry in ledger.entries])
    view["statement"] = found and {**found, "entries_since": None}
    view["ledger_note"] = (
        f"By the label party’s ledger {ledger.released_records:,} of {records_text(ledger.records)} had a release, and "
        f"{_spent_words(stated)} Its entries stay with the label party; a signed statement sums them up."
    )
    if result is not None:
        view["state"], view["step"], view["epoch"] = "finished", result.steps, result.epochs
    return view


def _stated_total(ledger: Ledger, records: int) -> Spent | None:
    """Return what anybody has spent in all; None where that would tell whom the label party knows."""
    if not ledger.counts_people:
        return Spent(ledger.epsilon_per_record, ledger.delta_per_record, ledger.private, records)
    unit = ledger.stated_unit
    if unit is None:
        return None
    return Spent(unit.epsilon, unit.delta, ledger.private, records, who="person")


def _spent_words(total: Spent | None) -> str:
    if total is None:
        return "what a person has spent over several alignments is not said: it would tell whom that party knows."
    whom = "nobody, over all alignments," if total.who == "person" else "none"
    return f"{whom} has spent more than {spent_text(total.epsilon, total.delta)} in all."
