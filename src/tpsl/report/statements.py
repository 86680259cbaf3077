"""The newest signed statement about a vault that lies where a party keeps such things."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from tpsl.files import read_plain
from tpsl.handover.signing import check
from tpsl.report.run_view import StatementView
from tpsl.report.words import spent_text
from tpsl.run.run_folder import RunFolder
from tpsl.vault.place import address_of
from tpsl.vault.statement import require_statement

_LARGEST = 1 << 20


def own_statement(run: RunFolder, vault: Path, heads: Sequence[str]) -> StatementView | None:
    """Return the label party's newest statement about a run's label: beside the vault, or in the run's folder."""
    folder, label = address_of(vault)
    return newest_statement((run.path, run.label, folder, folder.parent, folder.parent / "statements"), heads, label)


def newest_statement(
    folders: Iterable[Path], heads: Sequence[str] | None = None, label: str | None = None
) -> StatementView | None:
    """Return the newest statement in these folders whose signature holds; None if there is none.

    With `heads`, the hashes of a ledger's entries, oldest first, it must speak of that ledger, and of the `label` if
    one is given. The signer is not traced to an authority here: `tpsl vault statement --check` does that. A file may
    come from the other side: whatever is not a whole statement is passed over.
    """
    files = {file for folder in folders if folder.is_dir() for file in folder.glob("statement-*.json")}
    for file in sorted(files, key=lambda file: file.name, reverse=True):  # their names begin with the time
        try:
            content = check(json.loads(read_plain(file, _LARGEST))).content
            require_statement(content)
        except (OSError, ValueError, RecursionError):
            continue
        if label not in (None, content["label"]):
            continue
        if heads is None or content["ledger_head"] in heads:
            return StatementView(
                file=file.name,
                party=content["signer"]["party"],
                time=content["time"],
                spent_text=spent_text(content["epsilon_per_record"], content["delta_per_record"]),
                entries_since=None if heads is None else len(heads) - 1 - heads.index(content["ledger_head"]),
            )
    return None
