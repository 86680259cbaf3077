"""Flags that several commands share. Each means the same everywhere; `metavar` is the word that help shows.

An everyday flag stands for one key of a job or of a local file; the command says which (`Settings.of`). Every other key
is set with `--set KEY=VALUE`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from tpsl.vault import Vault

Head = Literal["private", "local"]


def complete_key(incomplete: str) -> list[str]:
    """Return the keys, and after the equals sign the values, that begin like this."""
    from tpsl.cli.schema_keys import choices_of, settable_keys

    name, equals, value = incomplete.partition("=")
    if not equals:
        return [f"{key}=" for key in settable_keys() if key.startswith(name)]
    return [f"{name}={choice}" for choice in choices_of(name) if choice.startswith(value)]


def complete_run(incomplete: str) -> list[str]:
    """Return the run folders, here and one folder down, whose path begins like this."""
    found = (job.parent for depth in ("*", "*/*") for job in Path().glob(f"{depth}/job.yaml"))
    return [str(run) for run in sorted(found) if str(run).startswith(incomplete)]


def complete_source(incomplete: str) -> list[str]:
    """Return the data sources that begin like this."""
    from tpsl.cli.schema_keys import choices_of

    return [name for name in choices_of("data.source") if name.startswith(incomplete)]


def complete_vault(incomplete: str) -> list[str]:
    """Return the names of the labels in the vault that begin like this."""
    from tpsl.vault import Vault, the_vault

    return [name for name in Vault.labels(the_vault()) if name.startswith(incomplete)]


def named_vault(path: Path | None) -> Path | None:
    """Return the label that was named on the command line; see `tpsl.vault.place.label_meant`."""
    from tpsl.vault.place import label_meant

    return None if path is None else label_meant(path)


def called(vault: Path) -> str:
    """What a label or a vault is called on the command line: a label of the one vault by its name."""
    return vault.name if named_vault(Path(vault.name)) == vault else str(vault)


def open_whole(vault: Path) -> Vault:
    """Open a vault by its folder for what concerns all its labels, however many it has; or by one of them."""
    from tpsl.vault import Vault

    return Vault.open(next((vault / label for label in Vault.labels(vault)), vault))


# Arguments

JobArgument = Annotated[Path, typer.Argument(metavar="JOB", help="The job file (YAML) that all parties hold.")]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.", autocompletion=complete_run)]
ModelArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="Run folder, or that of a search, whose ensemble is the model then.",
        autocompletion=complete_run,
    ),
]
RunsArgument = Annotated[list[Path], typer.Argument(metavar="RUN…", help="Run folders.", autocompletion=complete_run)]
LabelArgument = Annotated[
    Path,
    typer.Argument(
        metavar="LABEL",
        help="The label: its name in the vault, or the folder of a vault with one label, or FOLDER/LABEL.",
        callback=named_vault,
        autocompletion=complete_vault,
    ),
]
WholeVaultArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="FOLDER",
        help="The folder of a vault, or one of its labels. Default: the vault.",
        callback=named_vault,
        autocompletion=complete_vault,
    ),
]

# Keys and files

SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set any key of the job (training.epochs=3) or of the local file (local.wait=60); may be repeated. "
        "`tpsl help keys` lists them.",
        autocompletion=complete_key,
    ),
]
LocalOption = Annotated[
    Path | None, typer.Option("--local", metavar="FILE", help="This side's local file (YAML); options override it.")
]
LocalsOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--local", metavar="FILE", help="A party's local file (YAML), which names its party; may be repeated."
    ),
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object on standard output.")]

# Keys that are set every day

EpsilonOption = Annotated[float | None, typer.Option(metavar="NUMBER", help="The ε of one noisy label.")]
EpochsOption = Annotated[int | None, typer.Option(metavar="NUMBER", help="How often each record is used at most.")]
OutOption = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Run folder; an interrupted run in it is resumed. Default: in runs/."),
]
VaultOption = Annotated[
    Path | None,
    typer.Option(
        metavar="LABEL",
        help="Label party: the label's name in the vault, or another vault's folder.",
        autocompletion=complete_vault,
    ),
]
ListenOption = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Label party: where to listen; port 0 takes a free one.")
]
ConnectOption = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Feature party: where the label party listens.")
]
CertsOption = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Folder with ca.pem, cert.pem and key.pem.")]
PartyOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Which party this is. Default: as the local file or the certificate says."),
]
RayOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="NUMBER",
        help="Train in so many processes of a Ray cluster: that at RAY_ADDRESS or on this machine, else one made for "
        "this.",
    ),
]

# What several commands take besides keys

HeadOption = Annotated[
    Head,
    typer.Option(
        metavar="NAME",
        help="'private', or 'local': the label party's own head, trained on true labels. What it says is NOT PRIVATE.",
    ),
]
SpaceOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="YAML list of changes to the job to try. Default: what suits the classes and the networks."
    ),
]
ForOption = Annotated[
    str,
    typer.Option(
        "--for",
        metavar="PARTY",
        help="Who reads it: label, feature, or a feature party by its name. A feature party is shown nothing that "
        "depends on true labels.",
    ),
]
