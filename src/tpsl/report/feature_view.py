"""From a run folder to a `RunView`, for a feature party: with nothing that depends on true labels.

Metrics of test records are there only where the label party has handed them over: those of noisy labels.
"""

from __future__ import annotations

from pathlib import Path

from tpsl.data.dataset import feature_party_names
from tpsl.handover.learning import learned_result
from tpsl.report.label_view import job_view, last_change, shared_words
from tpsl.report.promises import promise_of
from tpsl.report.run_view import RunView
from tpsl.report.sightings import sightings
from tpsl.report.statements import newest_statement
from tpsl.report.words import learned_texts
from tpsl.training.checkpoint import saved_steps
from tpsl.training.run_folder import RunError, RunFolder


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
    view["shared_words"] = shared_words(run.party(party), job, lambda: {party: run.version(party)})
    if result is not None:
        view["state"] = "finished"
        view["step"], view["epoch"] = result.steps, result.epochs
        view["samples_per_second"] = result.samples_per_second
    if learned is not None:
        view["state"], view["learned"] = "finished", learned_texts(learned)
        view["sightings"] = sightings(job, promise, learned=True)
    return view
