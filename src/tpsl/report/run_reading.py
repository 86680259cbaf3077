"""From a run folder to a `RunView`, as the party that reads it may see the run.

The label party sees everything. In what a feature party sees, nothing depends on true labels.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tpsl.data.config import TableData
from tpsl.files import for_json
from tpsl.handover.learning import learned_result
from tpsl.net.messages import LABEL_PARTY
from tpsl.report.findings import audit_words, read_finding
from tpsl.report.ledgers import Memory, data_group, read_ledger
from tpsl.report.promises import promise_of
from tpsl.report.run_view import Attacks, Interval, Promise, RunView
from tpsl.report.sightings import sightings
from tpsl.report.words import (
    FEATURES_STAY_TEXT,
    FEATURES_TEXT,
    auc_text,
    counted,
    learned_texts,
    records_text,
    rounded_up,
)
from tpsl.run.checkpoint import saved_steps
from tpsl.run.evaluation import TEST_CURVES, TestCurves
from tpsl.run.job import Job, dotted
from tpsl.run.job_sections import TrainingConfig
from tpsl.run.run_folder import RunError, RunFolder, read_note
from tpsl.run.stages.prepare import WIDE, load_wide

ANY_FEATURE_PARTY = "feature"
"""Stands for the one feature party that there is, whatever its name."""
_SHOWN_VERSION = 12
_SCORES = {"test_log_loss": "log loss", "test_accuracy": "accuracy", "test_calibration_error": "calibration error"}


def read_view(path: Path, party: str, name: str | None = None, *, memory: Memory | None = None) -> RunView:
    """Return the view of a run for a party; nothing in that of a feature party depends on true labels.

    `memory` is what runs remember of vaults, by default this one and those beside it.
    """
    if party == LABEL_PARTY:
        return read_run(path, name, memory=memory)
    return read_feature_run(path, _named(RunFolder(path), party), name)


def _named(run: RunFolder, party: str) -> str:
    names = run.job().data.feature_parties
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
            + " or ".join(job.data.feature_parties)
        )
    result, curves = run.result(), for_json(run.metrics())
    ledger = read_ledger(run, job, memory)
    classes = result.classes if result else ledger.content.classes if ledger.content else job.classes
    promise = promise_of(job, classes, result, ledger.total)
    view = job_view(path, job, LABEL_PARTY, promise, classes, name)
    files = [run.path / "result.json", *run.label.glob("*.json*"), *(run.label / "checkpoints").glob("*")]
    attacks, head = read_finding(path, "attacks"), run.local_head()
    audited = (read_finding(path, "audit") or {}).get("lower_bound")
    view = replace(
        view,
        **ledger.known(),
        updated=last_change([run.job_path, *files]),
        step=max([0, *saved_steps(run.label / "checkpoints"), *(int(entry.get("step", 0)) for entry in curves)]),
        epoch=max((int(entry["epoch"]) for entry in curves), default=0),
        ledger=ledger.content,
        ledger_note=ledger.note,
        spent_by="ledger" if ledger.content else "note" if ledger.total else "run",
        curves=curves,
        local_head_words=f"The run also has a local head, trained on true labels, which never leaves the label party: "
        f"test AUC {auc_text(for_json(head)['test_auc'])}."
        if head
        else "",
        recorded=not job.trains or all((run.party(name) / "transcript").is_dir() for name in view.feature_parties),
        attacks=Attacks.of(attacks, seeded=promise.seeded) if attacks else None,
        audited_epsilon=audited,
        audit_words=audit_words(path, promise.epsilon_text),
    )
    if result is None:
        return view
    content = result.as_dict()
    return replace(
        view,
        state="finished",
        step=result.steps,
        epoch=result.epochs,
        kept_epoch=result.kept_epoch if job.training.patience and job.statistic is None else None,
        statistic_records=result.statistic_records,
        train_records=result.train_records,
        test_records=result.test_records,
        samples_per_second=content["samples_per_second"],
        seconds=content["seconds"],
        auc=Interval.of(content, "test_auc"),
        scores={name: content[key] for key, name in _SCORES.items()},
        test_curves=read_note(run.label / TEST_CURVES, TestCurves),
        importance=[one for party in view.feature_parties for one in importance_of(run, party)],
    )


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
    """Return the view of a run of which nothing is known but the job, what it promises and where it comes from."""
    run, parties = RunFolder(path), tuple(job.data.feature_parties)
    origin, versions = run.origin(party), {}
    with contextlib.suppress(RunError):  # no half of a run that was never evaluated has a version
        versions = run.noted_versions(party, parties if party == LABEL_PARTY else [party])
    starts_from = origin_words = None
    if origin is not None:  # only its name is told, not where it lies
        starts_from, had = Path(origin.run).name, "are in these weights too"
        if origin.released is not None:
            had = f"had spent ε = {rounded_up(origin.released.epsilon, 4)} in all"
        version = _version_text(origin.versions)
        origin_words = f"{starts_from} (version {version}), whose {records_text(origin.train_records)} {had}"
    return RunView(
        name=_printable(name or path.resolve().name),
        party=party,
        data=_data_name(job),
        data_group=data_group(job),
        classes=classes,
        epochs=job.training.epochs,
        feature_parties=parties,
        crossed=None if job.hands_over or party == LABEL_PARTY else _sent_width(job, party),
        version=_version_text(versions),
        program=run.program(party),
        starts_from=starts_from,
        origin_words=origin_words,
        promise=promise,
        features_words=FEATURES_STAY_TEXT if job.hands_over else FEATURES_TEXT,
        sightings=sightings(job, promise),
        job=job.agreed(),
        job_digest=job.digest(),
        changed=_changed(job),
        scratch=run.is_scratch,
    )


def _version_text(versions: Mapping[str, str]) -> str:
    """Return the beginning of a version; where several parties have halves, of each by its name."""
    if len(versions) == 1:
        return next(iter(versions.values()))[:_SHOWN_VERSION]
    return ", ".join(f"{party} {version[:_SHOWN_VERSION]}" for party, version in versions.items())


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


def importance_of(run: RunFolder, party: str) -> list[tuple[str, float]]:
    """Return how far the effects of a party's columns spread in its additive part, in log-odds, the largest first.

    It was fitted on noisy labels. Nothing where the party's folder or an additive part of its columns is not there.
    """
    if not (run.party(party) / WIDE).exists():
        return []
    try:
        encoder = run.encoder(party)
    except RunError:  # the party has encoded its records itself
        return []
    numbers, fields = load_wide(run.party(party)).spreads()
    found = dict(zip(encoder.numeric_fields, numbers, strict=False))
    found |= {name: fields[column] for column, name in enumerate(encoder.categories) if column in fields}
    return sorted(found.items(), key=lambda one: -one[1])


# ---- a feature party


def read_feature_run(path: Path, party: str, name: str | None = None) -> RunView:
    """Return a feature party's view of a run.

    Guarantee: of the run folder, only the job and the party's own folder are opened. So whatever the label party's
    folder and the run's result hold, the view is the same.
    """
    run = RunFolder(path)
    job, names = run.job(), run.job().data.feature_parties
    if party not in names:
        raise RunError(f"{path}: {party!r} is not a feature party of the job; they are {', '.join(names)}")
    if not run.party(party).is_dir():
        raise RunError(f"{path}: has no folder of the feature party {party!r}")
    result, learned = run.party_result(party), learned_result(run, party)
    records = result.train_records if result is not None else learned.records if learned is not None else None
    promise, checkpoints = promise_of(job, job.classes, records=records), run.party(party) / "checkpoints"
    return replace(
        job_view(path, job, party, promise, job.classes, name),
        state="unfinished" if result is None and learned is None else "finished",
        train_records=records,
        updated=last_change([run.job_path, *run.party(party).glob("*.json"), *checkpoints.glob("*")]),
        step=result.steps if result is not None else max([0, *saved_steps(checkpoints)]),
        epoch=result.epochs if result is not None else 0,
        samples_per_second=result.samples_per_second if result is not None else None,
        ledger_note="The ledger is the label party’s; a feature party does not see it. The ε here is that of this "
        "run’s own release; what else was released of the same labels adds to it.",
        importance=importance_of(run, party),
        learned=None if learned is None else learned_texts(learned),
        sightings=sightings(job, promise, learned=learned is not None),
    )
