"""`tpsl vault`: the label party's labels, what was released of them, and the proof of it."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpsl.cli.console import Facts, Report, answer, complain, notice, print_json, progress_bar, slim_table, warn
from tpsl.cli.flags import (
    JsonFlag,
    WholeVaultArgument,
    argument,
    called,
    complete_vault,
    named_vault,
    open_whole,
    option,
)
from tpsl.cli.vault_labels import LARGEST

if TYPE_CHECKING:
    from tpsl.vault import Ledger


def ledger(
    vault: Annotated[
        Path | None,
        argument(
            "LABEL",
            "As elsewhere; none: list all labels of the vault.",
            callback=named_vault,
            autocompletion=complete_vault,
        ),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Show what was released, when and at which price; without a label, what each one has spent in all."""
    from tpsl.vault import Vault

    if vault is None:
        _list_labels(json)
        return
    with Vault.open(vault) as opened:
        found = opened.ledger()
    answer(json, {"vault": str(vault), **found.as_dict()}, _ledger(vault, found))


def _list_labels(json: bool) -> None:
    """Show all labels of the one vault, and what each has spent."""
    from tpsl.report.words import counted, spent_text
    from tpsl.vault import Vault, VaultError, the_vault

    folder = the_vault()
    found: list[dict[str, Any]] = []
    rows: list[tuple[str, ...]] = []
    for name in Vault.labels(folder):
        with Vault.open(folder / name) as vault:
            ledger = vault.ledger()
        spent = {"epsilon_per_record": ledger.epsilon_per_record, "delta_per_record": ledger.delta_per_record}
        counts = {"records": ledger.records, "released_records": ledger.released_records}
        found.append({"label": name, **counts, **spent, "private": ledger.private})
        total = spent_text(ledger.epsilon_per_record, ledger.delta_per_record)
        private = "" if ledger.private else ", NOT PRIVATE"
        together = spent_text(ledger.all_labels.epsilon, ledger.all_labels.delta) if ledger.all_labels else total
        rows.append((name, *(f"{count:,}" for count in counts.values()), total + private, together))
    if not found:
        raise VaultError(f"there is no vault at {folder}: make one with tpsl train or tpsl vault add --new")
    headings = ("label", "records", "released", "largest total of any record", "over all labels")
    table = slim_table(headings, rows, numbers=headings[1:3])
    steps = {"all releases of one": f"tpsl vault ledger {found[0]['label']}"}
    report = Report(f"{counted(len(found), 'label')} in the vault {folder}", next_steps=steps, tables=[table])
    answer(json, {"vault": str(folder), "labels": found}, report)


def _ledger(vault: Path, found: Ledger) -> Report:
    from tpsl.report.words import counted, records_text, rounded_up

    private = "" if found.private else ", NOT PRIVATE"
    facts: Facts = {LARGEST: rounded_up(found.epsilon_per_record, 6) + private}
    if found.all_labels:
        facts["over all labels"] = rounded_up(found.all_labels.epsilon, 6)
    if unit := found.largest_unit:
        facts["largest ε of any unit"] = f"{rounded_up(unit.epsilon, 6)} (a unit with {records_text(unit.records)})"
    facts["newest hash"] = found.head
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
    table = slim_table(
        ("#", "when (UTC)", "what", "records", "ε", "δ", "hash"),
        rows,
        numbers=("#", "when (UTC)", "records", "ε", "δ", "hash"),
    )
    releases, name = counted(len(found.releases), "release"), called(vault)
    steps = {
        "check all of it": f"tpsl vault verify {name}",
        "state it, signed": f"tpsl vault statement {name} --certs certs/label",
    }
    return Report(f"Ledger of {name}: {releases}", facts, steps, [table])


def verify(
    vault: WholeVaultArgument = None,
    head: Annotated[
        str | None,
        option("HASH", "A hash of the ledger that was noted earlier: is the history up to it the same?", "--hash"),
    ] = None,
    handed: Annotated[
        Path | None,
        option("FOLDER", "What `vault release --out` wrote: does it hold what was released, and nothing else?"),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Recompute everything the ledger claims and test the noise; exit status 1 if anything does not hold."""
    from tpsl.handover.checking import handed_problems
    from tpsl.vault import Vault, the_vault

    vault = vault or the_vault()
    with open_whole(vault) if handed is None else Vault.open(vault) as opened, progress_bar("verifying") as progress:
        since = opened.entries_since(head.strip().lower()) if head is not None else None
        problems = opened.verify(progress=progress)
        problems += [] if handed is None else handed_problems(opened, handed)
        unseen = [] if problems else opened.cannot_see()
    if head is not None and since is None:
        problems.append(f"the ledger was cut or replaced: no entry of it has the hash {head.strip()}")
    if json:
        noted = {} if head is None else {"entries_since_head": since}
        found = {"problems": problems, "cannot_see": unseen, **noted}
        print_json({"vault": str(vault), "sound": not problems, **found})
    elif problems:
        for problem in problems:
            complain(problem)
    else:
        for sentence in unseen:
            notice(sentence)
        answer(False, {}, _sound(vault, since, handed))
    if problems:
        raise typer.Exit(1)


def _sound(vault: Path, since: int | None, handed: Path | None) -> Report:
    facts: Facts = {"checked": "chain, records, releases and tables agree, and the noise is that of the tables"}
    if since is not None:
        added = "1 ledger entry was" if since == 1 else f"{since:,} ledger entries were"
        facts["hash"] = f"{added} added since it was noted" if since else "that of the newest ledger entry"
    if handed is not None:
        facts["handed over"] = f"{handed} holds noisy labels as they were released, and nothing else"
    return Report(
        f"{vault}: sound", facts, {"state what was released": "tpsl vault statement LABEL --certs certs/label"}
    )


def move(
    to: Annotated[Path, argument("FOLDER", "A new folder, or where the vault is by now.")], json: JsonFlag = False
) -> None:
    """Move the vault to another folder, or say where it is by now; every command finds it there from then on."""
    from tpsl.vault import place

    before = place.move(to)
    facts: Facts = {"vault": to.resolve(), "before": before}
    answer(json, {"vault": str(to.resolve()), "before": str(before)}, Report("Noted where the vault is", facts, {}))


def backup(
    out: Annotated[Path, option("FOLDER", "A new folder for the copy.")],
    vault: WholeVaultArgument = None,
    json: JsonFlag = False,
) -> None:
    """Copy the vault as it is at this moment, also while others use it."""
    from tpsl.vault import Vault, the_vault

    vault = vault or the_vault()
    with open_whole(vault) as opened:
        opened.back_up(out)
    with open_whole(out) as copy:
        labels, head = len(Vault.labels(out)), copy.head()
    content = {"vault": str(vault), "copy": str(out), "labels": labels, "head": head}
    facts: Facts = {"copy": out, "labels": str(labels), "newest hash": head}
    steps = {"check it": f"tpsl vault verify {out} --hash {head}"}
    answer(json, content, Report(f"Copied the vault {vault}", facts, steps))


_LARGEST_FILE = 1 << 20


def statement(
    vault: Annotated[
        Path | None,
        argument(
            "LABEL",
            "The label, as elsewhere. With --check: the vault that the statement speaks of, if you have it.",
            callback=named_vault,
            autocompletion=complete_vault,
        ),
    ] = None,
    certs: Annotated[
        Path | None,
        option(
            "FOLDER",
            "Your certificate folder: the label party's key signs, the other side's authority (ca.pem) checks.",
        ),
    ] = None,
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
    elif vault is None or certs is None:
        raise typer.BadParameter("a statement is of a LABEL, and signed with the key in --certs FOLDER")
    else:
        _state(vault, certs, out, json)


def _state(vault: Path, certs: Path, out: Path, json: bool) -> None:
    from tpsl import __version__
    from tpsl.files import write_atomically
    from tpsl.handover.signing import sign
    from tpsl.report.statement_page import statement_page
    from tpsl.vault import Vault

    with Vault.open(vault) as opened, progress_bar("verifying") as progress:
        problems = opened.verify(progress=progress)
        if problems:
            raise ValueError(f"the vault {vault} is not sound, so nothing is stated about it: {problems[0]}")
        facts = opened.statement()
    document = sign({**facts, "program": f"tpsl {__version__}"}, certs)
    stamp = document["content"]["time"][:19].replace(":", "").replace("-", "").replace("T", "-")
    files = [out / f"statement-{stamp}.{ending}" for ending in ("json", "html")]
    for file in files:
        if file.exists():
            raise ValueError(f"{file}: exists already; a statement is never written over another")
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(files[0], (jsonlib.dumps(document, indent=1, ensure_ascii=False) + "\n").encode())
    write_atomically(files[1], statement_page(document, files[0].name).encode())
    content = {"statement": str(files[0]), "page": str(files[1]), "content": document["content"]}
    steps = {"the other side": f"tpsl vault statement --check {files[0].name} --certs FOLDER"}
    answer(json, content, Report("Stated what was released", {"signed": files[0], "to print": files[1]}, steps))


def _check(file: Path, certs: Path | None, vault: Path | None, json: bool) -> None:
    from tpsl.handover.signing import SignatureInvalid, check, read_document
    from tpsl.net.certificates import AUTHORITY_FILE
    from tpsl.report.statement_page import MEANING
    from tpsl.vault import VaultError
    from tpsl.vault.statement import require_statement

    try:
        document = read_document(file, "statement", _LARGEST_FILE)
        checked = check(document, None if certs is None else certs / AUTHORITY_FILE)
        require_statement(checked.content)
        since = _entries_since(checked.content, vault) if vault is not None else None
    except (SignatureInvalid, VaultError) as error:
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
    from tpsl.vault import Vault, VaultError
    from tpsl.vault.statement import first_difference

    with Vault.open(path) as vault, progress_bar("verifying") as progress:
        problems = vault.verify(progress=progress)
        if problems:
            raise VaultError(f"the vault {path} is not sound: {problems[0]}")
        since = vault.entries_since(content["ledger_head"])
        now = vault.statement()
    if since is None or now["ledger_entries"] - since != content["ledger_entries"]:
        raise VaultError(f"the ledger of {path} does not have the history it speaks of: it was cut or replaced")
    difference = None if since else first_difference(content, now)
    if difference is not None:
        raise VaultError(f"the vault {path} contradicts it: {difference} is {now[difference]!r}")
    return since


def _stated(content: dict[str, Any], since: int | None) -> Report:
    from tpsl.report.words import records_text, spent_text

    signer, unit = content["signer"], content["largest_unit"]
    facts = {
        "signed by": f"{signer['party']} ({signer['subject']}) on {content['time']}",
        "fingerprint": signer["certificate"],
        "records": f"{content['released_records']:,} released of {content['records']:,}",
        "largest total": f"{spent_text(content['epsilon_per_record'], content['delta_per_record'])} of any record",
    }
    if unit is not None:
        facts["of any unit"] = f"{spent_text(unit['epsilon'], unit['delta'])} ({records_text(unit['records'])})"
    if content["apart"]:
        facts["a second vault"] = f"whose labels are nobody's in the first: {content['apart']}"
    facts["private"] = "yes" if content["private"] else "NO"
    facts["ledger"] = f"{content['ledger_entries']:,} entries"
    facts["newest hash"] = content["ledger_head"]
    if since is not None:
        added = "no entry was" if not since else "1 entry was" if since == 1 else f"{since:,} entries were"
        facts["vault"] = f"has this history; {added} added since"
    return Report("The signature holds", facts)
