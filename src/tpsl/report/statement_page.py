"""A signed statement as one page to print: no script, nothing fetched, all that was signed."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from string import Template
from typing import Any

from tpsl.report.html_parts import asset
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


def statement_page(document: dict[str, Any], file: str) -> str:
    """Return the page of a signed statement; `file` is the name of the JSON that can be checked."""
    content = document["content"]
    return Template(asset("statement.html")).substitute(
        lead=escape(_lead(content)),
        facts=_rows([[escape(name), value] for name, value in _facts(content)]),
        releases=_rows(_release(release) for release in content["releases"])
        or '<tr><td colspan="6">Nothing was released.</td></tr>',
        meaning="".join(f"<li>{escape(sentence)}</li>" for sentence in MEANING),
        signature=escape(document["signature"]),
        file=escape(file),
    )


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


def _facts(content: dict[str, Any]) -> Iterable[tuple[str, str]]:
    signer, unit = content["signer"], content["largest_unit"]
    per_unit = f"{spent_text(unit['epsilon'], unit['delta'])} ({records_text(unit['records'])})" if unit else _NO_UNIT
    yield "Signed by", f"{escape(signer['party'])} ({escape(signer['subject'])})"
    yield "Certificate, SHA-256", _code(signer["certificate"])
    yield "Time", escape(content["time"])
    yield "Records", f"{content['records']:,}, of {content['classes']:,} classes"
    yield "Digest of their ids", _code(content["ids_digest"])
    yield "Largest total of any record", escape(spent_text(content["epsilon_per_record"], content["delta_per_record"]))
    yield "Largest total of any unit", escape(per_unit)
    if content["apart"]:
        yield "A second vault", f"Its labels are nobody’s in the first: {escape(content['apart'])}"
    yield "Private", "yes" if content["private"] else "<strong>no</strong>"
    yield "Ledger", f"{content['ledger_entries']:,} entries"
    yield "Its newest hash", _code(content["ledger_head"])
    yield "Program", escape(content["program"])


def _release(release: dict[str, Any]) -> list[str]:
    noise = "" if release["noise"] == "secure" else " (seeded noise, NOT PRIVATE)"
    period = " to ".join(dict.fromkeys((release["first"][:10], release["last"][:10])))
    return [
        escape(release["mechanism"] + noise),
        str(release["draws"]),
        f"{release['records']:,}",
        escape(spent_text(release["epsilon"], release["delta"])),
        escape(period),
        _code(release["table_digest"]),
    ]


def _rows(rows: Iterable[list[str]]) -> str:
    return "".join(
        f'<tr><th scope="row">{first}</th>' + "".join(f"<td>{cell}</td>" for cell in rest) + "</tr>"
        for first, *rest in rows
    )


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"
