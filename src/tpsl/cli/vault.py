"""`tpsl vault`: the label party's labels, what was released of them, and the proof of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpsl.cli import hand_over, statement, vault_key
from tpsl.cli.console import JsonFlag, answer, complain, notice, print_json, progress_bar, say, warn
from tpsl.cli.ray_options import ray_workers, with_ray
from tpsl.cli.shared_options import with_options
from tpsl.cli.vault_key import KeyFileOption, PassphraseFlag, use_chosen_key

if TYPE_CHECKING:
    from rich.table import Table

    from tpsl.vault import Incoming, LabelTable, Ledger, Vault

app = typer.Typer(help="Keep labels, release each one once, and account for it (label party).", no_args_is_help=True)

VaultPath = Annotated[Path, typer.Argument(help="The vault's folder.")]
TablesArgument = Annotated[
    list[str],
    typer.Argument(metavar="TABLE…", help="CSV or Parquet files with ids and labels; folders, patterns, s3://bucket/…"),
]
ProcessesOption = Annotated[int, typer.Option(help="How many files are read at a time; 0: as many as there are cores.")]
_COLUMNS = {
    "id": Annotated[str | None, typer.Option(help="Column with the record id. Default: id.", show_default=False)],
    "label": Annotated[
        str | None, typer.Option(help="Column with the label, 0 to classes-1. Default: label.", show_default=False)
    ],
    "unit": Annotated[
        str | None, typer.Option(help="Column with whom a record is about (a user id), for the ε per user.")
    ],
    "class_value": Annotated[
        list[str] | None,
        typer.Option(help="A label that is a text; repeat it, in class order (a job's class_values)."),
    ],
}
_META = "tpsl.labels"
_LABELS = with_ray(with_options(_COLUMNS, _META))


@app.command(cls=_LABELS)
def create(
    context: typer.Context,
    vault: VaultPath,
    tables: TablesArgument,
    classes: Annotated[int | None, typer.Option(help="Number of classes. Default: 2, or the class values.")] = None,
    processes: ProcessesOption = 0,
    key_file: KeyFileOption = None,
    passphrase: PassphraseFlag = False,
    json: JsonFlag = False,
) -> None:
    """Make a vault from files of labels; a fault in any of them leaves no vault behind.

    After a kill the same command goes on with the files that were not read yet. With --ray a cluster reads them.
    """
    from tpsl.vault import Incoming, Vault

    classes = classes or len(context.meta[_META]["class_value"] or ()) or 2
    use_chosen_key(key_file, passphrase)
    Vault.require_free(vault)
    given = _tables(context, tables)
    with progress_bar("storing labels") as progress, Incoming(vault, classes, given, progress) as incoming:
        _read(context, incoming, processes)
        made = Vault.create(vault, classes=classes, batches=incoming)
    with made:
        records, alike = len(made), _lookalikes(made)
    content = {"vault": str(vault), "records": records, "classes": classes, "lookalikes": alike}
    answer(json, content, [f"{vault}: {records:,} labels stored, none released"])


@app.command(cls=_LABELS)
def add(
    context: typer.Context,
    vault: VaultPath,
    tables: TablesArgument,
    processes: ProcessesOption = 0,
    json: JsonFlag = False,
) -> None:
    """Add records that arrived later; a released label never changes any more.

    All files enter together. After a kill the same command goes on with those that were not read yet. With --ray a
    cluster reads them.
    """
    from tpsl.vault import Incoming, Vault

    given = _tables(context, tables)
    with Vault.open(vault) as opened, progress_bar("storing labels") as progress:
        with Incoming(vault, opened.classes, given, progress) as incoming:
            _read(context, incoming, processes)
            added = opened.add(incoming)
        alike = _lookalikes(opened)
    if added.changed_after_release:
        warn(
            f"{added.changed_after_release:,} records have another label now than when they were released; "
            "their release stays as it is"
        )
    content = {"vault": str(vault), **asdict(added), "lookalikes": alike}
    known = f"{vault}: {added.new:,} new, {added.unchanged:,} known, {added.changed:,} with another label"
    answer(json, content, [known])


def _tables(context: typer.Context, tables: list[str]) -> list[LabelTable]:
    from tpsl.tables.locations import location_of
    from tpsl.vault import LabelTable

    named = context.meta[_META]
    return [
        LabelTable(
            path=location_of(table),
            id=named["id"] or "id",
            label=named["label"] or "label",
            unit=named["unit"],
            class_values=named["class_value"] or None,
        )
        for table in tables
    ]


def _read(context: typer.Context, incoming: Incoming, processes: int) -> None:
    """Read the files that are missing: in processes of this machine, or of a Ray cluster."""
    share = ray_workers(context)
    if share is None:
        incoming.read(processes)
        return
    from tpsl.on_ray.cluster import connected
    from tpsl.on_ray.label_reading import read_labels

    with connected() as ray:
        read_labels(ray, share, incoming)


@app.command(cls=hand_over.COMMAND)
def release(context: typer.Context, vault: VaultPath, json: JsonFlag = False) -> None:
    """Draw the noisy label of every record that has none yet; asking again changes nothing."""
    from tpsl.report.words import rounded_up
    from tpsl.vault import Vault

    with Vault.open(vault) as opened:
        report = hand_over.release_all(opened, context)
        total, alike = opened.ledger().epsilon_per_record, _lookalikes(opened)
    names = ("draws", "epsilon", "delta", "private", "released", "already_released", "composed")
    content = {
        "vault": str(vault),
        "mechanism": report.mechanism.name,
        **{name: getattr(report, name) for name in names},
    }
    released = f"{report.released:,} released with {report.mechanism}, {report.already_released:,} were released before"
    answer(
        json,
        {**content, "epsilon_per_record": total, "lookalikes": alike},
        [f"{vault}: {released}; largest ε of any record: {rounded_up(total, 6)}"],
    )


def _since(entries: int) -> str:
    if not entries:
        return "and the hash is that of the newest ledger entry"
    return f"and {entries:,} ledger entr{'ies were' if entries > 1 else 'y was'} added since the hash was noted"


def _lookalikes(vault: Vault) -> int:
    """Warn of ids that look alike; return how many do."""
    found = vault.lookalikes()
    if found is not None:
        warn(str(found))
    return found.records if found else 0


@app.command()
def ledger(vault: VaultPath, json: JsonFlag = False) -> None:
    """Show what was released, when and at which price."""
    from tpsl.vault import Vault

    with Vault.open(vault) as opened:
        found = opened.ledger()
    answer(json, {"vault": str(vault), **found.as_dict()}, _ledger(vault, found))


def _ledger(vault: Path, found: Ledger) -> Iterator[str | Table]:
    from rich.table import Table
    from rich.text import Text

    from tpsl.report.words import records_text, rounded_up

    table = Table("#", "when (UTC)", "what", "records", "ε", "δ", "hash", title=Text(f"Ledger of {vault}"))
    for entry in found.entries:
        released = entry.is_release
        table.add_row(
            str(entry.sequence),
            entry.time[:19].replace("T", " "),
            entry.description if released else entry.kind,
            f"{entry.details['records']:,}" if "records" in entry.details else "",
            rounded_up(entry.epsilon, 6) if released else "",
            rounded_up(entry.delta, 3) if released else "",
            entry.hash[:12],
        )
    yield table
    per_record = f"largest ε of any record: {rounded_up(found.epsilon_per_record, 6)}"
    yield per_record + ("" if found.private else "  — NOT PRIVATE")
    if unit := found.largest_unit:
        yield f"largest ε of any unit: {rounded_up(unit.epsilon, 6)} (a unit with {records_text(unit.records)})"
    yield f"newest hash: {found.head}"


@app.command()
def verify(
    vault: VaultPath,
    head: Annotated[
        str | None, typer.Option(help="A hash of the ledger that was noted earlier: is the history up to it the same?")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Recompute everything the ledger claims and test the noise; exit status 1 if anything does not hold."""
    from tpsl.vault import Vault

    with Vault.open(vault, of_any_age=True) as opened, progress_bar("verifying") as progress:
        since = opened.entries_since(head.strip().lower()) if head is not None else None
        problems = opened.verify(progress=progress)
        remarks = [] if problems else opened.remarks()
        unseen = [] if problems else opened.cannot_see()
    if head is not None and since is None:
        problems.append(f"the ledger was cut or replaced: no entry of it has the hash {head.strip()}")
    if json:
        noted = {} if head is None else {"entries_since_head": since}
        found = {"problems": problems, "remarks": remarks, "cannot_see": unseen, **noted}
        print_json({"vault": str(vault), "sound": not problems, **found})
    elif problems:
        for problem in problems:
            complain(problem)
    else:
        notice("chain, records, releases and tables agree, and the noise is that of the tables")
        for sentence in (*remarks, *unseen):
            notice(sentence)
        say(f"{vault}: sound" + ("" if head is None else f", {_since(since or 0)}"))
    if problems:
        raise typer.Exit(1)


@app.command()
def backup(
    vault: VaultPath,
    out: Annotated[Path, typer.Option(help="A new folder for the copy.")],
    json: JsonFlag = False,
) -> None:
    """Copy a vault as it is at this moment, also while others use it."""
    from tpsl.vault import Vault

    with Vault.open(vault) as opened:
        opened.back_up(out)
    with Vault.open(out, of_any_age=True) as copy:
        records, head = len(copy), copy.head()
    content = {"vault": str(vault), "copy": str(out), "records": records, "head": head}
    answer(json, content, [f"{out}: a copy of {vault}, {records:,} records; newest hash: {head}"])


@app.command()
def witness(
    vault: VaultPath,
    file: Annotated[Path, typer.Argument(help="A file on another disk or machine; it need not exist.")],
    json: JsonFlag = False,
) -> None:
    """Have a file elsewhere know how far the ledger has come: then a copy that is older is not opened any more."""
    from tpsl.vault import Vault

    with Vault.open(vault, of_any_age=True) as opened:
        opened.appoint_witness(file)
        head = opened.head()
    content = {"vault": str(vault), "witness": str(file), "head": head}
    answer(json, content, [f"{vault}: {file} is its witness from now on"])


app.command("hand-over", cls=hand_over.COMMAND)(hand_over.hand_over)
app.command("statement")(statement.statement)
app.command("check-statement")(statement.check_statement)
app.command("new-key")(vault_key.new_key)
app.command("encrypt")(vault_key.encrypt)
app.command("decrypt")(vault_key.decrypt)
