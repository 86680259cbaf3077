"""The job: the agreement that both parties train under, one YAML file. Unknown keys are errors.

It holds nothing secret and nothing local (no paths of a vault, no certificates), so both parties can hold the same
file.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import BaseModel, Field, ValidationError, model_validator

from tpsl.data.config import DataConfig, FlightsData, TableData, TableFile
from tpsl.files import as_yaml, read_yaml, shortened
from tpsl.mechanisms import AUTO, Mechanism
from tpsl.models.model_config import ModelConfig
from tpsl.net.messages import LABEL_PARTY, WireType
from tpsl.run.job_sections import (
    MOST_CODES,
    Method,
    PredictionConfig,
    PrivacyConfig,
    Section,
    StatisticConfig,
    TrainingConfig,
)
from tpsl.tables.locations import is_url, location_of

AnyFile = TypeVar("AnyFile", bound=TableFile)


class JobError(ValueError):
    """A job that cannot be understood, or whose keys exclude each other (`_conflict`); the code says which."""

    code = "job"

    def __init__(self, sentence: str, code: str = code) -> None:
        super().__init__(sentence)
        self.code = code


class Job(Section):
    """The whole agreement."""

    data: DataConfig = Field(FlightsData(), description="What the job trains on.")
    privacy: PrivacyConfig = Field(
        PrivacyConfig(epsilon=1.0), description="How labels become noisy labels, and how training uses them."
    )
    model: ModelConfig = Field(ModelConfig(), description="The network.")
    training: TrainingConfig = Field(
        TrainingConfig(), description="How long, in which order and with which optimisers."
    )
    prediction: PredictionConfig = Field(
        PredictionConfig(), description="What comes back where the parties predict new records together."
    )
    method: Method = Field(
        "network",
        description="How the private head learns: 'network' from noisy labels, 'statistic' from one noisy sum; 'auto' "
        "chooses by ε and the numbers of records and classes.",
    )
    statistic: StatisticConfig | None = Field(
        None, description="Labels leave in one noisy statistic instead of one by one."
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, content: Any) -> Any:
        if not isinstance(content, dict):
            return content
        # Method and section of a statistic follow from each other.
        if content.get("statistic") is not None:
            content = {**content, "method": content.get("method") or "statistic"}
        elif content.get("method") == "statistic":
            content = {**content, "statistic": {}}
        return _with_hold_out(content)

    @model_validator(mode="after")
    def _has_no_conflict(self) -> Self:
        if conflict := _conflict(self):
            code, sentence = conflict
            raise JobError(sentence, code)
        return self

    @property
    def hands_over(self) -> bool:
        """Whether the noisy labels themselves cross, once, instead of gradients in every step."""
        return self.training.exchange == "labels"

    def needs_split_training(self) -> str | None:
        """Return why one feature party cannot train on noisy labels alone what the job describes; None if it can."""
        parties = self.data.feature_parties
        reasons = {
            f"the features are at {len(parties)} parties": len(parties) > 1,
            "the label party has features of its own": self.data.label_party_has_features,
            "the local head is trained on true labels": self.training.head == "local",
            "with privacy.gradients 'none' nothing is released": not self.releases,
            "method 'auto' may choose a sum over embeddings": self.method == "auto" and self.statistic is not None,
            "method 'statistic' sums embeddings at the label party": self.method == "statistic",
        }
        return next((f"{reason}, which needs split training" for reason, holds in reasons.items() if holds), None)

    def with_labels_handed_over(self) -> Job:
        """Return the same job whose feature party gets the noisy labels themselves: what a run on such labels did."""
        return self._with("training", exchange="labels")

    def with_gradients(self) -> Job:
        """Return the same job whose parties exchange gradients: what a party does that has all halves in one process.

        Its weights are, bit for bit, those of split training.
        """
        return self._with("training", exchange="gradients")

    def without_wide_part(self) -> Job:
        """Return the job of the same network without a wide part: what is pre-trained, and frozen."""
        return self._with("model", wide=False)

    def _with(self, section: str, **changes: Any) -> Job:
        return self.model_copy(update={section: getattr(self, section).model_copy(update=changes)})

    @property
    def wire_type(self) -> WireType:
        """How tensors of the job cross: as the numbers of `training.wire`, or noisy labels as bytes."""
        return "uint8" if self.hands_over else self.training.wire

    @property
    def classes(self) -> int:
        """Number of classes of the labels, as the agreement has it."""
        data = self.agreed()["data"]
        return 5 if data.get("task") == "delay5" else int(data.get("classes", 2))

    @property
    def mechanism(self) -> Mechanism:
        """What makes the labels noisy, as every party of the job can build it."""
        return self.privacy.build(self.classes)

    @property
    def trains(self) -> bool:
        """Whether gradients are sent back; without them a feature party's half stays as it is."""
        return self.releases and self.method != "statistic"

    @property
    def releases(self) -> bool:
        """Whether anything is released of labels, so that there is a private head."""
        return self.privacy.gradients != "none"

    @property
    def sends_frozen(self) -> bool:
        """Whether the frozen pre-trained embedding goes beside the trained cut to the local head."""
        return self.training.pretrain is not None and self.trains

    def head_width(self, party: str) -> int:
        """Return the width of what a party sends for the local head: its cut, after the frozen one if any."""
        frozen = self.without_wide_part().model.cut_width(party) if self.sends_frozen else 0
        return self.model.cut_width(party) + frozen

    @property
    def widest_share(self) -> int:
        """The width of the widest tensor that a feature party sends."""
        codes = MOST_CODES if self.statistic is not None and self.statistic.share_codes else 0
        return codes + max(self.head_width(party) for party in self.data.feature_parties)

    def agreed(self) -> dict[str, Any]:
        """Return what the parties must agree on: all but where each keeps its files, and the label party's unit."""
        content = self.model_dump(mode="json")
        data = content["data"]
        for file in [*data.get("features", [data]), data.get("label", {})]:
            for own in ("path", "unit", "alignment"):
                file.pop(own, None)
        return content

    def digest(self) -> str:
        """Return a SHA-256 that is equal for two parties exactly if they agree on the job."""
        text = json.dumps(self.agreed(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def content(self) -> dict[str, Any]:
        """Return what the job says, for one with changes: no nulls, and no defaults of training.

        Those follow from the rest of a job.
        """
        left_out = set(TrainingConfig.model_fields) - self.training.model_fields_set
        return self.model_dump(mode="json", exclude_none=True, exclude={"training": left_out})

    def to_yaml(self) -> str:
        """Return the job as a YAML file with every value written out."""
        return as_yaml(self.model_dump(mode="json"))

    def first_difference(self, other: Job) -> str | None:
        """Return the name of the first field in which two jobs differ, as `part.field: this against that`."""
        return _first_difference(self.model_dump(mode="json"), other.model_dump(mode="json"))

    def first_disagreement(self, other: Job) -> str | None:
        """Return the first difference that is not about where a party keeps its files."""
        return _first_difference(self.agreed(), other.agreed())

    def other_network(self, other: Job) -> str | None:
        """Return the first difference after which one network cannot go on from the weights of the other."""
        return _first_difference(self._network(), other._network())

    def _network(self) -> dict[str, Any]:
        """Return the model and the columns of the records; which records are used, and where they are, is left out."""
        agreed = self.agreed()
        data = {key: value for key, value in agreed["data"].items() if key not in _CHOICE_OF_RECORDS}
        for file in [*data.get("features", []), data.get("label", {})]:
            for key in _NAMES_OF_RECORDS:
                file.pop(key, None)
        return {"data": data, "model": agreed["model"]}


_CHOICE_OF_RECORDS = ("since", "split", "test_fraction", "split_seed", "rows", "alignment")
_NAMES_OF_RECORDS = ("id", "time", "keys")
_DEFAULTS: dict[str, Any] = {"data": {"source": "flights"}, "privacy": {"epsilon": 1.0}}
_EPOCHS = 2
"""Epochs of a network that is not stopped."""
Conflict = tuple[str, str]
"""The code of what keys of a job exclude among each other, and the sentence that says so."""


def _conflict(job: Job) -> Conflict | None:
    privacy, training = job.privacy, job.training
    if training.patience and not training.validation:
        remedy = "set training.validation, as 0.1, or training.patience to 0"
        return "patience-without-hold-out", f"patience needs a noisy hold-out: {remedy}"
    if not job.releases:
        nothing = "privacy.gradients 'none' releases nothing"
        if privacy.mechanism != AUTO or {privacy.noise_seed, *privacy.parameters.values()} != {None}:
            return "nothing-is-released", f"{nothing}: it takes no mechanism, epsilon, sigma, delta or noise_seed"
        if training.head != "local":
            return "nobody-learns", f"{nothing}, so only a local head learns: set training.head to 'local'"
    if job.model.wide and not job.trains:
        without = "with privacy.gradients 'none' and method 'statistic' there are none"
        return "wide-without-labels", f"model.wide is fitted on noisy labels before the first step: {without}"
    if job.hands_over and (reason := job.needs_split_training()):
        return "needs-split-training", f"training.exchange 'labels' is not possible: {reason}"
    return _conflict_of_parties(job) or _conflict_of_statistic(job)


def _conflict_of_parties(job: Job) -> Conflict | None:
    parties = job.data.feature_parties
    for party in parties:  # its name becomes that of its folder in a run, beside the label party's
        if party == LABEL_PARTY or not re.fullmatch(r"\w[\w-]*", party):
            needed = f"a name of letters, digits, '_' and '-' that is not '{LABEL_PARTY}'"
            return "name-of-a-party", f"the feature party {party!r} needs {needed}"
    known = (*parties, LABEL_PARTY)
    for party in job.model.cut if isinstance(job.model.cut, dict) else ():
        if party not in known:
            return "cut-of-no-party", f"model.cut names {party!r}; the parties are {', '.join(known)}"
    return None


def _conflict_of_statistic(job: Job) -> Conflict | None:
    section, method = job.statistic, f"method '{job.method}'"
    if section is None:
        return None
    if job.method == "network":
        return "network-without-statistic", f"{method} has no statistic: leave the section out, or take 'statistic'"
    if job.privacy.epsilon is None or job.privacy.draws != 1:
        return "statistic-of-one-epsilon", f"{method} needs privacy.epsilon and one draw: each record spends ε once"
    if isinstance(job.data, TableData) and job.data.makes_new_records:
        return "statistic-of-people", f"{method} cannot count people: an alignment must be of mode both"
    if section.share_codes and job.training.wire != "float32":
        return "codes-are-whole-numbers", "statistic.share_codes sends whole numbers, which need training.wire: float32"
    return None


def _with_hold_out(content: dict[str, Any]) -> dict[str, Any]:
    """Return a job's content, with no hold-out by default where there is nothing to stop or the job says not to.

    That is: no network learns from noisy labels, or it sees each record once, or `validation` or `patience` is 0. What
    the job names stays as it is.
    """
    training, privacy = (_named(content.get(section, {})) for section in ("training", "privacy"))
    is_off = isinstance(training, dict) and (
        content.get("method") == "statistic"
        or (isinstance(privacy, dict) and privacy.get("gradients") == "none")
        or training.get("epochs") == 1
        or 0 in (training.get("validation"), training.get("patience"))
    )
    if not is_off:
        return content
    return {**content, "training": {"validation": 0.0, "patience": 0, "epochs": _EPOCHS, **training}}


def _named(section: Any) -> Any:
    """Return the keys that a section names; what is no section stays, for the validation to name it."""
    return section.model_dump(exclude_unset=True) if isinstance(section, BaseModel) else section


def load_job(path: Path, overrides: dict[str, Any] | None = None) -> Job:
    """Read a job file; `overrides` replace single fields of its parts."""
    content = read_yaml(path, JobError)
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise JobError(f"{path}: a job is a mapping with the parts {', '.join(Job.model_fields)}")
    _resolve_paths(content.get("data"), path.parent)
    return _with_alignments(make_job(content, overrides or {}, str(path)), path.stem)


def make_job(content: dict[str, Any], overrides: dict[str, Any], origin: str) -> Job:
    """Validate a job given as data; errors name the origin, the field and the value."""
    merged = _merged(_merged(_DEFAULTS, content), {part: fields for part, fields in overrides.items() if fields})
    try:
        return Job.model_validate(merged)
    except ValidationError as error:
        cause = error.errors()[0].get("ctx", {}).get("error")
        raise JobError(first_fault(error, origin), getattr(cause, "code", JobError.code)) from None


def first_fault(error: ValidationError, origin: str) -> str:
    """Return what is wrong with content from this origin, in words of ours where those of pydantic say little."""
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"])) or "job"
    spoken = {
        "extra_forbidden": "there is no such key; `tpsl help keys` lists them",
        "missing": "is needed, and not given",
    }
    reason = spoken.get(first["type"]) or first["msg"].removeprefix("Value error, ")
    has_value = not isinstance(first["input"], dict) and first["type"] != "missing"
    given = f", got {shortened(repr(first['input']))}" if has_value else ""
    return f"{origin}: {shortened(where)}: {shortened(reason, 300)}{given}"


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return `base` with single fields replaced."""
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        if isinstance(value, dict) and old is not None and not isinstance(old, dict):
            continue  # a part that is no mapping stays, for the validation to name it
        if not (isinstance(old, dict) and isinstance(value, dict)):
            result[key] = value
            continue
        # Parameters belong to their data source or mechanism: another one starts without them.
        if key == "data" and value.get("source", old.get("source")) != old.get("source"):
            old = {}
        if key == "privacy" and ("mechanism" in value or value.get("gradients") == "none"):
            old = {name: kept for name, kept in old.items() if name not in ("epsilon", "sigma", "delta")}
        result[key] = _merged(old, value)
    return result


def _resolve_paths(data: Any, folder: Path) -> None:
    """Files named in a job file are looked for beside it; absolute, so that a run can be resumed from anywhere."""
    if not isinstance(data, dict):
        return
    features, label = data.get("features"), data.get("label")
    for file in [data, *(features if isinstance(features, list) else []), label]:
        for key in ("path", "alignment"):
            if isinstance(file, dict) and isinstance(file.get(key), str) and not is_url(file[key]):
                file[key] = str((folder / file[key]).absolute())


def _with_alignments(job: Job, name: str) -> Job:
    """Say where each party's alignment is, for a job that has one: alignments/JOB-PARTY in the current folder."""
    data = job.data
    if not isinstance(data, TableData) or data.alignment is None:
        return job

    def placed(file: AnyFile, party: str) -> AnyFile:
        place = file.alignment or Path("alignments", f"{name}-{party}").absolute()
        return file.model_copy(update={"alignment": place})

    features = tuple(placed(file, file.party) for file in data.features)
    found = data.model_copy(update={"features": features, "label": placed(data.label, LABEL_PARTY)})
    return job.model_copy(update={"data": found})


def dotted(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return fields by their dotted names, as `training.batch_size` or `data.features.PARTY.path`, but what is None."""
    fields: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, list) and value and all(isinstance(file, Mapping) and "party" in file for file in value):
            value = {file["party"]: file for file in value}
        if isinstance(value, Mapping):
            fields |= dotted(value, f"{prefix}{key}.")
        elif value is not None:
            fields[f"{prefix}{key}"] = value
    return fields


def _first_difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    a, b = dotted(one), dotted(other)
    for name in dict.fromkeys((*a, *b)):
        if a.get(name) != b.get(name):
            values = (shortened(repr(_shown(fields.get(name)))) for fields in (a, b))
            return f"{shortened(name)}: {' against '.join(values)}"
    return None


def _shown(value: Any) -> Any:
    """Return a value as it may be shown: URLs without passwords and parameters."""
    if isinstance(value, list):
        return [_shown(entry) for entry in value]
    return str(location_of(value)) if isinstance(value, str) and is_url(value) else value


SPACE = "space of the search"
CONFIGURATION = "configuration of the search"
"""In this the parties of a search differ for a while: who is ahead waits for the other."""


@dataclass(frozen=True)
class SearchStep:
    """One configuration of a search. Its run keeps its epochs, and is evaluated with true labels when all are trained.

    Before that a peer waits for the next configuration, and could measure how long the evaluation takes.
    """

    number: int
    """Its position in the space, from 1."""
    jobs: tuple[Job, ...]
    """All configurations in their order."""

    @classmethod
    def all(cls, jobs: Sequence[Job]) -> list[SearchStep]:
        """Return the steps of a search in their order."""
        return [cls(number, tuple(jobs)) for number in range(1, len(jobs) + 1)]

    def agreed(self) -> dict[str, str]:
        """Return what the parties compare: that they search the same space, and are at the same configuration."""
        space = hashlib.sha256("\n".join(job.digest() for job in self.jobs).encode()).hexdigest()
        return {SPACE: space, CONFIGURATION: f"{self.number} of {len(self.jobs)}"}
