"""`tpsl check`: look at the data of a job before anything is released."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from tpsl.cli.console import answer, notice, progress_bar, slim_table
from tpsl.cli.flags import JobArgument, JsonFlag, LocalsOption, SetOption
from tpsl.cli.settings import Settings

if TYPE_CHECKING:
    from rich.table import Table

    from tpsl.data.check import DataReport, PartyCounts
    from tpsl.training.job import Job


def check(job: JobArgument, changes: SetOption = None, local: LocalsOption = None, json: JsonFlag = False) -> None:
    """Look at the data of a job before anything is released: counts, and what is strange.

    Reads the data of every party that is here, the true labels too where the label party's is: then what is printed
    must stay with the label party. Exit status 1 if there are errors, 0 if there are none or only warnings.
    """
    from tpsl.data.check import check_data

    parties = Settings.of(changes).load_parties(job, local)
    agreed, given = parties.job, ((party, parts.source(party)) for party, parts in parties.own.items())
    sources = {party: source for party, source in given if source is not None}
    with progress_bar("reading") as progress:
        found = check_data(agreed.data, late_labels=agreed.has_late_labels, sources=sources, progress=progress)
    worth = _clean_labels(agreed, found)
    tell_of_rare_labels(agreed, found)
    answer(json, {**found.as_dict(), "effective_labels": worth}, _for_people(found, agreed, worth))
    if found.classes:
        notice("true labels were read: what is printed stays with the label party")
    if not agreed.hands_over and agreed.needs_split_training() is None:
        notice("the label party has labels alone: with training.exchange: labels these cross, noisy, and no embedding")
    if not found.passed:
        raise typer.Exit(1)


def tell_of_rare_labels(job: Job, found: DataReport) -> None:
    """Add a warning to what was found if noise will drown the rarest class."""
    from tpsl.data.check import LABEL
    from tpsl.training.rare_labels import rare_label_warning_of

    if found.passed and (warning := rare_label_warning_of(job, _training_classes(job, found))):
        found.warn(LABEL, warning)


def _training_classes(job: Job, found: DataReport) -> dict[str, int]:
    """Return about how many training records each class has."""
    return {name: round(count * (1 - job.data.test_fraction)) for name, count in found.classes.items()}


def _clean_labels(job: Job, found: DataReport) -> int | None:
    """Return how many clean labels the noisy ones of the training records are worth; None where that is not known."""
    from tpsl.mechanisms.effective_labels import effective_labels

    if not found.passed or not found.classes or not job.trains:
        return None
    counts = list(_training_classes(job, found).values())
    return round(effective_labels(job.privacy.build(job.classes), counts, job.privacy.draws))


def _for_people(found: DataReport, job: Job, worth: int | None) -> Iterator[str | Table]:
    for party in found.parties:
        yield f"{party.party}: {party.records:,} records in {party.source}"
        if party.columns:
            yield _columns(party)
    for name in found.not_here:
        reason = f" ({found.looked_for[name]})" if name in found.looked_for else ""
        yield f"{name}: its data is not here, and was not checked{reason}"
    if not (found.parties or found.not_here):
        yield "the data of this job come with tpsl: there is nothing to check"
    if found.classes:
        yield "labels: " + ", ".join(f"{name}: {count:,}" for name, count in found.classes.items())
    if worth is not None:
        mechanism = job.privacy.build(job.classes)
        yield f"{mechanism}: the noisy labels of the training records are worth {worth:,} clean ones"
    for finding in found.findings:
        yield f"{finding.level}: {finding.text}"
    yield "no errors" if found.passed else "the job cannot run on these data"


def _columns(party: PartyCounts) -> Table:
    rows = (
        (
            column.name,
            column.kind.replace("_", " "),
            f"{column.missing:,}",
            "" if column.distinct is None else f"{column.distinct:,}",
        )
        for column in party.columns
    )
    numbers = ("missing", "different values")
    return slim_table(("column", "kind", *numbers), rows, numbers=numbers)
