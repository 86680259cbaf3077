"""`tpsl vault hand-over`: the noisy labels as a file, with a signed card, for the feature party to learn from alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpsl.cli.console import Facts, JsonFlag, Report, answer, notice, progress_bar, warn
from tpsl.cli.settings import LIMIT_FLAGS, Settings, settings_command
from tpsl.cli.vault_options import VaultArgument
from tpsl.cli.verbosity import reasons, with_verbose

if TYPE_CHECKING:
    from tpsl.vault import ReleaseReport, Vault

_FLAGS = {"mechanism": "privacy.mechanism", "epsilon": "privacy.epsilon", "noise_seed": "privacy.noise_seed"}
COMMAND = with_verbose(settings_command("privacy", "local", **_FLAGS, **LIMIT_FLAGS, compose="local.compose"))
"""What a command takes that releases the labels of a vault."""


def release_all(vault: Vault, context: typer.Context, ids: Sequence[str] | None = None) -> ReleaseReport:
    """Draw the noisy label of every record, or of `ids`, that has none yet, as the settings say and permit it."""
    from tpsl.training.rare_labels import rare_label_warning

    settings = Settings.of(context)
    privacy = settings.load_job({"privacy": {"epsilon": None}}).privacy
    if reason := privacy.reason(vault.classes):
        reasons(context, notice)(reason)
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


def hand_over(
    context: typer.Context,
    vault: VaultArgument,
    out: Annotated[Path, typer.Option(help="Folder for the labels (Parquet) and their card (JSON).")],
    certs: Annotated[
        Path | None, typer.Option(help="The label party's certificate folder; its key signs the card.")
    ] = None,
    records: Annotated[
        Path | None, typer.Option(help="CSV or Parquet file with the ids that the feature party has: these alone.")
    ] = None,
    id: Annotated[str, typer.Option(help="Column of that file with the record id.")] = "id",
    label: Annotated[
        str | None, typer.Option(help="What the labels are of, for the card: the label column's name in the job.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Write the noisy labels of a vault, and a card that says what they cost, for a feature party that learns alone.

    Labels that are not released yet are released first, as `tpsl vault release` does; those that are cost nothing. They
    tell a feature party what the gradients of split training would. The file names its records: --records leaves out
    all that the feature party does not have, and need not know of. Example:

    tpsl vault hand-over late --epsilon 1 --certs certs/label --out for-airport
    """
    from tpsl.handover.card import CARD, LABELS
    from tpsl.handover.giving import hand_over as write
    from tpsl.handover.giving import ids_of_table
    from tpsl.report.words import spent_text
    from tpsl.tables.locations import location_of
    from tpsl.vault import Vault
    from tpsl.vault.cost import Planned

    with Vault.open(vault) as opened:
        ids = None if records is None else ids_of_table(location_of(records), id, len(opened))
        report = release_all(opened, context, ids)
        card = write(opened, Planned(report.mechanism, report.draws, report.seed), out, certs, ids, label)
    if ids is None:
        notice("the file names every released record of the vault; --records FILE leaves out all that are not in FILE")
    if certs is None:
        warn("nobody has signed the card, so whoever gets it cannot tell where it comes from: sign it with --certs")
    if not card.spent.private:
        warn("the noise is seeded, or there is none: these labels are NOT PRIVATE")
    notice(f"{report.released:,} were released now, {report.already_released:,} were before")
    files = {"labels": str(out / LABELS), "card": str(out / CARD)}
    spent = spent_text(card.spent.epsilon, card.spent.delta)
    facts: Facts = {"folder": out, "labels": f"{card.records:,} noisy labels, {card.mechanism}"}
    facts["guarantee"] = f"largest total of any record: {spent}"
    steps = {"feature party": f"tpsl learn job.yaml --labels {out}" + (" --certs FOLDER" if certs else "")}
    answer(json, {"vault": str(vault), **files, "content": card.content()}, Report("To hand over", facts, steps))
