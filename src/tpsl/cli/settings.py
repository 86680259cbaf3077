"""What a command line says of the keys of a job and of a local file.

A command passes its `--set KEY=VALUE` texts and its everyday flags, each with its key:

    settings = Settings.of(changes, {"training.epochs": epochs, "local.vault": vault})

Names, types and values of keys are those of the schemas (`tpsl.cli.schema_keys`).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
import yaml

from tpsl.cli.console import notice, warn
from tpsl.cli.flags import named_vault
from tpsl.cli.schema_keys import key_above
from tpsl.data.dataset import feature_party_names
from tpsl.files import read_yaml
from tpsl.net.peers import LABEL_PARTY
from tpsl.training.job import Job, load_job, make_job
from tpsl.training.local import Local, LocalError, load_local, own_data, require_party
from tpsl.training.own_parts import OwnParts

LOCAL = "local"
"""What the keys of a local file begin with."""
ALL_PARTS = ("data", "privacy", "model", "training", "prediction", "method", "statistic", LOCAL)


@dataclass(frozen=True)
class Parties:
    """A job and all its parties in one process: the label party's local file, and what each party brings itself."""

    job: Job
    label: Local
    own: dict[str, OwnParts]


@dataclass(frozen=True)
class Settings:
    """What the command line says of a job and of this side, for those keys that it names."""

    job: Mapping[str, Any]
    local: Mapping[str, Any]

    @classmethod
    def of(
        cls, changes: Iterable[str] | None, flags: Mapping[str, Any] | None = None, parts: Collection[str] = ALL_PARTS
    ) -> Settings:
        """Return what `--set` texts and flags that were given (not None) say; `--set` takes keys of these parts."""
        given = [(key, value) for key, value in (flags or {}).items() if value is not None]
        return cls.from_pairs([*given, *(_pair(text, parts) for text in changes or ())])

    @classmethod
    def from_pairs(cls, pairs: Iterable[tuple[str, Any]]) -> Settings:
        """Return keys and values as parts of a job and of a local file; the last value of a key counts."""
        content: dict[str, Any] = {LOCAL: {}}
        for key, value in pairs:
            *above, last = key.split(".")
            part = content
            for depth, name in enumerate(above, 1):
                part = part.setdefault(name, {})
                if not isinstance(part, dict):
                    raise ValueError(f"{key} and {'.'.join(above[:depth])} cannot both be given")
            part[last] = value
        return cls(local=content.pop(LOCAL), job=content)

    def load_job(self, start: Path | Mapping[str, Any] | None) -> Job:
        """Return the job of a file, or of the content of one, with these settings in place; warn of seeded noise."""
        changes = dict(self.job)
        job = load_job(start, changes) if isinstance(start, Path) else make_job(dict(start or {}), changes, "options")
        if job.privacy.noise_seed is not None and is_first_worker():
            warn("the noise is seeded: this run is NOT PRIVATE")
        return job

    def load_local(self, file: Path | None) -> Local:
        """Return this side's local file, or none, with these settings in place; the process gets threads and key."""
        return self._in_place(load_local(file) if file else Local())

    def load_parties(self, start: Path | Mapping[str, Any] | None, files: Iterable[Path] | None) -> Parties:
        """Return a job and all its parties, where one process is all of them; these settings are the label party's.

        The local file of a party that lies in the job's folder, as `tpsl init` writes it, is read unless another is
        named: what the label party permits is not forgotten.
        """
        job = self.load_job(start)
        named = locals_by_party(job, files)
        found = locals_in_folder(job, start, named) if isinstance(start, Path) else []
        if found and is_first_worker():
            notice(f"read beside the job, as tpsl init writes them: {', '.join(map(str, found))}")
        locals_ = {LABEL_PARTY: Local(), **named, **locals_by_party(job, found)}
        locals_[LABEL_PARTY] = self._in_place(locals_[LABEL_PARTY])
        for party, local in locals_.items():
            job = own_data(job, party, local.data, local.alignment)
        return Parties(job, locals_[LABEL_PARTY], {party: local.own_parts() for party, local in locals_.items()})

    def _in_place(self, local: Local) -> Local:
        import torch

        from tpsl.models.halves import compute_in

        options = dict(self.local)
        if options.get("vault") is not None:
            options["vault"] = named_vault(Path(options["vault"]))
        changed = local.overridden(**options)
        if changed.threads is not None:
            torch.set_num_threads(changed.threads)
        if changed.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("local.device: PyTorch finds no GPU on this machine")
        compute_in(changed.precision)
        return changed


def locals_in_folder(job: Job, job_file: Path, named: Collection[str]) -> list[Path]:
    """Return the local files of parties that are not named: PARTY.yaml in the job's folder that says `party: PARTY`."""
    parties = [party for party in (LABEL_PARTY, *feature_party_names(job.data)) if party not in named]
    contents = {
        (party, file): read_yaml(file, LocalError)
        for party in parties
        if (file := job_file.with_name(f"{party}.yaml")) != job_file and file.is_file()
    }
    return [file for (party, file), each in contents.items() if isinstance(each, dict) and each.get("party") == party]


def locals_by_party(job: Job, files: Iterable[Path] | None) -> dict[str, Local]:
    """Return the local files of several parties of a job, where one command is for all of them."""
    found = {}
    for file in files or ():
        local = load_local(file)
        if local.party is None:
            raise ValueError(f"{file}: names no party; where one process is all of them, each file has `party`")
        require_party(job, local.party)
        found[local.party] = local
    return found


def the_only(files: Collection[Path] | None) -> Path | None:
    """Return the local file of a command that is one party here; several are for one that is all of them."""
    if files and len(files) > 1:
        raise typer.BadParameter("--local is given more than once; that is for all parties in one process")
    return next(iter(files or ()), None)


def is_first_worker() -> bool:
    """Whether this process speaks for all that torchrun has started."""
    return os.environ.get("RANK", "0") == "0"


def _pair(text: str, parts: Collection[str]) -> tuple[str, Any]:
    """Return key and value of `KEY=VALUE`, a key of these parts; the value is YAML."""
    key, equals, text_of_value = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"--set takes KEY=VALUE, as training.epochs=3; got {text!r}")
    known = key_above(key)
    if key.partition(".")[0] not in parts:
        raise ValueError(f"{key}: this command takes only keys of {' and '.join(parts)}")
    try:
        value = yaml.safe_load(text_of_value)
    except yaml.YAMLError as error:
        raise ValueError(f"--set {known.name}: the value is not YAML ({' '.join(str(error).split())})") from None
    if isinstance(value, str) and known.type is float:
        with suppress(ValueError):  # YAML takes 1e-5 for a text
            return key, float(value)
    return key, value
