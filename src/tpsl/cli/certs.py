"""`tpsl certs`: a private authority and one certificate for each party, for a first try or a small group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from tpsl.cli.console import JsonFlag, answer

_AUTHORITY = "authority"


@dataclass(frozen=True)
class _Made:
    """A party's certificate folder; `new` if this command wrote it."""

    party: str
    folder: Path
    expires: datetime
    new: bool


def certs(
    job: Annotated[Path | None, typer.Argument(help="Job file: a certificate for each of its parties.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the authority and the parties' folders.")] = Path("certs"),
    party: Annotated[list[str] | None, typer.Option(help="A certificate for this party too; can be repeated.")] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long the certificates are valid.")] = 365,
    json: JsonFlag = False,
) -> None:
    """Make an authority and one certificate per party; what is there already stays as it is.

    Example: tpsl certs job.yaml
    """
    parties = [*(_parties_of(job) if job else ()), *(party or ())]
    if not parties:
        raise ValueError("certs needs a job file, or a --party to make a certificate for")
    made = _make(out, list(dict.fromkeys(parties)), days)
    folders = [
        {"party": m.party, "folder": str(m.folder), "expires": m.expires.isoformat(), "new": m.new} for m in made
    ]
    answer(json, {"authority": str(out / _AUTHORITY), "parties": folders}, _advice(out / _AUTHORITY, made))


def _parties_of(job: Path) -> list[str]:
    from tpsl.data.dataset import feature_party_names
    from tpsl.training import load_job

    return ["label", *feature_party_names(load_job(job).data)]


def _make(out: Path, parties: list[str], days: int) -> list[_Made]:
    from tpsl.transport.certificates import create_authority, require_party_name
    from tpsl.transport.credentials import AUTHORITY_FILE

    for party in parties:
        require_party_name(party)
        if party == _AUTHORITY:
            raise ValueError(f"a party cannot be named {party!r}: {out / party} is the folder of the authority")
    authority = out / _AUTHORITY
    if not authority.exists():
        # Not hidden ones: those are what a command that was killed has left.
        orphan = min(out.glob(f"[!.]*/{AUTHORITY_FILE}"), default=None)
        if orphan:
            raise ValueError(
                f"{authority}: is gone, and a new authority would not fit {orphan.parent}; "
                "bring it back, or make all certificates again with another --out"
            )
        create_authority(authority)
    return [_certificate_of(party, authority, out / party, days) for party in parties]


def _certificate_of(party: str, authority: Path, folder: Path, days: int) -> _Made:
    """Return a party's certificates, those that are there or new ones."""
    from tpsl.transport.certificates import issue
    from tpsl.transport.credentials import AUTHORITY_FILE, Certificates

    new = not folder.exists()
    if new:
        issue(authority, folder, party, label=party == "label", days=days)
    found = Certificates.load(folder)
    if found.party != party:
        raise ValueError(f"{folder}: holds the certificate of {found.party!r}, not of {party!r}")
    if (folder / AUTHORITY_FILE).read_bytes() != (authority / AUTHORITY_FILE).read_bytes():
        raise ValueError(f"{folder / AUTHORITY_FILE}: is another authority than {authority / AUTHORITY_FILE}")
    return _Made(party, folder, found.expires, new)


def _advice(authority: Path, made: list[_Made]) -> Iterator[str]:
    for certificate in made:
        valid = f"valid until {certificate.expires:%Y-%m-%d}"
        if certificate.new:
            whom = "the label party" if certificate.party == "label" else certificate.party
            yield f"send the folder {certificate.folder} to {whom} over a channel you trust ({valid})"
        else:
            yield f"{certificate.folder} was there already and stays as it is ({valid})"
    yield f"keep {authority} offline or delete it: anyone who has it can pose as any party"
