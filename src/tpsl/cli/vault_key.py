"""`tpsl vault new-key`, `encrypt` and `decrypt`: who reads the disk does not read the labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpsl.cli.console import JsonFlag, Report, answer
from tpsl.cli.vault_options import VaultArgument

if TYPE_CHECKING:
    from tpsl.vault.key import Key

KeyFileOption = Annotated[
    Path | None, typer.Option("--key-file", help="Encrypt with the key in this file; `tpsl vault new-key` makes one.")
]
PassphraseFlag = Annotated[
    bool, typer.Option("--passphrase", help="Encrypt with a passphrase, which you are asked for on the terminal.")
]


def use_chosen_key(key_file: Path | None, passphrase: bool) -> None:
    """Have this process use the key that the options name, if they name one."""
    from tpsl.vault.key import use_key

    if key := _chosen(key_file, passphrase):
        use_key(key)


def _chosen(key_file: Path | None, passphrase: bool) -> Key | None:
    from tpsl.vault.key import read_key_file, type_new_passphrase

    if key_file is not None and passphrase:
        raise typer.BadParameter("a vault has one key: --key-file or --passphrase")
    if passphrase:
        return type_new_passphrase()
    return None if key_file is None else read_key_file(key_file)


def new_key(
    file: Annotated[Path, typer.Argument(help="Where the key will be: on another disk than the vault.")],
    json: JsonFlag = False,
) -> None:
    """Make a key file of 32 random bytes, which only you can read."""
    from tpsl.vault.key import VARIABLE, make_key_file

    make_key_file(file)
    facts: dict[str, str | Path] = {
        "key file": file,
        "if it is lost": "nobody can open what it has encrypted: keep a copy elsewhere",
    }
    steps = {"use it": f"export {VARIABLE}={file.absolute()}", "encrypt a vault": "tpsl vault encrypt VAULT"}
    answer(json, {"key_file": str(file)}, Report("A new key", facts, steps))


def encrypt(
    vault: VaultArgument, key_file: KeyFileOption = None, passphrase: PassphraseFlag = False, json: JsonFlag = False
) -> None:
    """Encrypt a vault, or give it another key; without an option it is the key that TPSL_VAULT_KEY names."""
    from tpsl.vault import VaultError
    from tpsl.vault.encrypting import change_key
    from tpsl.vault.key import VARIABLE, named_key

    key = _chosen(key_file, passphrase) or named_key()
    if key is None:
        raise VaultError(f"which key? Name one with --key-file FILE, --passphrase or {VARIABLE}")
    change_key(vault, key)
    facts: dict[str, str | Path] = {
        "vault": vault,
        "opened by": str(key),
        "not covered": "backups from before, and what the disk still holds",
    }
    steps = {"check it": f"tpsl vault verify {vault}"}
    named = named_key()
    if key.file is not None and (named is None or named.secret != key.secret):
        steps = {"use the key": f"export {VARIABLE}={key.file.absolute()}", **steps}
    answer(json, {"vault": str(vault), "encrypted": True}, Report("Encrypted the vault", facts, steps))


def decrypt(vault: VaultArgument, json: JsonFlag = False) -> None:
    """Take the encryption off a vault: then whoever reads the disk reads the labels."""
    from tpsl.vault.encrypting import change_key
    from tpsl.vault.key import VARIABLE

    change_key(vault, None)
    facts: dict[str, str | Path] = {"vault": vault, "labels": "can be read by whoever reads the disk"}
    answer(
        json,
        {"vault": str(vault), "encrypted": False},
        Report("Took the encryption off", facts, {"go on": f"unset {VARIABLE}"}),
    )
