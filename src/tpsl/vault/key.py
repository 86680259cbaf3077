"""The key of encrypted vaults: a file of random bytes, or a passphrase that is typed.

A process has one key. It opens the vaults that are encrypted, and encrypts those that are created. The environment
variable `TPSL_VAULT_KEY` names the key file, so the processes that this one starts have it too; `vault_key` in a local
file sets the variable. Where it names none, the passphrase of an encrypted vault is asked for on the terminal, once,
and is known to this process alone. A passphrase is taken from nowhere else: others see arguments and variables.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import secrets
import sys
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path

from tpsl.files import is_kept_secret, open_private
from tpsl.vault.errors import VaultError

VARIABLE = "TPSL_VAULT_KEY"
"""The environment variable that names the key file."""

_LEAST_BYTES, _MOST_BYTES = 32, 1 << 16
_LEAST_LETTERS = 12
_typed: Key | None = None


@dataclass(frozen=True)
class Key:
    """What opens an encrypted vault."""

    secret: bytes = field(repr=False)
    file: Path | None = None
    """Where it was read from; None: it is a passphrase that was typed."""

    def __str__(self) -> str:
        return "the passphrase" if self.file is None else f"the key file {self.file}"

    def for_database(self) -> str:
        """The key as SQLCipher takes it.

        Of a passphrase it derives 32 bytes, in each file under a salt of its own, by 256,000 rounds of
        PBKDF2-HMAC-SHA512. A key file is random enough to need one hash.
        """
        return self.secret.decode() if self.file is None else f"x'{hashlib.sha256(self.secret).hexdigest()}'"

    def derived(self, purpose: str) -> bytes:
        """32 bytes for something beside the database, the same ones for the same purpose."""
        return hashlib.scrypt(self.secret, salt=purpose.encode(), n=1 << 15, r=8, p=1, maxmem=1 << 26, dklen=32)


def named_key() -> Key | None:
    """The key of this process: of the file that is named, else the passphrase that was typed before; None: neither."""
    path = os.environ.get(VARIABLE)
    return read_key_file(Path(path)) if path else _typed


def use_key(key: Key) -> None:
    """Have this process use a key; if it is in a file, so do the processes that this one starts."""
    global _typed
    if key.file is None:
        _typed = key
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = str(key.file.absolute())


def read_key_file(path: Path) -> Key:
    """The key in a file; one that others can read, or that is too short to be random, is a `VaultError`."""
    try:
        with path.open("rb") as file:
            kept_secret = is_kept_secret(os.fstat(file.fileno()), os.geteuid())
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise VaultError(f"the key file {path} cannot be read ({error.strerror})") from error
    if not kept_secret:
        raise VaultError(f"the key file {path} can be read by others; make it its owner's only: chmod 600 {path}")
    if not _LEAST_BYTES <= len(content) <= _MOST_BYTES:
        raise VaultError(
            f"{path} is no key file: it has {len(content):,} bytes, and a key has {_LEAST_BYTES} to {_MOST_BYTES:,} "
            "random ones; `tpsl vault new-key FILE` makes one"
        )
    return Key(content, path)


def make_key_file(path: Path) -> None:
    """Make a key file of 32 random bytes, for its owner only; a file that exists stays as it is."""
    try:
        with open_private(path, "xb") as file:
            file.write(secrets.token_bytes(_LEAST_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise VaultError(f"no key file can be made at {path} ({error.strerror})") from error


def type_passphrase(vault: Path) -> Key | None:
    """Ask on the terminal for the passphrase of a vault; None where there is no terminal."""
    return _passphrase(getpass.getpass(f"passphrase of the vault {vault}: ")) if sys.stdin.isatty() else None


def type_new_passphrase() -> Key:
    """Ask on the terminal for a new passphrase, twice."""
    if not sys.stdin.isatty():
        raise VaultError("a passphrase is typed on a terminal, and there is none here; use a key file")
    first = getpass.getpass("new passphrase: ")
    if len(first) < _LEAST_LETTERS:
        raise VaultError(f"a passphrase has at least {_LEAST_LETTERS} characters; five random words are a good one")
    if getpass.getpass("the same again: ") != first:
        raise VaultError("the two passphrases differ; nothing was changed")
    return _passphrase(first)


def _passphrase(text: str) -> Key:
    """A passphrase as a key: the same one however a terminal writes letters with accents."""
    return Key(unicodedata.normalize("NFC", text).encode())
