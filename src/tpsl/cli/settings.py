"""Options that stand for keys of a job or of a local file, and `--set KEY=VALUE` for every other key.

A command names its everyday flags and the keys they stand for; type, values and help come from the schema:

    @app.command(cls=settings_command(epochs="training.epochs", vault="local.vault"))
    def train(context: typer.Context) -> None:
        settings = Settings.of(context)

The schemas are read when the command is: help of other commands does not wait for them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import typer
import yaml
from typer.core import TyperCommand

from tpsl.cli.console import notice, warn
from tpsl.cli.vault_options import named_vault

if TYPE_CHECKING:
    from tpsl.cli.keys import Key
    from tpsl.training.job import Job
    from tpsl.training.local import Local
    from tpsl.training.own_parts import OwnParts

_SET = "--set"
LOCAL = "local"
"""What the keys of a local file begin with."""

JobArgument = Annotated[Path, typer.Argument(help="The job file (YAML) that all parties hold.")]
LocalOption = Annotated[
    Path | None, typer.Option("--local", help="This side's local file (YAML); options override it.")
]
LocalsOption = Annotated[
    list[Path] | None,
    typer.Option("--local", help="A party's local file (YAML), which names its party; may be repeated."),
]
RecordTranscriptFlag = Annotated[
    bool, typer.Option("--record-transcript", help="Keep all that crossed the border, for attacks and audits.")
]
LogOption = Annotated[
    list[str] | None,
    typer.Option(
        "--log",
        metavar="NAME[=ARG]",
        help="Where curves go: tensorboard, mlflow=URI, a registered logger or none; may be repeated. "
        "Default: tensorboard if installed.",
        show_default=False,
    ),
]


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
    def of(cls, context: typer.Context) -> Settings:
        """Return the settings of the command that runs."""
        found = context.obj
        assert isinstance(found, Settings)
        return found

    @classmethod
    def from_pairs(cls, pairs: Iterable[tuple[str, Any]]) -> Settings:
        """Return keys and values as parts of a job and of a local file; a key that comes twice is an error."""
        content: dict[str, Any] = {LOCAL: {}}
        for key, value in pairs:
            *above, last = key.split(".")
            part = content
            for depth, name in enumerate(above, 1):
                part = part.setdefault(name, {})
                if not isinstance(part, dict):
                    raise ValueError(f"{key} and {'.'.join(above[:depth])} cannot both be given")
            if last in part:
                raise ValueError(f"{key} is given twice")
            part[last] = value
        return cls(local=content.pop(LOCAL), job=content)

    def load_job(self, start: Path | Mapping[str, Any] | None) -> Job:
        """Return the job of a file, or of the content of one, with these settings in place; warn of seeded noise."""
        from tpsl.training.job import load_job, make_job

        changes = dict(self.job)
        job = load_job(start, changes) if isinstance(start, Path) else make_job(dict(start or {}), changes, "options")
        if job.privacy.noise_seed is not None and is_first_worker():
            warn("the noise is seeded: this run is NOT PRIVATE")
        return job

    def load_local(self, file: Path | None) -> Local:
        """Return this side's local file, or none, with these settings in place; the process gets threads and key."""
        from tpsl.training.local import Local, load_local

        return self._in_place(load_local(file) if file else Local())

    def load_parties(self, start: Path | Mapping[str, Any] | None, files: Iterable[Path] | None) -> Parties:
        """Return a job and all its parties, where one process is all of them; these settings are the label party's.

        The local file of a party that lies beside the job, as `tpsl init` writes it, is read unless another is named:
        what the label party permits is not forgotten.
        """
        from tpsl.training.local import Local, own_data
        from tpsl.transport.peers import LABEL_PARTY

        job = self.load_job(start)
        named = locals_by_party(job, files)
        beside = locals_beside(job, start, named) if isinstance(start, Path) else {}
        if beside and is_first_worker():
            notice(f"read beside the job, as tpsl init writes them: {', '.join(map(str, beside.values()))}")
        found = {LABEL_PARTY: Local(), **named, **locals_by_party(job, beside.values())}
        found[LABEL_PARTY] = self._in_place(found[LABEL_PARTY])
        for party, local in found.items():
            job = own_data(job, party, local.data, local.alignment)
        return Parties(job, found[LABEL_PARTY], {party: local.own_parts() for party, local in found.items()})

    def _in_place(self, local: Local) -> Local:
        import torch

        from tpsl.models.computing import Computing, compute

        changed = local.overridden(**self.local)
        if changed.threads is not None:
            torch.set_num_threads(changed.threads)
        if changed.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("local.device: PyTorch finds no GPU on this machine")
        compute(Computing(changed.precision, changed.compile))
        return changed


def locals_beside(job: Job, job_file: Path, named: Collection[str]) -> dict[str, Path]:
    """Return the local files of parties that are not named, where PARTY.yaml beside the job says `party: PARTY`."""
    from tpsl.data.dataset import feature_party_names
    from tpsl.files import read_yaml
    from tpsl.training.local import LocalError
    from tpsl.transport.peers import LABEL_PARTY

    found = {}
    for party in (LABEL_PARTY, *feature_party_names(job.data)):
        file = job_file.with_name(f"{party}.yaml")
        if party not in named and file != job_file and file.is_file():
            content = read_yaml(file, LocalError)
            if isinstance(content, dict) and content.get("party") == party:
                found[party] = file
    return found


def locals_by_party(job: Job, files: Iterable[Path] | None) -> dict[str, Local]:
    """Return the local files of several parties of a job, where one command is for all of them."""
    from tpsl.training.local import load_local, require_party

    found = {}
    for file in files or ():
        local = load_local(file)
        if local.party is None:
            raise ValueError(f"{file}: names no party; where one process is all of them, each file has `party`")
        require_party(job, local.party)
        found[local.party] = local
    return found


def is_first_worker() -> bool:
    """Whether this process speaks for all that torchrun has started."""
    return os.environ.get("RANK", "0") == "0"


class SettingsCommand(TyperCommand):
    """A command with `flags` for some keys and `--set` for all of some parts; see `settings_command`."""

    flags: ClassVar[Mapping[str, str]]
    parts: ClassVar[tuple[str, ...]]

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters of the settings and the function's own."""
        from tpsl.cli.keys import key_named

        options = [_option(name, key_named(key)) for name, key in self.flags.items()]
        return [*parameters_of([*options, keyword("set", _SetOption)]), *super().get_params(ctx)]

    def invoke(self, ctx: Any) -> Any:
        """Collect the settings, then call the function."""
        given = [(key, ctx.params.pop(name)) for name, key in self.flags.items()]
        pairs = [_pair(text, self.parts) for text in ctx.params.pop("set") or ()]
        ctx.obj = Settings.from_pairs([*((key, value) for key, value in given if value is not None), *pairs])
        return super().invoke(ctx)


JOB_FLAGS = {
    "data": "data.source",
    "rows": "data.rows",
    "mechanism": "privacy.mechanism",
    "epsilon": "privacy.epsilon",
    "noise_seed": "privacy.noise_seed",
    "epochs": "training.epochs",
    "method": "method",
}
START_FLAGS = {"from_": "local.start_from", "since": "data.since"}
LIMIT_FLAGS = {"max_epsilon": "local.max_epsilon", "not_private": "local.not_private"}
RELEASE_FLAGS = {"vault": "local.vault", **LIMIT_FLAGS, "compose": "local.compose"}
ALL_PARTS = ("data", "privacy", "model", "training", "prediction", "method", "statistic", LOCAL)


def settings_command(*parts: str, **flags: str) -> type[SettingsCommand]:
    """Return the class of a command with these flags, each with its key; `--set` takes keys of the parts, or of all.

    The command's function finds what was given as `Settings.of(context)`.
    """
    return type("SettingsCommand", (SettingsCommand,), {"flags": flags, "parts": parts or ALL_PARTS})


def _option(name: str, key: Key) -> Parameter:
    from tpsl.cli.keys import choices_of

    text = key.description
    kind: Any = key.type if key.type in (bool, int, float, Path) else str
    metavar = {bool: None, int: "N", float: "X", Path: "PATH"}.get(kind, "TEXT")
    if choices := choices_of(key.name):
        kind, metavar = Literal[choices], "NAME"
        text += f" One of: {', '.join(choices)}."
    panel = "This side" if key.name.startswith(f"{LOCAL}.") else "Job"
    flag = "--" + name.rstrip("_").replace("_", "-")  # a word of Python's own has an underscore after it
    callback = named_vault if key.name == f"{LOCAL}.vault" else None
    option = typer.Option(
        flag, help=text, metavar=metavar, callback=callback, show_default=False, rich_help_panel=panel
    )
    return keyword(name, Annotated[kind | None, option])


def keyword(name: str, annotation: Any) -> Parameter:
    """Return a keyword of a function that is None if it is not given."""
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def parameters_of(parameters: list[Parameter]) -> list[Any]:
    """Return what typer makes of a function with these parameters."""

    def function(**options: Any) -> None: ...

    vars(function)["__signature__"] = Signature(parameters)
    app = typer.Typer(add_completion=False)
    app.command(add_help_option=False)(function)
    return typer.main.get_command(app).params


def _pair(text: str, parts: tuple[str, ...]) -> tuple[str, Any]:
    """Return key and value of `KEY=VALUE`, a key of these parts; the value is YAML."""
    from tpsl.cli.keys import key_above

    key, equals, value = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"{_SET} takes KEY=VALUE, as training.epochs=3; got {text!r}")
    known = key_above(key)
    if key.partition(".")[0] not in parts:
        raise ValueError(f"{key}: this command takes only keys of {' and '.join(parts)}")
    return key, _value(known, value)


def _value(key: Key, text: str) -> Any:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{_SET} {key.name}: the value is not YAML ({' '.join(str(error).split())})") from None
    if isinstance(value, str) and key.type is float:
        with suppress(ValueError):  # YAML takes 1e-5 for a text
            return float(value)
    return value


def _complete(context: typer.Context, incomplete: str) -> list[str]:
    """Return the keys, and after the equals sign the values, that begin like this."""
    from tpsl.cli.keys import choices_of, settable_keys

    name, equals, value = incomplete.partition("=")
    if not equals:
        parts = getattr(context.command, "parts", ())
        return [f"{key}=" for key in settable_keys() if key.startswith(name) and key.partition(".")[0] in parts]
    return [f"{name}={choice}" for choice in choices_of(name) if choice.startswith(value)]


_SetOption = Annotated[
    list[str] | None,
    typer.Option(
        _SET,
        help="Set any key of the job (training.epochs=3) or of the local file (local.wait=60); may be repeated. "
        "`tpsl keys` lists them.",
        metavar="KEY=VALUE",
        autocompletion=_complete,
        show_default=False,
    ),
]
