"""`tpsl vault`: the label party's labels, what was released of them, and the proof of it."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from tpsl import __version__
from tpsl.cli import flags
from tpsl.cli.console import Facts, Report, answer, complain, notice, progress_bar, slim_table, warn
from tpsl.cli.flags import LOCAL, JsonFlag, Settings, argument, complete_vault, flag, option
from tpsl.files import write_atomically
from tpsl.handover import signing
from tpsl.handover.card import CARD, LABELS
from tpsl.handover.giving import hand_over, handed_problems, ids_of_table
from tpsl.net.certificates import AUTHORITY_FILE
from tpsl.report.statement_page import MEANING, statement_page
from tpsl.report.words import counted, records_text, rounded_up, spent_text, spoken
from tpsl.run.method import rare_label_warning
from tpsl.tables.locations import location_of
from tpsl.vault import LabelTable, Ledger, ReleaseReport, Vault, VaultError, place, the_vault
from tpsl.vault.cost import Planned
from tpsl.vault.statement import first_difference, require_statement

LARGEST = "largest ε of any record"
_LARGEST_FILE = 1 << 20


def _meant(path: Path | None) -> Path | None:
    return None if path is None else place.label_meant(path)


_LABEL: dict[str, Any] = {"callback": _meant, "autocompletion": complete_vault}
WholeVaultArgument = Annotated[Path | None, argument("FOLDER", "A vault or its label. Default: your vault.", **_LABEL)]


def _called(vault: Path) -> str:
    """What a label or a vault is called on the command line: a label of the one vault by its name."""
    return vault.name if place.label_meant(Path(vault.name)) == vault else str(vault)


def _open_whole(vault: Path) -> Vault:
    """Open a vault by its folder for what concerns all its labels, however many it has; or by one of them."""
    return Vault.open(next((vault / label for label in Vault.labels(vault)), vault))


def add(
    vault: Annotated[Path, argument("LABEL", "The label's name in the vault, or FOLDER/LABEL.")],
    tables: Annotated[list[str], argument("TABLE…", "CSV or Parquet: files, folders, patterns, s3://bucket/…")],
    new: Annotated[bool, flag("--new", "A new label, in a new vault if there is none.")] = False,
    id: Annotated[str, option("COLUMN", "Column with the record id.")] = "id",
    label: Annotated[str, option("COLUMN", "Column with the label.")] = "label",
    unit: Annotated[str | None, option("COLUMN", "Whom a record is about (a user id), for the ε per user.")] = None,
    classes: Annotated[
        list[str] | None,
        option("NUMBER", "Labels are numbers below this. Or repeat it: each label's text, in class order. Default: 2."),
    ] = None,
    apart: Annotated[str | None, option("TEXT", "Make a second vault: why none of its labels is in the first.")] = None,
    json: JsonFlag = False,
) -> None:
    """Store labels from files: a new label (--new), or records of one that arrived later; those of all files or none.

    A released label never changes any more. Example: tpsl vault add late labels.csv --new
    """
    vault = vault if apart else place.label_meant(vault)
    texts = None if not classes or (len(classes) == 1 and classes[0].isdecimal()) else classes
    number = len(texts) if texts else int(classes[0]) if classes else 2
    with progress_bar("storing labels") as progress:
        batches = [
            LabelTable(path=location_of(name), id=id, label=label, unit=unit, class_values=texts, progress=progress)
            for name in tables
        ]
        if new or apart is not None:
            with Vault.create(vault, classes=number, batches=batches, apart=apart, notice=warn) as made:
                content = {"records": len(made), "classes": number}
        else:
            with Vault.open(vault) as opened:
                content = asdict(opened.add(batches, notice=warn))
    if changed := content.get("changed_after_release"):
        warn(f"{changed:,} records have another label now than when they were released; their release stays as it is")
    name = _called(vault)
    train = f"tpsl train job.yaml{'' if name == vault.name else f' --vault {name}'}"
    steps = {"release them": f"tpsl vault release {name} --epsilon 1", "or train": train}
    counts = ", ".join(f"{count:,} {spoken(fact)}" for fact, count in content.items())
    report = Report("Stored the labels", {"vault": vault, "labels": counts}, steps if content.get("new", 1) else {})
    answer(json, {"vault": str(vault), **content}, report)


def release(
    vault: Annotated[Path, argument("LABEL", "The label: its name in the vault, or FOLDER/LABEL.", **_LABEL)],
    changes: flags.SetOption = None,
    epsilon: flags.EpsilonOption = None,
    out: Annotated[Path | None, option("FOLDER", "Also write noisy labels and a card, to hand over.")] = None,
    certs: Annotated[Path | None, option("FOLDER", "With --out: certificate folder, whose key signs the card.")] = None,
    records: Annotated[
        Path | None, option("FILE", "CSV or Parquet file with ids: release these records alone.")
    ] = None,
    id: Annotated[str, option("COLUMN", "With --records: column with the record id.")] = "id",
    label: Annotated[str | None, option("COLUMN", "With --out: the label column's name in the job.")] = None,
    json: JsonFlag = False,
) -> None:
    """Draw the noisy label of every record that has none yet; asking again costs nothing and changes nothing.

    With --out they are handed over: a file of noisy labels, and a card that says what they cost, for a feature party
    that learns alone (`tpsl train --labels`). They tell it what the gradients of split training would. The file names
    its records: --records leaves out all that the feature party does not have, and need not know of. Example:

    tpsl vault release late --epsilon 1 --certs certs/label --out for-airport
    """
    settings = Settings.of(changes, {"privacy.epsilon": epsilon}, parts=("privacy", LOCAL))
    with Vault.open(vault) as opened:
        ids = None if records is None else ids_of_table(location_of(records), id, len(opened))
        report = _release(opened, settings, ids)
        plan = Planned(report.mechanism, report.draws, report.seed)
        card = None if out is None else hand_over(opened, plan, out, certs, ids, label)
        total = opened.ledger().epsilon_per_record
    names = ("draws", "epsilon", "delta", "private", "released", "already_released", "composed")
    content: dict[str, Any] = {name: getattr(report, name) for name in names}
    content |= {"vault": str(vault), "mechanism": report.mechanism.name, "epsilon_per_record": total}
    facts: Facts = {
        "vault": vault,
        "labels": f"{report.released:,} noisy labels released now, {report.already_released:,} before",
        "mechanism": str(report.mechanism),
        "guarantee": f"{LARGEST}: {rounded_up(total, 6)}",
    }
    name = _called(vault)
    steps = {"see all releases": f"tpsl vault ledger {name}", "check them": f"tpsl vault verify {name}"}
    if out is not None and card is not None:
        if ids is None:
            notice("the file names every released record of the vault; --records FILE restricts it to those of FILE")
        if certs is None:
            warn("nobody has signed the card, so whoever gets it cannot tell where it comes from: sign it with --certs")
        if not card.spent.private:
            warn("the noise is seeded, or there is none: these labels are NOT PRIVATE")
        content |= {"labels": str(out / LABELS), "card": str(out / CARD), "content": card.content()}
        spent = spent_text(card.spent.epsilon, card.spent.delta)
        facts |= {"to hand over": out, "guarantee": f"largest total of any record: {spent}"}
        steps = {"feature party": f"tpsl train job.yaml --labels {out}{' --certs FOLDER' if certs else ''}"}
    headline = "Released the labels" if report.released else "All labels were released before: nothing more was spent"
    answer(json, content, Report(headline if report.private else f"{headline}, NOT PRIVATE", facts, steps))


def _release(vault: Vault, settings: Settings, ids: Sequence[str] | None) -> ReleaseReport:
    """Draw the noisy label of every record, or of `ids`, that has none yet, as the settings say and permit it."""
    privacy = settings.load_job({"privacy": {"epsilon": None}}).privacy
    if reason := privacy.reason(vault.classes):
        notice(reason)
    classes = {str(number): count for number, count in enumerate(vault.class_counts(ids))}
    if warning := rare_label_warning(privacy, classes):
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


def ledger(
    vault: Annotated[Path | None, argument("LABEL", "As elsewhere; none: list all.", **_LABEL)] = None,
    json: JsonFlag = False,
) -> None:
    """Show what was released, when and at which price; without a label, what each one has spent in all."""
    if vault is None:
        _list_labels(json)
        return
    with Vault.open(vault) as opened:
        found = opened.ledger()
    answer(json, {"vault": str(vault), **found.as_dict()}, _ledger(vault, found))


def _list_labels(json: bool) -> None:
    folder, found, rows = the_vault(), list[dict[str, Any]](), list[tuple[str, ...]]()
    for name in Vault.labels(folder):
        with Vault.open(folder / name) as vault:
            ledger = vault.ledger()
        facts = ("records", "released_records", "epsilon_per_record", "delta_per_record", "private")
        found.append({"label": name, **{fact: getattr(ledger, fact) for fact in facts}})
        total = spent_text(ledger.epsilon_per_record, ledger.delta_per_record)
        together = spent_text(ledger.all_labels.epsilon, ledger.all_labels.delta) if ledger.all_labels else total
        counts = f"{ledger.records:,}", f"{ledger.released_records:,}"
        rows.append((name, *counts, total + ("" if ledger.private else ", NOT PRIVATE"), together))
    if not found:
        raise VaultError(f"there is no vault at {folder}: make one with tpsl train or tpsl vault add --new")
    headings = ("label", "records", "released", "largest total of any record", "over all labels")
    table = slim_table(headings, rows, numbers=headings[1:3])
    steps = {"all releases of one": f"tpsl vault ledger {found[0]['label']}"}
    report = Report(f"{counted(len(found), 'label')} in the vault {folder}", next_steps=steps, tables=[table])
    answer(json, {"vault": str(folder), "labels": found}, report)


def _ledger(vault: Path, found: Ledger) -> Report:
    private, unit, in_all = "" if found.private else ", NOT PRIVATE", found.largest_unit, found.all_labels
    of_unit = f"{rounded_up(unit.epsilon, 6)} (a unit with {records_text(unit.records)})" if unit else None
    facts: Facts = {
        LARGEST: rounded_up(found.epsilon_per_record, 6) + private,
        "over all labels": rounded_up(in_all.epsilon, 6) if in_all else None,
        "largest ε of any unit": of_unit,
        "newest hash": found.head,
    }
    rows = (
        (
            str(entry.sequence),
            entry.time[:16].replace("T", " "),
            entry.description if entry.is_release else " ".join([entry.kind, *entry.details.get("name", "").split()]),
            f"{entry.details['records']:,}" if "records" in entry.details else "",
            rounded_up(entry.epsilon, 6) if entry.is_release else "",
            rounded_up(entry.delta, 3) if entry.is_release else "",
            entry.hash[:12],
        )
        for entry in found.entries
        if entry.details.get("label") in (found.label, *found.same_labels)
    )
    headings = ("#", "when (UTC)", "what", "records", "ε", "δ", "hash")
    table = slim_table(headings, rows, numbers={*headings} - {"what"})
    name = _called(vault)
    stated = f"tpsl vault statement {name} --certs certs/label"
    steps = {"check all of it": f"tpsl vault verify {name}", "state it, signed": stated}
    return Report(f"Ledger of {name}: {counted(len(found.releases), 'release')}", facts, steps, [table])


def verify(
    vault: WholeVaultArgument = None,
    head: Annotated[str | None, option("HASH", "A noted hash of the ledger: is it in its history?", "--hash")] = None,
    handed: Annotated[Path | None, option("FOLDER", "Also check what `vault release --out` wrote.")] = None,
    json: JsonFlag = False,
) -> None:
    """Recompute everything the ledger claims and test the noise; exit status 1 if anything does not hold."""
    vault = vault or the_vault()
    with _open_whole(vault) if handed is None else Vault.open(vault) as opened, progress_bar("verifying") as progress:
        since = opened.entries_since(head.strip().lower()) if head is not None else None
        problems = opened.verify(progress=progress)
        problems += [] if handed is None else handed_problems(opened, handed)
        unseen = [] if problems else opened.cannot_see()
    if head is not None and since is None:
        problems.append(f"the ledger was cut or replaced: no entry of it has the hash {head.strip()}")
    content = {"vault": str(vault), "sound": not problems, "problems": problems, "cannot_see": unseen}
    content |= {} if head is None else {"entries_since_head": since}
    facts: Facts = {
        "checked": "chain, records, releases and tables agree, and the noise is that of the tables",
        "hash": None if since is None else f"is known; entries since: {since:,}",
        "handed over": handed and f"{handed} holds noisy labels as they were released, and nothing else",
    }
    steps = {"state what was released": "tpsl vault statement LABEL --certs certs/label"}
    answer(json, content, [] if problems else Report(f"{vault}: sound", facts, steps))
    if not json:
        for sentence in unseen:
            notice(sentence)
        for problem in problems:
            complain(problem)
    if problems:
        raise typer.Exit(1)


def move(to: Annotated[Path, argument("FOLDER", "A new folder, or where it is.")], json: JsonFlag = False) -> None:
    """Move the vault to another folder, or say where it is by now; every command finds it there from then on."""
    before, after = place.move(to), to.resolve()
    report = Report("Noted where the vault is", {"vault": after, "before": before})
    answer(json, {"vault": str(after), "before": str(before)}, report)


def backup(
    out: Annotated[Path, option("FOLDER", "A new folder for the copy.")],
    vault: WholeVaultArgument = None,
    json: JsonFlag = False,
) -> None:
    """Copy the vault as it is at this moment, also while others use it."""
    vault = vault or the_vault()
    with _open_whole(vault) as opened:
        opened.back_up(out)
    with _open_whole(out) as copy:
        labels, head = len(Vault.labels(out)), copy.head()
    content = {"vault": str(vault), "copy": str(out), "labels": labels, "head": head}
    facts: Facts = {"copy": out, "labels": str(labels), "newest hash": head}
    steps = {"check it": f"tpsl vault verify {out} --hash {head}"}
    answer(json, content, Report(f"Copied the vault {vault}", facts, steps))


def statement(
    vault: Annotated[Path | None, argument("LABEL", "With --check: the vault it is about.", **_LABEL)] = None,
    certs: Annotated[Path | None, option("FOLDER", "Certificate folder: its key signs, its authority checks.")] = None,
    out: Annotated[Path, option("FOLDER", "Folder for the statement, as JSON and as a page to print.")] = Path(),
    check: Annotated[Path | None, option("FILE", "Check this statement instead, and say what it proves.")] = None,
    json: JsonFlag = False,
) -> None:
    """Write a signed statement of what was released, or check one; exit status 1 if it does not hold.

    It has figures for the other side, no label and no noisy label. Examples:

    tpsl vault statement late --certs certs/label --out statements

    tpsl vault statement --check statement-20260131-120000.json --certs certs/feature
    """
    if check is not None:
        _check(check, certs, vault, json)
        return
    if vault is None or certs is None:
        raise typer.BadParameter("a statement is of a LABEL, and signed with the key in --certs FOLDER")
    with Vault.open(vault) as opened:
        _require_sound(opened, f"the vault {vault} is not sound, so nothing is stated about it")
        facts = opened.statement()
    document = signing.sign({**facts, "program": f"tpsl {__version__}"}, certs)
    stamp = document["content"]["time"][:19].replace(":", "").replace("-", "").replace("T", "-")
    signed, page = (out / f"statement-{stamp}.{ending}" for ending in ("json", "html"))
    if taken := next(filter(Path.exists, (signed, page)), None):
        raise ValueError(f"{taken}: exists already; a statement is never written over another")
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(signed, (jsonlib.dumps(document, indent=1, ensure_ascii=False) + "\n").encode())
    write_atomically(page, statement_page(document, signed.name).encode())
    content = {"statement": str(signed), "page": str(page), "content": document["content"]}
    steps = {"the other side": f"tpsl vault statement --check {signed.name} --certs FOLDER"}
    answer(json, content, Report("Stated what was released", {"signed": signed, "to print": page}, steps))


def _require_sound(vault: Vault, sentence: str) -> None:
    with progress_bar("verifying") as progress:
        if problems := vault.verify(progress=progress):
            raise VaultError(f"{sentence}: {problems[0]}")


def _check(file: Path, certs: Path | None, vault: Path | None, json: bool) -> None:
    try:
        document = signing.read_document(file, "statement", _LARGEST_FILE)
        checked = signing.check(document, None if certs is None else certs / AUTHORITY_FILE)
        require_statement(checked.content)
        since = _entries_since(checked.content, vault) if vault is not None else None
    except (signing.SignatureInvalid, VaultError) as error:
        raise ValueError(f"{file}: {error}") from error
    if not checked.by_authority:
        warn("the certificate was not traced to an authority, and anybody can make one: name yours with --certs")
    if checked.expired_since:
        notice("the certificate has expired since; it was valid when the statement was signed")
    for sentence in MEANING:
        notice(sentence)
    found = {"file": str(file), "valid": True, "by_authority": checked.by_authority, "content": checked.content}
    answer(json, {**found, **({} if vault is None else {"entries_since": since})}, _stated(checked.content, since))


def _entries_since(content: dict[str, Any], path: Path) -> int:
    """How many entries the vault's ledger got since the statement, which must speak of this vault."""
    with Vault.open(path) as vault:
        _require_sound(vault, f"the vault {path} is not sound")
        since = vault.entries_since(content["ledger_head"])
        now = vault.statement()
    if since is None or now["ledger_entries"] - since != content["ledger_entries"]:
        raise VaultError(f"the ledger of {path} does not have the history it speaks of: it was cut or replaced")
    difference = None if since else first_difference(content, now)
    if difference is not None:
        raise VaultError(f"the vault {path} contradicts it: {difference} is {now[difference]!r}")
    return since


def _stated(content: dict[str, Any], since: int | None) -> Report:
    signer, unit = content["signer"], content["largest_unit"]
    of_unit = unit and f"{spent_text(unit['epsilon'], unit['delta'])} ({records_text(unit['records'])})"
    facts: Facts = {
        "signed by": f"{signer['party']} ({signer['subject']}) on {content['time']}",
        "fingerprint": signer["certificate"],
        "records": f"{content['released_records']:,} released of {content['records']:,}",
        "largest total": f"{spent_text(content['epsilon_per_record'], content['delta_per_record'])} of any record",
        "of any unit": of_unit,
        "a second vault": content["apart"] and f"whose labels are nobody's in the first: {content['apart']}",
        "private": "yes" if content["private"] else "NO",
        "ledger": f"{content['ledger_entries']:,} entries",
        "newest hash": content["ledger_head"],
        "vault": None if since is None else f"has this history; entries since: {since:,}",
    }
    return Report("The signature holds", facts)
