"""`tpsl vault add` and `tpsl vault release`: labels go into the vault, and noisy labels come out of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tpsl.cli.console import Facts, Report, answer, notice, progress_bar, warn
from tpsl.cli.flags import EpsilonOption, JsonFlag, LabelArgument, SetOption, argument, called, flag, option
from tpsl.cli.settings import LOCAL, Settings

if TYPE_CHECKING:
    from tpsl.progress import Progress
    from tpsl.vault import LabelTable, ReleaseReport, Vault

LARGEST = "largest ε of any record"


def add(
    vault: Annotated[
        Path,
        argument("LABEL", "The label's name in the vault, or FOLDER/LABEL; with --apart a new folder for a vault."),
    ],
    tables: Annotated[
        list[str], argument("TABLE…", "CSV or Parquet files with ids and labels; folders, patterns, s3://bucket/…")
    ],
    new: Annotated[
        bool, flag("--new", "A label that the vault does not have; makes the vault if there is none.")
    ] = False,
    id: Annotated[str, option("COLUMN", "Column with the record id.")] = "id",
    label: Annotated[str, option("COLUMN", "Column with the label.")] = "label",
    unit: Annotated[str | None, option("COLUMN", "Whom a record is about (a user id), for the ε per user.")] = None,
    classes: Annotated[
        list[str] | None,
        option(
            "NUMBER",
            "Number of classes, 2 if not given: labels are numbers from 0 on. Where they are texts, repeat it with "
            "each text, in class order (a job's class_values).",
        ),
    ] = None,
    apart: Annotated[
        str | None,
        option("TEXT", "Make a second vault: a sentence that says why its labels are nobody's in the first."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Store labels from files: a new label (--new), or records of one that arrived later; those of all files or none.

    A released label never changes any more. Example: tpsl vault add late labels.csv --new
    """
    from tpsl.vault import Vault
    from tpsl.vault.place import label_meant

    number, texts = _classes(classes or ())

    def read(progress: Progress) -> list[LabelTable]:
        return _tables(tables, id, label, unit, texts, progress)

    if not new and apart is None:
        _add(label_meant(vault), read, json)
        return
    vault = vault if apart else label_meant(vault)
    with progress_bar("storing labels") as progress:
        made = Vault.create(vault, classes=number, batches=read(progress), apart=apart, notice=warn)
    with made:
        records = len(made)
    content = {"vault": str(vault), "records": records, "classes": number}
    facts: Facts = {"vault": vault, "labels": f"{records:,} of {number} classes, none released"}
    answer(json, content, Report("Stored the labels", facts, _release_it(vault)))


def _classes(given: Sequence[str]) -> tuple[int, list[str] | None]:
    """Return the number of classes, and the texts of labels that are no numbers."""
    if len(given) == 1 and given[0].isdecimal():
        return int(given[0]), None
    return len(given) or 2, list(given) or None


def _add(vault: Path, read: Callable[[Progress], list[LabelTable]], json: bool) -> None:
    from tpsl.vault import Vault

    with Vault.open(vault) as opened, progress_bar("storing labels") as progress:
        added = opened.add(read(progress), notice=warn)
    if added.changed_after_release:
        warn(
            f"{added.changed_after_release:,} records have another label now than when they were released; "
            "their release stays as it is"
        )
    content = {"vault": str(vault), **asdict(added)}
    known = f"{added.unchanged:,} known before" + (f", {added.changed:,} with another label" if added.changed else "")
    facts: Facts = {"vault": vault, "labels": f"{added.new:,} new, {known}"}
    answer(json, content, Report("Stored the labels", facts, _release_it(vault) if added.new else {}))


def _release_it(vault: Path) -> dict[str, str]:
    name = called(vault)
    named = "" if name == vault.name else f" --vault {name}"
    return {"release them": f"tpsl vault release {name} --epsilon 1", "or train": f"tpsl train job.yaml{named}"}


def _tables(
    tables: Sequence[str], id: str, label: str, unit: str | None, class_values: list[str] | None, progress: Progress
) -> list[LabelTable]:
    from tpsl.tables.locations import location_of
    from tpsl.vault import LabelTable

    return [
        LabelTable(path=location_of(table), id=id, label=label, unit=unit, class_values=class_values, progress=progress)
        for table in tables
    ]


def release(
    vault: LabelArgument,
    changes: SetOption = None,
    epsilon: EpsilonOption = None,
    out: Annotated[
        Path | None,
        option(
            "FOLDER", "Also write the noisy labels (Parquet) and a card (JSON), for a feature party that learns alone."
        ),
    ] = None,
    certs: Annotated[
        Path | None, option("FOLDER", "With --out: the label party's certificate folder; its key signs the card.")
    ] = None,
    records: Annotated[
        Path | None, option("FILE", "CSV or Parquet file with the ids that the feature party has: these records alone.")
    ] = None,
    id: Annotated[str, option("COLUMN", "With --records: column with the record id.")] = "id",
    label: Annotated[
        str | None,
        option("COLUMN", "With --out: what the labels are of, for the card: the label column's name in the job."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Draw the noisy label of every record that has none yet; asking again costs nothing and changes nothing.

    With --out they are handed over: a file of noisy labels, and a card that says what they cost, for a feature party
    that learns alone (`tpsl train --labels`). They tell it what the gradients of split training would. The file names
    its records: --records leaves out all that the feature party does not have, and need not know of. Example:

    tpsl vault release late --epsilon 1 --certs certs/label --out for-airport
    """
    from tpsl.handover.giving import ids_of_table
    from tpsl.tables.locations import location_of
    from tpsl.vault import Vault

    settings = Settings.of(changes, {"privacy.epsilon": epsilon}, parts=("privacy", LOCAL))
    with Vault.open(vault) as opened:
        ids = None if records is None else ids_of_table(location_of(records), id, len(opened))
        report = _release(opened, settings, ids)
        handed = None if out is None else _hand_over(opened, report, out, certs, ids, label)
        total = opened.ledger().epsilon_per_record
    names = ("draws", "epsilon", "delta", "private", "released", "already_released", "composed")
    content = {
        "vault": str(vault),
        "mechanism": report.mechanism.name,
        **{name: getattr(report, name) for name in names},
        "epsilon_per_record": total,
        **({} if handed is None else handed.content),
    }
    answer(json, content, _released(vault, report, total, handed))


def _release(vault: Vault, settings: Settings, ids: Sequence[str] | None) -> ReleaseReport:
    """Draw the noisy label of every record, or of `ids`, that has none yet, as the settings say and permit it."""
    from tpsl.training.rare_labels import rare_label_warning

    privacy = settings.load_job({"privacy": {"epsilon": None}}).privacy
    if reason := privacy.reason(vault.classes):
        notice(reason)
    classes = {str(number): count for number, count in enumerate(vault.class_counts(ids))}
    if warning := rare_label_warning(privacy, classes, split=False):
        notice(warning)
    with progress_bar("releasing") as progress:
        return vault.release(
            privacy.build(vault.classes),
            draws=privacy.draws,
            ids=ids,
            seed=privacy.noise_seed,
            policy=settings.load_local(None).release_policy(),
            progress=progress,
        )


@dataclass(frozen=True)
class _Handed:
    """What was written for a feature party."""

    folder: Path
    content: dict[str, Any]
    spent: str
    signed: bool


def _hand_over(
    vault: Vault, report: ReleaseReport, out: Path, certs: Path | None, ids: Sequence[str] | None, label: str | None
) -> _Handed:
    from tpsl.handover.card import CARD, LABELS
    from tpsl.handover.giving import hand_over
    from tpsl.report.words import spent_text
    from tpsl.vault.cost import Planned

    card = hand_over(vault, Planned(report.mechanism, report.draws, report.seed), out, certs, ids, label)
    if ids is None:
        notice("the file names every released record of the vault; --records FILE leaves out all that are not in FILE")
    if certs is None:
        warn("nobody has signed the card, so whoever gets it cannot tell where it comes from: sign it with --certs")
    if not card.spent.private:
        warn("the noise is seeded, or there is none: these labels are NOT PRIVATE")
    content = {"labels": str(out / LABELS), "card": str(out / CARD), "content": card.content()}
    return _Handed(out, content, spent_text(card.spent.epsilon, card.spent.delta), certs is not None)


def _released(vault: Path, report: ReleaseReport, total: float, handed: _Handed | None) -> Report:
    from tpsl.report.words import rounded_up

    facts: Facts = {
        "vault": vault,
        "labels": f"{report.released:,} noisy labels released now, {report.already_released:,} before",
        "mechanism": str(report.mechanism),
        "guarantee": f"{LARGEST}: {rounded_up(total, 6)}",
    }
    steps = {
        "see all releases": f"tpsl vault ledger {called(vault)}",
        "check them": f"tpsl vault verify {called(vault)}",
    }
    if handed is not None:
        facts |= {"to hand over": handed.folder, "guarantee": f"largest total of any record: {handed.spent}"}
        authority = " --certs FOLDER" if handed.signed else ""
        steps = {"feature party": f"tpsl train job.yaml --labels {handed.folder}{authority}"}
    headline = "Released the labels" if report.released else "All labels were released before: nothing more was spent"
    return Report(headline if report.private else f"{headline}, NOT PRIVATE", facts, steps)
