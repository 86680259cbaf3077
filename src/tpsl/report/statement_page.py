"""A signed statement as one page to print: no script, nothing fetched, all that was signed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tpsl.report.chart import Cell
from tpsl.report.html_parts import document, table
from tpsl.report.markup import Markup, joined, tag
from tpsl.report.words import records_text, spent_text

MEANING = (
    "The signature shows that the holder of this certificate's key has stated exactly these figures.",
    "It does not show that they are true: they are the signer's own account of the vault.",
    "Ledger entries are chained by hashes. Someone who noted a newest hash can find out later, with access to the "
    "vault, whether the history up to it was changed, cut off or replaced; someone who noted none cannot.",
    "A signer who keeps a second vault of the same labels can leave it out of every statement.",
    "The time is what the signer's clock said.",
)
"""What a signature proves and what it does not, a sentence each."""

_NO_UNIT = "not stated: no units are kept, or they would tell whom the label party knows"
_COLUMNS = ["Mechanism", "Draws", "Records", "Cost of each record", "When", "Digest of what was sampled from"]


def statement_page(document_: dict[str, Any], file: str) -> str:
    """Return the page of a signed statement; `file` is the name of the JSON that can be checked."""
    content, title = document_["content"], "What was released of these labels"
    check = f"tpsl vault statement --check {file} --certs FOLDER"
    facts = [[Cell(name), Cell(value) if isinstance(value, str) else value] for name, value in _facts(content)]
    releases = [_release(release) for release in content["releases"]]
    body = joined(
        tag("h1", title),
        tag("p", _lead(content), class_="lead"),
        table("Facts", ["What", "Stated"], facts, "facts"),
        tag("h2", "Releases"),
        table("Releases", _COLUMNS, releases, "releases") if releases else tag("p", "Nothing was released."),
        tag("h2", "What the signature says"),
        tag("ul", *(tag("li", sentence) for sentence in MEANING)),
        tag("h2", "Signature"),
        tag("p", tag("code", document_["signature"])),
        tag("p", "It is over the JSON in ", tag("code", file), ", which anybody can check: ", tag("code", check)),
    )
    return document(title, tag("main", body, class_="statement"))


def _lead(content: dict[str, Any]) -> str:
    statistics = ["bound" in release["spec"] for release in content["releases"]]
    how = "as noisy labels" if not any(statistics) else "in noisy statistics"
    if any(statistics) and not all(statistics):
        how = "as noisy labels or in noisy statistics"
    released = f"{content['released_records']:,} of {content['records']:,} labels were released {how}"
    spent = spent_text(content["epsilon_per_record"], content["delta_per_record"])
    if not content["private"]:
        return f"{released}. NOT PRIVATE: at least one release had no noise, or noise from a seed."
    return f"{released}, and no record has spent more than {spent} in all."


def _facts(content: dict[str, Any]) -> Iterator[tuple[str, str | Markup]]:
    signer, unit = content["signer"], content["largest_unit"]
    yield "Signed by", f"{signer['party']} ({signer['subject']})"
    yield "Certificate, SHA-256", tag("code", signer["certificate"])
    yield "Time", content["time"]
    yield "Records", f"{content['records']:,}, of {content['classes']:,} classes"
    yield "Digest of their ids", tag("code", content["ids_digest"])
    yield "Largest total of any record", spent_text(content["epsilon_per_record"], content["delta_per_record"])
    per_unit = f"{spent_text(unit['epsilon'], unit['delta'])} ({records_text(unit['records'])})" if unit else _NO_UNIT
    yield "Largest total of any unit", per_unit
    if content["apart"]:
        yield "A second vault", f"Its labels are nobody’s in the first: {content['apart']}"
    yield "Private", "yes" if content["private"] else tag("strong", "no")
    yield "Ledger", f"{content['ledger_entries']:,} entries"
    yield "Its newest hash", tag("code", content["ledger_head"])
    yield "Program", content["program"]


def _release(release: dict[str, Any]) -> list[Cell | Markup]:
    noise = "" if release["noise"] == "secure" else " (seeded noise, NOT PRIVATE)"
    period = " to ".join(dict.fromkeys((release["first"][:10], release["last"][:10])))
    spent = spent_text(release["epsilon"], release["delta"])
    texts = (release["mechanism"] + noise, str(release["draws"]), f"{release['records']:,}", spent, period)
    return [*map(Cell, texts), tag("code", release["table_digest"])]
