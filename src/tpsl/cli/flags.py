"""Flags that several commands share. Each means the same everywhere; `metavar` is the word that help shows.

An everyday flag stands for one key of a job or of a local file; the command says which (`Settings.of`). Every other key
is set with `--set KEY=VALUE`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tpsl.cli.schema_keys import choices_of, settable_keys
from tpsl.vault import Vault, the_vault
from tpsl.vault.place import label_meant

Head = Literal["private", "local"]


def option(word: str, help: str, *names: str, **more: Any) -> Any:
    """Return an option that takes a value, which help shows as this word."""
    return typer.Option(*names, metavar=word, help=help, **more)


def flag(name: str, help: str, *names: str, **more: Any) -> Any:
    """Return an option that takes nothing."""
    return typer.Option(name, *names, help=help, **more)


def argument(word: str, help: str, **more: Any) -> Any:
    """Return an argument, which help shows as this word."""
    return typer.Argument(metavar=word, help=help, **more)


def complete_key(incomplete: str) -> list[str]:
    """Return the keys, and after the equals sign the values, that begin like this."""
    name, equals, value = incomplete.partition("=")
    if not equals:
        return [f"{key}=" for key in settable_keys() if key.startswith(name)]
    return [f"{name}={choice}" for choice in choices_of(name) if choice.startswith(value)]


def complete_vault(incomplete: str) -> list[str]:
    """Return the names of the labels in the vault that begin like this."""
    return [name for name in Vault.labels(the_vault()) if name.startswith(incomplete)]


def named_vault(path: Path | None) -> Path | None:
    """Return the label that was named on the command line; see `tpsl.vault.place.label_meant`."""
    return None if path is None else label_meant(path)


def label_argument(help: str, word: str = "LABEL") -> Any:
    """Return an argument that names a label of the vault, or the folder of another one."""
    return argument(word, help, callback=named_vault, autocompletion=complete_vault)


def called(vault: Path) -> str:
    """What a label or a vault is called on the command line: a label of the one vault by its name."""
    return vault.name if named_vault(Path(vault.name)) == vault else str(vault)


def open_whole(vault: Path) -> Vault:
    """Open a vault by its folder for what concerns all its labels, however many it has; or by one of them."""
    return Vault.open(next((vault / label for label in Vault.labels(vault)), vault))


# Arguments

JobArgument = Annotated[Path, argument("JOB", "The job file (YAML) that all parties hold.")]
RunArgument = Annotated[Path, argument("RUN", "Run folder.")]
ModelArgument = Annotated[
    Path,
    argument("RUN", "Run folder, or that of a search, whose ensemble is the model then."),
]
RunsArgument = Annotated[list[Path], argument("RUN…", "Run folders.")]
LabelArgument = Annotated[
    Path,
    label_argument("The label: its name in the vault, or the folder of a vault with one label, or FOLDER/LABEL."),
]
WholeVaultArgument = Annotated[
    Path | None, label_argument("The folder of a vault, or one of its labels. Default: the vault.", "FOLDER")
]

# Keys and files

SetOption = Annotated[
    list[str] | None,
    option(
        "KEY=VALUE",
        "Set any key of the job (training.epochs=3) or of the local file (local.wait=60); may be repeated. `tpsl help "
        "keys` lists them.",
        "--set",
        autocompletion=complete_key,
    ),
]
LocalOption = Annotated[Path | None, option("FILE", "This side's local file (YAML); options override it.", "--local")]
LocalsOption = Annotated[
    list[Path] | None, option("FILE", "A party's local file (YAML), which names its party; may be repeated.", "--local")
]
JsonFlag = Annotated[bool, flag("--json", "Print exactly one JSON object on standard output.")]

# Keys that are set every day

EpsilonOption = Annotated[float | None, option("NUMBER", "The ε of one noisy label.")]
EpochsOption = Annotated[int | None, option("NUMBER", "How often each record is used at most.")]
OutOption = Annotated[
    Path | None, option("FOLDER", "Run folder; an interrupted run in it is resumed. Default: in runs/.")
]
VaultOption = Annotated[
    Path | None,
    option(
        "LABEL", "Label party: the label's name in the vault, or another vault's folder.", autocompletion=complete_vault
    ),
]
ListenOption = Annotated[str | None, option("HOST:PORT", "Label party: where to listen; port 0 takes a free one.")]
ConnectOption = Annotated[str | None, option("HOST:PORT", "Feature party: where the label party listens.")]
CertsOption = Annotated[Path | None, option("FOLDER", "Folder with ca.pem, cert.pem and key.pem.")]
PartyOption = Annotated[
    str | None, option("NAME", "Which party this is. Default: as the local file or the certificate says.")
]
RayOption = Annotated[
    int | None,
    option(
        "NUMBER",
        "Train in so many processes of a Ray cluster: that at RAY_ADDRESS or on this machine, else one made for this.",
        min=1,
    ),
]

# What several commands take besides keys

HeadOption = Annotated[
    Head,
    option(
        "NAME",
        "'private', or 'local': the label party's own head, trained on true labels. What it says is NOT PRIVATE.",
    ),
]
SpaceOption = Annotated[
    Path | None,
    option("FILE", "YAML list of changes to the job to try. Default: what suits the classes and the networks."),
]
ForOption = Annotated[
    str,
    option(
        "PARTY",
        "Who reads it: label, feature, or a feature party by its name. A feature party is shown nothing that depends "
        "on true labels.",
        "--for",
    ),
]
