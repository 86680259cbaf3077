"""`tpsl vault statement`: what was released, signed by the label party, for the other side."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated, Any

import typer

from tpsl.cli.console import Report, answer, notice, progress_bar, warn
from tpsl.cli.flags import JsonFlag, complete_vault, named_vault

_LARGEST_FILE = 1 << 20


def statement(
    vault: Annotated[
        Path | None,
        typer.Argument(
            metavar="LABEL",
            help="The label, as elsewhere. With --check: the vault that the statement speaks of, if you have it.",
            callback=named_vault,
            autocompletion=complete_vault,
            show_default=False,
        ),
    ] = None,
    certs: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Your certificate folder: the label party's key signs, the other side's authority (ca.pem) checks.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder for the statement, as JSON and as a page to print.")
    ] = Path(),
    check: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Check this statement instead, and say what it proves.", show_default=False),
    ] = None,
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
    from tpsl.net.signing import sign
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
    from tpsl.net.credentials import AUTHORITY_FILE
    from tpsl.net.signing import SignatureInvalid, check, read_document
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
