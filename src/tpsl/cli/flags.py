"""Flags that several commands share. Each means the same everywhere; `metavar` is the word that help shows.

An everyday flag stands for one key of a job or of a local file; the command says which (`Settings.of`). Every other key
is set with `--set KEY=VALUE`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tpsl.cli.settings import complete_key
from tpsl.vault import Vault, the_vault


def option(word: str, help: str, *names: str, **more: Any) -> Any:
    """Return an option that takes a value, which help shows as this word."""
    return typer.Option(*names, metavar=word, help=help, **more)


def flag(name: str, help: str, *names: str, **more: Any) -> Any:
    """Return an option that takes nothing."""
    return typer.Option(name, *names, help=help, **more)


def argument(word: str, help: str, **more: Any) -> Any:
    """Return an argument, which help shows as this word."""
    return typer.Argument(metavar=word, help=help, **more)


def complete_vault(incomplete: str) -> list[str]:
    """Return the names of the labels in the vault that begin like this."""
    return [name for name in Vault.labels(the_vault()) if name.startswith(incomplete)]


JobArgument = Annotated[Path, argument("JOB", "The job file (YAML) that all parties hold.")]
RunArgument = Annotated[Path, argument("RUN", "Run folder.")]
ModelArgument = Annotated[Path, argument("RUN", "Run folder, or that of a search, whose ensemble is the model then.")]
RunsArgument = Annotated[list[Path], argument("RUN…", "Run folders.")]

JsonFlag = Annotated[bool, flag("--json", "Print exactly one JSON object on standard output.")]
SetOption = Annotated[
    list[str] | None,
    option(
        "KEY=VALUE",
        "Set a key of the job or the local file (local.wait=60); may be repeated. `tpsl help keys` lists them.",
        "--set",
        autocompletion=complete_key,
    ),
]
LocalOption = Annotated[Path | None, option("FILE", "This side's local file (YAML); options override it.", "--local")]
LocalsOption = Annotated[
    list[Path] | None, option("FILE", "A party's local file (YAML), which names its party; may be repeated.", "--local")
]
EpsilonOption = Annotated[float | None, option("NUMBER", "The ε of one noisy label.")]
OutOption = Annotated[Path | None, option("FOLDER", "Run folder; an interrupted run in it is resumed.")]
VaultOption = Annotated[
    Path | None,
    option("LABEL", "Label party: the label's name in the vault, or FOLDER/LABEL.", autocompletion=complete_vault),
]
ListenOption = Annotated[str | None, option("HOST:PORT", "Label party: where to listen; port 0 takes a free one.")]
ConnectOption = Annotated[str | None, option("HOST:PORT", "Feature party: where the label party listens.")]
CertsOption = Annotated[Path | None, option("FOLDER", "Folder with ca.pem, cert.pem and key.pem.")]
PartyOption = Annotated[str | None, option("NAME", "Which party this is, where no file or certificate says it.")]
RayOption = Annotated[int | None, option("NUMBER", "Train in so many processes of a Ray cluster (RAY_ADDRESS).", min=1)]
HeadOption = Annotated[
    Literal["private", "local"],
    option("NAME", "'private', or 'local': the label party's head, trained on true labels and NOT PRIVATE."),
]
ForOption = Annotated[
    str,
    option("PARTY", "Who reads it: label, feature or a feature party (nothing that depends on true labels).", "--for"),
]
