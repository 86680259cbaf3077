"""`tpsl certs`: a private authority and one certificate for each party, for a first try or a small group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpsl.cli.console import JsonFlag, answer

if TYPE_CHECKING:
    from tpsl.transport.certificates import PartyFolder


def certs(
    job: Annotated[Path | None, typer.Argument(help="Job file: a certificate for each of its parties.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the authority and the parties' folders.")] = Path("certs"),
    party: Annotated[list[str] | None, typer.Option(help="A certificate for this party too; may be repeated.")] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long the certificates are valid.")] = 365,
    json: JsonFlag = False,
) -> None:
    """Make an authority and one certificate per party; what is there already stays as it is.

    Example: tpsl certs job.yaml
    """
    from tpsl.transport.certificates import AUTHORITY, party_folders

    parties = [*(_parties_of(job) if job else ()), *(party or ())]
    if not parties:
        raise ValueError("certs needs a job file, or a --party to make a certificate for")
    made = party_folders(out, list(dict.fromkeys(parties)), days)
    folders = [
        {"party": m.party, "folder": str(m.folder), "expires": m.expires.isoformat(), "new": m.new} for m in made
    ]
    answer(json, {"authority": str(out / AUTHORITY), "parties": folders}, _advice(out / AUTHORITY, made))


def _parties_of(job: Path) -> list[str]:
    from tpsl.data.dataset import feature_party_names
    from tpsl.training.job import load_job

    return ["label", *feature_party_names(load_job(job).data)]


def _advice(authority: Path, made: Sequence[PartyFolder]) -> Iterator[str]:
    for certificate in made:
        valid = f"valid until {certificate.expires:%Y-%m-%d}"
        if certificate.new:
            whom = "the label party" if certificate.party == "label" else certificate.party
            yield f"send the folder {certificate.folder} to {whom} over a channel you trust ({valid})"
        else:
            yield f"{certificate.folder} was there already and stays as it is ({valid})"
    yield f"keep {authority} offline or delete it: anyone who has it can pose as any party"
