"""The folder of an audit: new, because what is found must come from this audit alone."""

from __future__ import annotations

from pathlib import Path

from tpsl.files import make_private_folder


class AuditError(ValueError):
    """An audit that cannot be made; the message names the folder."""


def new_folder(folder: Path) -> None:
    """Make a folder for its owner only; one that holds anything already is refused."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise AuditError(f"{folder}: exists already; an audit needs a new folder")
    make_private_folder(folder)
    folder.chmod(0o700)
