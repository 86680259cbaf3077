"""Where the label party's one vault is, found again from any folder.

A label party has one vault, because only a vault that knows all releases can add them up. Its place is noted in
`vault.json` in the folder TPSL_HOME (`~/.tpsl` if the environment does not name one); the vault itself is the folder
`vault` there until it is moved (`tpsl vault move`). The first vault that is made becomes the one. A second one is
refused, unless its maker says why its labels are nobody's in the first, and that sentence is kept in its ledger. From a
copy of the one vault nothing is released. A scratch vault is counted nowhere, and nothing of it may leave.

A label of a vault is addressed as FOLDER/LABEL, or as FOLDER where the vault has one label only.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tpsl.files import make_private_folder, write_atomically
from tpsl.vault.errors import VaultError
from tpsl.vault.storage import DATABASE

VARIABLE = "TPSL_HOME"
"""The environment variable that names another folder than `~/.tpsl`."""
_NOTE = "vault.json"


class Address(NamedTuple):
    """A vault's folder, and the name of one of its labels; None: the only one."""

    folder: Path
    label: str | None


def home() -> Path:
    """The folder in which this user's vault is noted."""
    return Path(os.environ.get(VARIABLE) or Path.home() / ".tpsl")


def the_vault() -> Path:
    """The folder of the label party's vault, whether it exists yet or not."""
    try:
        noted = json.loads((home() / _NOTE).read_bytes())["vault"]
    except FileNotFoundError:
        return home() / "vault"
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise VaultError(f"{home() / _NOTE} cannot be read ({error}), so it is not known where the vault is") from error
    return Path(noted)


def is_vault(folder: Path) -> bool:
    """Whether a folder has a vault's file with anything in it, which is not opened."""
    file = folder / DATABASE
    return file.is_file() and file.stat().st_size > 0


def address_of(path: Path) -> Address:
    """The vault and the label that a path means: FOLDER/LABEL of a vault that is there, or of the one vault."""
    if not is_vault(path) and path.name and (is_vault(path.parent) or path.parent == the_vault()):
        return Address(path.parent, path.name)
    return Address(path, None)


def label_meant(path: Path) -> Path:
    """What a user means by a bare name: a label of the one vault, unless a vault here has that name."""
    is_name = path.parts == (path.name,) and not is_vault(path)
    return the_vault() / path if is_name else path


def require_counted(folder: Path, apart: str | None) -> None:
    """Raise a `VaultError` unless releases of the vault in `folder` are counted: it is the one, or apart from it.

    Where no other vault is noted, or the one that is noted is gone, this becomes the one.
    """
    if apart is not None:
        return
    with _noting():
        noted = the_vault()
        if noted.exists() and is_vault(noted) and not (folder.exists() and noted.samefile(folder)):
            raise VaultError(
                f"the label party has its vault at {noted}, and only one vault can add up what its labels spend: use "
                f"that one, not {folder}, or say with --apart SENTENCE (in Python apart=...) why nobody is in both"
            )
        if not (home() / _NOTE).exists() or noted != folder.resolve():
            _note(folder)


def move(to: Path) -> Path:
    """Move the label party's vault to a new folder, or note that it is there by now; return where it was."""
    with _noting():
        before, to = the_vault(), to.resolve()
        if is_vault(before) and is_vault(to) and not before.samefile(to):
            raise VaultError(f"there is a vault at {before} and another at {to}: one of them would not be counted")
        if is_vault(before) and not is_vault(to):
            if to.exists():
                raise VaultError(f"{to} exists, so no vault can be moved there")
            make_private_folder(to.parent)
            shutil.move(before, to)
        if not is_vault(to):
            raise VaultError(f"there is no vault at {before}, nor at {to}")
        _note(to)
        return before


def _note(folder: Path) -> None:
    write_atomically(home() / _NOTE, (json.dumps({"vault": str(folder.resolve())}) + "\n").encode())


@contextmanager
def _noting() -> Iterator[None]:
    """One process at a time, so that two never make their vault the one."""
    try:
        make_private_folder(home())
        lock = os.open(home(), os.O_RDONLY)
    except OSError as error:
        raise VaultError(f"{home()} cannot be used ({error.strerror}); {VARIABLE} names another folder") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
