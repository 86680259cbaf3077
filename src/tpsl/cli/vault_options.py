"""How commands are told which vault: its folder, or its name in the place of vaults."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def named_vault(path: Path | None) -> Path | None:
    """Return the vault that was named on the command line; see `tpsl.vault.place.vault_called`."""
    from tpsl.vault.place import vault_called

    return None if path is None else vault_called(path)


def _complete_vault(incomplete: str) -> list[str]:
    """Return the names of the vaults in the place that begin like this."""
    from tpsl.vault.place import default_place, folders_of_vaults

    return [path.name for path in folders_of_vaults(default_place()) if path.name.startswith(incomplete)]


VaultArgument = Annotated[
    Path,
    typer.Argument(
        metavar="VAULT",
        help="The vault: its folder, or its name in the folder `vaults`.",
        callback=named_vault,
        autocompletion=_complete_vault,
        show_default=False,
    ),
]
