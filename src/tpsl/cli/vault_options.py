"""How commands are told which label: its name in the one vault, or the folder of another vault."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tpsl.vault import Vault


def named_vault(path: Path | None) -> Path | None:
    """Return the label that was named on the command line; see `tpsl.vault.place.label_meant`."""
    from tpsl.vault.place import label_meant

    return None if path is None else label_meant(path)


def called(vault: Path) -> str:
    """What a label or a vault is called on the command line: a label of the one vault by its name."""
    return vault.name if named_vault(Path(vault.name)) == vault else str(vault)


def _complete_vault(incomplete: str) -> list[str]:
    """Return the names of the labels in the vault that begin like this."""
    from tpsl.vault import Vault, the_vault

    return [name for name in Vault.labels(the_vault()) if name.startswith(incomplete)]


VaultArgument = Annotated[
    Path,
    typer.Argument(
        metavar="LABEL",
        help="The label: its name in the vault, or the folder of a vault with one label, or FOLDER/LABEL.",
        callback=named_vault,
        autocompletion=_complete_vault,
        show_default=False,
    ),
]
WholeVaultArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="FOLDER",
        help="The folder of a vault, or one of its labels. Default: the vault.",
        callback=named_vault,
        autocompletion=_complete_vault,
        show_default=False,
    ),
]


def open_whole(vault: Path) -> Vault:
    """Open a vault by its folder for what concerns all its labels, however many it has; or by one of them."""
    from tpsl.vault import Vault

    return Vault.open(next((vault / label for label in Vault.labels(vault)), vault))
