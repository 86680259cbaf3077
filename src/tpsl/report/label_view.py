"""From a run folder to a `RunView`, for the label party: with everything that depends on true labels."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tpsl.data.config import TableData
from tpsl.data.dataset import feature_party_names
from tpsl.files import for_json
from tpsl.net.peers import LABEL_PARTY
from tpsl.report.findings import FINDINGS, read_finding
from tpsl.report.known_vaults import Memory, data_group
from tpsl.report.ledgers import read_ledger
from tpsl.report.promises import promise_of
from tpsl.report.run_view import Promise, RunView
from tpsl.report.sightings import sightings
from tpsl.report.statements import own_statement
from tpsl.report.version_view import origin_of, versions_of
from tpsl.report.words import FEATURES_STAY_TEXT, FEATURES_TEXT, counted, shared_text
from tpsl.training.checkpoint import saved_steps
from tpsl.training.evaluation import SHARED_METRICS, read_shared
from tpsl.training.job import Job, dotted
from tpsl.training.job_sections import TrainingConfig
from tpsl.training.run_folder import RunError, RunFolder


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
    view["shared_words"] = shared_words(run.path, job, run.versions)
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
        shared_words="",
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


def shared_words(folder: Path, job: Job, versions: Callable[[], Mapping[str, str]]) -> str:
    """Return what shared metrics in a folder say of this run; nothing where there are none."""
    file = folder / SHARED_METRICS
    return shared_text(read_shared(file, job.digest(), versions())) if file.exists() else ""


def last_change(files: Iterable[Path]) -> str | None:
    """Return when the newest of these files was written, in UTC; None if there is none."""
    times = []
    for file in files:
        with contextlib.suppress(FileNotFoundError):  # a run that goes on removes its old checkpoints
            times.append(file.stat().st_mtime)
    return datetime.fromtimestamp(max(times), UTC).isoformat(timespec="seconds") if times else None
