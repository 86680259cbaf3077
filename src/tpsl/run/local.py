"""The local file of one side: where its things are and how patient it is. It is never compared with the other side's.

    connect: label.example:7443      # a feature party; the label party has `listen: 0.0.0.0:7443` and `max_epsilon: 2`
    certificates: certs/airport
    data: airport.csv
    out: run
    bottom: airport_networks:bottom   # this party's own half of the network

Everything in it may be left out or given on the command line instead. Paths are relative to the file. Where one process
trains for all parties each may have such a file of its own, which says in `party` whose it is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from tpsl.data.config import DataPath, PackageData, TableData
from tpsl.files import read_yaml
from tpsl.models.model_config import Precision
from tpsl.net.certificates import Certificates
from tpsl.net.messages import LABEL_PARTY
from tpsl.run.job import Job, first_fault
from tpsl.run.job_sections import Returns
from tpsl.run.own_parts import Factory, OwnParts
from tpsl.tables.locations import Location, is_url
from tpsl.vault import ReleasePolicy
from tpsl.vault.cost import DEFAULT_MAX_EPSILON

if TYPE_CHECKING:
    from tpsl.run.vaults import VaultChoice
    from tpsl.run.warm_start import StartingPoint
    from tpsl.workers import Workers


class LocalError(ValueError):
    """A local file that cannot be understood; the sentence names the file and the key."""


def _host_and_port(address: str) -> str:
    found = re.fullmatch(r"(?:\[[^\[\]\s/]+\]|[^\[\]\s/:]+):(\d{1,5})", address, re.ASCII)
    if not found or int(found[1]) > 65535:
        raise ValueError("an address is HOST:PORT, as in 127.0.0.1:7443 or [::1]:7443")
    return address


def _reachable(address: str) -> str:
    if _host_and_port(address).endswith(":0"):
        raise ValueError("nobody can be reached at port 0")
    return address


def _as_address(value: object) -> object:
    """A port alone is one of this machine."""
    is_port = (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, str) and value.isdigit())
    return f"127.0.0.1:{value}" if is_port else value


def _as_names(value: object) -> object:
    """A name alone is a list of one; YAML's lists are tuples here."""
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


JSON_LOG = "json"
"""The name in `log` that is no logger: JSON lines on standard error, for a log collector, instead of a live line."""

Names = Annotated[tuple[str, ...], BeforeValidator(_as_names)]
ListenAddress = Annotated[str, AfterValidator(_host_and_port)]
ConnectAddress = Annotated[str, AfterValidator(_reachable)]
HttpAddress = Annotated[str, BeforeValidator(_as_address), AfterValidator(_host_and_port)]
LocalPath = Annotated[Path, Field(strict=False)]
Seconds = Annotated[float, Field(allow_inf_nan=False)]
SMALL_BATCH = 256
"""Records; with fewer in a batch, threads wait for each other longer than they compute."""
_PATHS = ("certificates", "out", "start_from", "vault", "data", "alignment", "http_token", "http_certificate")


class Local(BaseModel):
    """What one side keeps to itself. Frozen and closed: an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    listen: ListenAddress | None = Field(None, description="Label party: where to listen; port 0 takes a free one.")
    connect: ConnectAddress | None = Field(None, description="Feature party: where the label party listens.")
    certificates: LocalPath | None = Field(None, description="Folder with ca.pem, cert.pem and key.pem.")
    out: LocalPath | None = Field(None, description="Run folder; an interrupted run in it is resumed.")
    start_from: LocalPath | None = Field(
        None, description="This party's earlier run that training starts from: its weights, encoder and wide part."
    )
    vault: LocalPath | None = Field(
        None, description="Label party: a vault apart from its one vault, which is used if none is named."
    )
    max_epsilon: float = Field(
        DEFAULT_MAX_EPSILON,
        ge=0,
        description="Label party: the most that any record may have spent in all, whatever the job asks for.",
    )
    max_delta: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Label party: the largest δ that a record may have in all; 1/records if not given.",
    )
    not_private: bool = Field(
        False, description="Label party: permit what protects nothing, no noise or seeded noise. For experiments."
    )
    compose: bool = Field(
        False, description="Label party: permit a second release of records that were released before; the ε add up."
    )
    party: str | None = Field(None, description="Whose file this is: label, or the name of a feature party.")
    data: DataPath | None = Field(
        None, description="This party's own table (a file, folder, pattern or URL), instead of the job's path for it."
    )
    alignment: LocalPath | None = Field(
        None,
        description="This party's alignment, where the job has `data.alignment`; alignments/JOB-PARTY if not given.",
    )
    inputs: Factory | None = Field(
        None,
        description="Makes this party's own source of records, as package.module:function, or with "
        "{factory: package.module:function, arguments: {name: value}}.",
    )
    bottom: Factory | None = Field(None, description="Makes this party's own bottom half of the network.")
    top: Factory | None = Field(None, description="Label party: makes its own top half of the network.")
    returns: Returns | None = Field(
        None, description="Predicting: the most that a feature party gets back, whatever the job allows."
    )
    http: HttpAddress = Field(
        "127.0.0.1:0",
        description="Scoring: HOST:PORT, or a port of 127.0.0.1, for this side's own applications; port 0 takes a free "
        "one. Another address than this machine's needs `http_token` or `http_certificate`.",
    )
    http_token: LocalPath | None = Field(
        None, description="Scoring: file with a bearer token that this side's own applications send."
    )
    http_certificate: LocalPath | None = Field(
        None, description="Scoring: PEM file with certificate chain and key, for HTTPS to this side's own applications."
    )
    deadline: Seconds = Field(
        5.0, gt=0, description="Scoring: seconds that a request may take, waiting for other parties included."
    )
    threads: int | None = Field(
        None,
        ge=1,
        description=f"CPU threads; all cores if not given, or one for batches of at most {SMALL_BATCH} records.",
    )
    device: Literal["cpu", "cuda"] = Field("cpu", description="Where this side computes.")
    precision: Precision = Field(
        "float32",
        description="Matrix products: 'bf16' rounds their factors to 8 significant bits, 'tf32', on a GPU, to 11. Both "
        "are about twice as fast as 'float32'.",
    )
    wait: Seconds = Field(3600.0, ge=0, description="Seconds to wait for a peer to come, or to come back.")
    silence: Seconds = Field(15.0, gt=0, description="A peer that was silent for n seconds is gone.")
    metrics: ListenAddress | None = Field(
        None, description="HOST:PORT where Prometheus metrics are served; whoever reaches it reads them."
    )
    log: Names | None = Field(
        None,
        description="Where curves go: tensorboard, mlflow=URI, a registered logger or none; `json` writes JSON lines "
        "to standard error instead of a live line. Default: tensorboard if installed.",
    )
    record_transcript: bool = Field(
        False, description="Keep everything that crosses the border, for attacks and audits; else the first 64 steps."
    )
    insecure_loopback: bool = Field(False, description="No TLS and no certificates, on this machine only. For tries.")

    def overridden(self, **options: Any) -> Local:
        """Return this with the options that were given (those that are not None) in place of the file's values."""
        given = {key: value for key, value in options.items() if value is not None}
        return _validated({**self.model_dump(), **given}, "options")

    def own_parts(self) -> OwnParts:
        """Return the parts that this party brings itself."""
        return OwnParts(inputs=self.inputs, bottom=self.bottom, top=self.top)

    def metrics_address(self, workers: Workers) -> tuple[str, int] | None:
        """Return where a worker serves metrics, host and port; None: nowhere. Of those on a machine the first does."""
        if self.metrics is None or workers.local_rank:
            return None
        host, _, port = self.metrics.rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def logs_json(self) -> bool:
        """Whether standard error gets JSON lines."""
        return JSON_LOG in (self.log or ())

    @property
    def loggers(self) -> list[str] | None:
        """The loggers that are named; None: as by default."""
        return [name for name in self.log or () if name != JSON_LOG] or None

    def starting_point(self) -> StartingPoint | None:
        """Return what training begins with; None: weights from the job's seed."""
        from tpsl.run.warm_start import StartingPoint

        return None if self.start_from is None else StartingPoint(self.start_from)

    def release_policy(self) -> ReleasePolicy:
        """Return what the label party permits."""
        return ReleasePolicy(self.max_epsilon, self.not_private, self.compose, self.max_delta)

    def vault_choice(self, *, scratch: bool = False) -> VaultChoice:
        """Return what the label party says of its vault, and what it permits: of a `scratch` run any ε, also none."""
        from tpsl.run.vaults import VaultChoice

        policy = self.release_policy()
        if not scratch:
            return VaultChoice(self.vault, policy)
        return VaultChoice(None, replace(policy, max_epsilon=math.inf, not_private=True), scratch=True)


def load_local(path: Path) -> Local:
    """Read a local file; its paths are made absolute, so that they hold wherever the process goes."""
    content = read_yaml(path, LocalError)
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise LocalError(f"{path}: a local file is a mapping with keys such as {', '.join(Local.model_fields)}")
    for key in _PATHS:
        if isinstance(content.get(key), str) and not is_url(content[key]):
            content[key] = (path.parent / content[key]).absolute()
    return _validated(content, str(path))


def _validated(content: dict[Any, Any], origin: str) -> Local:
    try:
        return Local.model_validate(content)
    except ValidationError as error:
        raise LocalError(first_fault(error, origin)) from None


def require_party(job: Job, party: str) -> None:
    """Raise unless this is a party of the job."""
    names = (LABEL_PARTY, *job.data.feature_parties)
    if party not in names:
        raise LocalError(f"there is no party {party!r} in the job, only {', '.join(names)}")


def own_data(job: Job, party: str, path: Location | None, alignment: Path | None = None) -> Job:
    """Return the job with this party's own file at `path`, and its alignment at `alignment` (None: as the job says)."""
    given: dict[str, Any] = {"path": path, "alignment": alignment}
    changes = {key: value for key, value in given.items() if value is not None}
    if not changes:
        return job
    data = job.data
    require_party(job, party)
    if alignment is not None and (not isinstance(data, TableData) or data.alignment is None):
        raise LocalError(f"the job has no data.alignment, but the folder of one was given: {alignment}")
    if isinstance(data, TableData):
        files = {LABEL_PARTY: data.label, **{file.party: file for file in data.features}}
        files[party] = files[party].model_copy(update=changes)
        changes = {"label": files.pop(LABEL_PARTY), "features": tuple(files.values())}
    elif not isinstance(data, PackageData) or "path" not in type(data).model_fields:
        raise LocalError(f"the data {data.source!r} need no file, but a data path was given: {path}")
    return job.model_copy(update={"data": data.model_copy(update=changes)})


def locals_by_party(job: Job, files: Iterable[Path] | None) -> dict[str, Local]:
    """Return the local files of several parties of a job, where one process is all of them."""
    found = {}
    for file in files or ():
        local = load_local(file)
        if local.party is None:
            raise LocalError(f"{file}: names no party; where one process is all of them, each file has `party`")
        require_party(job, local.party)
        found[local.party] = local
    return found


def locals_in_folder(job: Job, job_file: Path, named: Collection[str]) -> list[Path]:
    """Return the local files of parties that are not named: PARTY.yaml in the job's folder that says `party: PARTY`."""
    found = []
    for party in (LABEL_PARTY, *job.data.feature_parties):
        file = job_file.with_name(f"{party}.yaml")
        if party not in named and file != job_file and file.is_file():
            content = read_yaml(file, LocalError)
            found += [file] if isinstance(content, dict) and content.get("party") == party else []
    return found


def party_of(job: Job, local: Local, party: str | None) -> str:
    """Return which party this is: by option, local file or certificate, else the job's only feature party."""
    names = job.data.feature_parties
    party = party or local.party
    if party is None and local.certificates is not None:
        party = Certificates.load(local.certificates).party
    if party is None and len(names) == 1:
        party = names[0]
    if party is None:
        raise LocalError(f"which feature party is this? Name it with --party: {', '.join(names)}")
    if party != LABEL_PARTY and party not in names:
        raise LocalError(f"{party!r} is not a feature party of the job; they are {', '.join(names)}")
    return party


def listen_address(local: Local) -> str:
    """Return where the label party listens."""
    if local.listen is None:
        raise LocalError(
            "the label party needs an address to listen at: --listen HOST:PORT or `listen` in the local file"
        )
    return local.listen


def connect_address(local: Local) -> str:
    """Return where a feature party finds the label party."""
    if local.connect is None:
        raise LocalError(
            "a feature party needs the label party's address: --connect HOST:PORT or `connect` in the local file"
        )
    return local.connect


def certificates_of(local: Local, party: str) -> Certificates:
    """Return this side's certificates; they must be this party's."""
    if local.certificates is None:
        raise LocalError(
            "mutual TLS needs this party's certificate folder: --certs FOLDER or `certificates` in the local file; "
            "`tpsl certs` makes one for a first try"
        )
    certificates = Certificates.load(local.certificates)
    if certificates.party != party:
        raise LocalError(f"{local.certificates}: holds the certificate of {certificates.party!r}, not of {party!r}")
    return certificates
