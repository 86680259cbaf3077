"""`tpsl certs`: a private authority and one certificate for each party, for a first try or a small group."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tpsl.cli.console import Report, answer
from tpsl.cli.flags import JsonFlag, argument, option
from tpsl.net.peers import LABEL_PARTY

if TYPE_CHECKING:
    from tpsl.net.certificates import PartyFolder


def certs(
    job: Annotated[Path | None, argument("JOB", "Job file: a certificate for each of its parties.")] = None,
    out: Annotated[Path, option("FOLDER", "Folder for the authority and the parties' folders.")] = Path("certs"),
    party: Annotated[list[str] | None, option("NAME", "A certificate for this party too; may be repeated.")] = None,
    days: Annotated[int, option("NUMBER", "How long the certificates are valid.", min=1, max=3650)] = 365,
    json: JsonFlag = False,
) -> None:
    """Make an authority and one certificate per party; what is there already stays as it is.

    Example: tpsl certs job.yaml
    """
    from tpsl.net.certificates import AUTHORITY, party_folders

    parties = [*(_parties_of(job) if job else ()), *(party or ())]
    if not parties:
        raise ValueError("certs needs a job file, or a --party to make a certificate for")
    made = party_folders(out, list(dict.fromkeys(parties)), days)
    folders = [
        {"party": m.party, "folder": str(m.folder), "expires": m.expires.isoformat(), "new": m.new} for m in made
    ]
    answer(json, {"authority": str(out / AUTHORITY), "parties": folders}, _report(out / AUTHORITY, made, job))


def _parties_of(job: Path) -> list[str]:
    from tpsl.data.dataset import feature_party_names
    from tpsl.training.job import load_job

    return [LABEL_PARTY, *feature_party_names(load_job(job).data)]


def _report(authority: Path, made: Sequence[PartyFolder], job: Path | None) -> Report:
    new = [each.party for each in made if each.new]
    facts = {each.party: _advice(each) for each in made}
    keep = f"keep {authority} offline or delete it: anyone who has it can pose as any party"
    return Report(
        f"Made certificates for {', '.join(new)}" if new else "All certificates were there already",
        {**facts, "authority": keep},
        {f"train as {each.party}": _command(each, job or Path("job.yaml")) for each in made},
    )


def _advice(made: PartyFolder) -> str:
    valid = f"valid until {made.expires:%Y-%m-%d}"
    if not made.new:
        return f"{made.folder} was there already and stays as it is ({valid})"
    whom = "the label party" if made.party == LABEL_PARTY else made.party
    return f"send the folder {made.folder} to {whom} over a channel you trust ({valid})"


def _command(made: PartyFolder, job: Path) -> str:
    if made.party == LABEL_PARTY:
        return f"tpsl label serve {job} --certs {made.folder} --listen 0.0.0.0:7443"
    return f"tpsl feature join {job} --certs {made.folder} --connect HOST:7443"
