"""The place of the label party's vaults: one folder that a user can see, move and back up, `vaults` beside `runs`."""

import os
from itertools import chain, count
from pathlib import Path

from tpsl.vault.storage import DATABASE
from tpsl.vault.vault import Vault

VARIABLE = "TPSL_VAULTS"
"""The environment variable that names another place."""


def default_place() -> Path:
    """The folder of the label party's vaults: `vaults` in the current folder, unless the environment names another."""
    return Path(os.environ.get(VARIABLE) or "vaults")


def vaults_in(folder: Path) -> list[Path]:
    """The vaults that lie in a folder, by name; a folder that does not exist holds none."""
    return [path for path in folders_of_vaults(folder) if Vault.exists(path)]


def folders_of_vaults(folder: Path) -> list[Path]:
    """The folders in a folder that have a vault's file, which is not opened."""
    return [file.parent for file in sorted(folder.glob(f"*/{DATABASE}"))]


def vault_called(path: Path) -> Path:
    """The vault that a user means: a name that no folder here has is that of a vault of the place, if it has one."""
    in_place = default_place() / path
    is_name = path.parts == (path.name,) and not path.exists()
    return in_place if is_name and (in_place / DATABASE).is_file() else path


def free_name(folder: Path, name: str) -> Path:
    """A path in the folder that nothing has yet: the name, with a number where it is taken."""
    candidates = (folder / (name + suffix) for suffix in chain([""], (f"-{number}" for number in count(2))))
    return next(path for path in candidates if not path.exists() or _is_unfinished(path))


def _is_unfinished(path: Path) -> bool:
    """A creation that was killed midway is taken over."""
    return (path / DATABASE).is_file() and not Vault.exists(path)
