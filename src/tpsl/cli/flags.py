"""What a command line says: the flags that commands share, and the keys of a job and of a local file.

Each flag means the same everywhere; `metavar` is the word that help shows. An everyday flag stands for one key; every
other key is set with `--set KEY=VALUE`. Names, values and descriptions of keys are read from the schemas; completion,
`tpsl help keys` and the documentation take them from here. A command passes its `--set` texts and everyday flags:

    settings = Settings.of(changes, {"training.epochs": epochs, "local.vault": vault})
"""

from __future__ import annotations

import json
import os
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tpsl.cli.console import notice, warn
from tpsl.net.messages import LABEL_PARTY
from tpsl.registry import Registry
from tpsl.run.job import Job, load_job, make_job
from tpsl.run.local import SMALL_BATCH, Local, load_local, locals_by_party, locals_in_folder, own_data
from tpsl.run.own_parts import OwnParts
from tpsl.vault import Vault, the_vault
from tpsl.vault.place import label_meant

LOCAL = "local"
"""What the keys of a local file begin with."""
ALL_PARTS = ("data", "privacy", "model", "training", "prediction", "method", "statistic", LOCAL)
_WORDS = {bool: "true or false", int: "integer", float: "number", str: "text", Path: "path", tuple: "list"}
_FILE, _LABEL = "data.features[].", "data.label."


class UnknownKey(ValueError):
    """A key that no schema has; the sentence names the nearest ones."""


@dataclass(frozen=True)
class Key:
    """One key, named as in `training.epochs` or `local.wait`; `source` is the data source that has it, if not all."""

    name: str
    field: FieldInfo
    source: str = ""
    is_part: bool = False
    """Whether it has keys and no value."""
    description: str = ""

    @property
    def default(self) -> str:
        """The default as YAML takes it; nothing if there is none, or if it is a part with keys."""
        value = self.field.get_default(call_default_factory=True)
        if self.field.is_required() or value is None or self.is_part:
            return ""
        return str(value) if isinstance(value, BaseModel | str) else json.dumps(value)

    @property
    def choices(self) -> tuple[str, ...]:
        """The values it can have, if they are names."""
        if registry := _registry(self.field):
            return registry.names()
        literals = [arm for arm in _arms(self.field.annotation) if get_origin(arm) is Literal]
        return tuple(str(value) for literal in literals for value in get_args(literal))

    @property
    def type(self) -> Any:
        """The Python type of its values: bool, int, float, str, Path, tuple, dict, or a model."""
        arm = next(iter(_arms(self.field.annotation)), str)
        return type(get_args(arm)[0]) if get_origin(arm) is Literal else get_origin(arm) or arm

    @property
    def values(self) -> str:
        """What it takes, in words."""
        return ", ".join(self.choices) or _WORDS.get(self.type, "mapping")


@lru_cache(maxsize=1)
def _walked() -> tuple[Key, ...]:
    return (*_keys_of(Job, ""), *_keys_of(Local, f"{LOCAL}."))


def _keys_of(model: type[BaseModel], prefix: str, source: str = "") -> Iterator[Key]:
    for name, field in model.model_fields.items():
        registry = _registry(field)
        arms = [registry.get(part) for part in registry.names()] if registry else _arms(field.annotation)
        below = [(arm, ".") for arm in arms if _is_schema(arm) and not _is_value(arm)]
        elements = [get_args(arm)[0] for arm in arms if get_origin(arm) is tuple]
        below += [(element, "[].") for element in elements if _is_schema(element) and not _is_value(element)]
        yield Key(prefix + name, field, source, bool(below), field.description or "")
        for arm, end in below:
            variant = arm.model_fields["source"].default if "source" in arm.model_fields else source
            yield from _keys_of(arm, f"{prefix}{name}{end}", variant)


def _registry(field: FieldInfo) -> Registry[Any] | None:
    """Return the registry that has a field's values, or their models."""
    return next((known for known in field.metadata if isinstance(known, Registry)), None)


def _arms(annotation: Any) -> list[Any]:
    """Return the alternatives of a type, without None and without what only validates."""
    if get_origin(annotation) is Annotated:
        return _arms(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [arm for alternative in get_args(annotation) for arm in _arms(alternative)]
    return [] if annotation is type(None) else [annotation]


def _is_schema(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _is_value(annotation: Any) -> bool:
    """Whether a schema stands for one value, which is written as a small mapping."""
    return getattr(annotation, "is_value", False) is True


def all_keys() -> tuple[Key, ...]:
    """Return every key that has a value, those of the job first; one that several data sources have comes for each.

    A party's file is described once, as `data.features[]`: `data.label` takes the same keys and two more.
    """
    keys = [key for key in _walked() if not key.is_part]
    of_label = {_LABEL + key.name.removeprefix(_FILE) for key in keys if key.name.startswith(_FILE)}
    return tuple(key for key in keys if key.name not in of_label)


def settable_keys() -> dict[str, Key]:
    """Return the keys that `--set` takes, by name, parts of a job included."""
    return {key.name: key for key in _walked() if "[]" not in key.name}


def complete_key(incomplete: str) -> list[str]:
    """Return the keys, and after the equals sign the values, that begin like this."""
    name, equals, value = incomplete.partition("=")
    if not equals:
        return [f"{key}=" for key in settable_keys() if key.startswith(name)]
    choices = dict.fromkeys(choice for key in _walked() if key.name == name for choice in key.choices)
    return [f"{name}={choice}" for choice in choices if choice.startswith(value)]


def key_above(name: str) -> Key:
    """Return the key of this name, or the one of free content (a mapping) that the name lies in."""
    known = settable_keys()
    for above in accumulate(name.split("."), "{}.{}".format):
        key = known.get(above)
        if key is not None and (above == name or key.type is dict or _is_value(key.type)):
            return key
    ends = [other for other in known if other.rpartition(".")[2] == name.rpartition(".")[2]]
    near = list(dict.fromkeys([*ends, *get_close_matches(name, known, 3)]))[:3]
    hint = f"near are {', '.join(near)}" if near else "`tpsl help keys` lists them"
    raise UnknownKey(f"there is no key {name!r}; {hint}")


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
LocalsOption = Annotated[list[Path] | None, option("FILE", "Local file of a party (YAML); may be repeated.", "--local")]
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
HeadOption = Annotated[Literal["private", "local"], option("NAME", "'private', or 'local', which is NOT PRIVATE.")]
ForOption = Annotated[str, option("PARTY", "Who reads it: label, feature, or a feature party's name.", "--for")]


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
        """Return what `--set` texts and flags that were given (not None) say; the last value of a key counts.

        `--set` takes keys of these parts.
        """
        content: dict[str, Any] = {LOCAL: {}}
        given = [(key, value) for key, value in (flags or {}).items() if value is not None]
        for key, value in [*given, *(_pair(text, parts) for text in changes or ())]:
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
        if job.privacy.noise_seed is not None and _is_first_worker():
            warn("the noise is seeded: this run is NOT PRIVATE")
        return job

    def load_local(self, file: Path | None, job: Job | None = None) -> Local:
        """Return this side's local file, or none, with these settings; sets PyTorch's threads and precision."""
        return self._in_place(load_local(file) if file else Local(), job)

    def load_parties(self, start: Path | Mapping[str, Any] | None, files: Iterable[Path] | None) -> Parties:
        """Return a job and all its parties, where one process is all of them; these settings are the label party's.

        The local file of a party that lies in the job's folder, as `tpsl init` writes it, is read unless another is
        named: what the label party permits is not forgotten.
        """
        job = self.load_job(start)
        locals_ = locals_by_party(job, files)
        found = locals_in_folder(job, start, locals_) if isinstance(start, Path) else []
        if found and _is_first_worker():
            notice(f"read beside the job, as tpsl init writes them: {', '.join(map(str, found))}")
        locals_ = {LABEL_PARTY: Local(), **locals_, **locals_by_party(job, found)}
        locals_[LABEL_PARTY] = self._in_place(locals_[LABEL_PARTY], job)
        for party, local in locals_.items():
            job = own_data(job, party, local.data, local.alignment)
        return Parties(job, locals_[LABEL_PARTY], {party: local.own_parts() for party, local in locals_.items()})

    def _in_place(self, local: Local, job: Job | None) -> Local:
        import torch

        from tpsl.models.halves import compute_in

        options = dict(self.local)
        if options.get("vault") is not None:
            options["vault"] = label_meant(Path(options["vault"]))
        changed = local.overridden(**options)
        is_small = job is not None and changed.device == "cpu" and job.training.batch_size <= SMALL_BATCH
        if threads := changed.threads or int(is_small):
            torch.set_num_threads(threads)
        if changed.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("local.device: PyTorch finds no GPU on this machine")
        compute_in(changed.precision)
        return changed


def the_only(files: Collection[Path] | None) -> Path | None:
    """Return the local file of a command that is one party here; several are for one that is all of them."""
    if files and len(files) > 1:
        raise typer.BadParameter("--local is given more than once; that is for all parties in one process")
    return next(iter(files or ()), None)


def _is_first_worker() -> bool:
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
