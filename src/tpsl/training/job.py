"""The job: the agreement that both parties train under, one YAML file. Unknown keys are errors.

It holds nothing secret and nothing local (no paths of a vault, no certificates), so both parties can hold the same
file.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from tpsl.data.config import DataConfig, FlightsData, TableData, TableFile
from tpsl.data.dataset import feature_party_names, label_party_has_features
from tpsl.data.order import Order
from tpsl.files import as_yaml, read_yaml, shortened
from tpsl.mechanisms import AUTO, MECHANISMS, Estimator, Mechanism, build_mechanism, check_parameters
from tpsl.models.model_config import ModelConfig, OptimizerConfig, PretrainConfig
from tpsl.net.messages import WireDtype, WireType
from tpsl.net.peers import LABEL_PARTY
from tpsl.tables.locations import is_url, location_of
from tpsl.training.hold_out import HELD_OUT, MOST_EPOCHS, PATIENCE, with_hold_out
from tpsl.training.statistic_config import MOST_CODES, Method, StatisticConfig, check_method, with_method

if TYPE_CHECKING:
    from tpsl.perturb import Loss


AnyFile = TypeVar("AnyFile", bound=TableFile)


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PrivacyConfig(_Model):
    """How labels become noisy labels, and how training uses them."""

    mechanism: Annotated[str, MECHANISMS] = Field(
        AUTO,
        description="How labels are made noisy: 'auto' takes the least noise for ε and the number of classes, "
        "'discrete' is randomised response, 'none' is the paper's Algorithm 1; or a registered name.",
    )
    epsilon: float | None = Field(None, description="The ε of one draw (all but 'none' and 'gaussian').")
    sigma: float | None = Field(None, description="Standard deviation of the noise on the label ('gaussian').")
    delta: float | None = Field(None, description="The δ for which ε is stated ('gaussian').")
    estimator: Estimator = Field("posterior", description="From noisy label to gradient; costs no budget.")
    gradients: Literal["perturbed", "none"] = Field(
        "perturbed",
        description="'none': nothing is released and nothing is sent back (ε = 0); only a local head learns.",
    )
    draws: Literal[1, 2] = Field(1, description="1: one draw at the logit (section 4.2, ε); 2: Algorithm 3 (2ε).")
    noise_seed: int | None = Field(
        None, ge=0, lt=2**63, description="Seed of the noise, for experiments. The result is then NOT private."
    )

    @field_validator("mechanism", mode="before")
    @classmethod
    def _is_known(cls, value: object) -> object:
        if value == "randomized_response":
            return "discrete"
        if isinstance(value, str):
            MECHANISMS.get(value)
        return value

    @model_validator(mode="after")
    def _has_its_parameters(self) -> Self:
        if self.gradients == "none":
            for parameter in ("epsilon", "sigma", "delta", "noise_seed"):
                if getattr(self, parameter) is not None:
                    raise ValueError(f"gradients 'none' releases nothing and does not take {parameter}")
            if self.mechanism != AUTO:
                raise ValueError(
                    f"gradients 'none' releases nothing and does not take the mechanism '{self.mechanism}'"
                )
            return self
        check_parameters(self.mechanism, self._parameters)
        return self

    @property
    def _parameters(self) -> dict[str, float | None]:
        return {"epsilon": self.epsilon, "sigma": self.sigma, "delta": self.delta}

    def build(self, classes: int) -> Mechanism:
        """Return the mechanism for this number of classes."""
        return build_mechanism(self.mechanism, classes, **self._parameters)[0]

    def reason(self, classes: int) -> str:
        """Return why the mechanism is this one, in a sentence; nothing if the job names it."""
        _, why = build_mechanism(self.mechanism, classes, **self._parameters)
        return f"mechanism auto: {why}" if self.mechanism == AUTO else ""


class LossConfig(_Model):
    """A loss by its name, and what it takes."""

    is_value: ClassVar[bool] = True

    name: str = "cross_entropy"
    arguments: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _a_name_alone(cls, value: object) -> object:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _is_known(self) -> Self:
        if self.model_fields_set:  # the default is known, and needs no PyTorch
            from tpsl.perturb import LOSSES

            try:
                signature(LOSSES.get(self.name)).bind(2, **self.arguments)
            except TypeError as error:
                raise ValueError(f"the loss {self.name}: {error}") from error
        return self

    def __str__(self) -> str:
        return self.name


class TrainingConfig(_Model):
    """How long, in which order and with which optimisers."""

    epochs: int = Field(
        MOST_EPOCHS,
        ge=1,
        le=10_000,
        description="How often each record is used at most; `patience` ends training earlier. Without patience: 2.",
    )
    batch_size: int = Field(1024, ge=1, le=2**24, description="Records in a step.")
    seed: int = Field(0, ge=0, lt=2**63, description="Fixes batches and initial weights; never the noise.")
    order: Order = Field(
        "shuffled",
        description="Order of an epoch's records: 'shuffled'; 'blockwise': shuffled within windows of blocks, for data "
        "on disk that do not fit into memory; 'arrival': their own order, as in online training.",
    )
    labels: Literal["stored", "arriving"] = Field(
        "stored",
        description="'arriving': the vault is filled while training goes on; a step waits for its records' labels.",
    )
    exchange: Literal["gradients", "labels"] = Field(
        "gradients",
        description="'labels': the noisy labels cross once, and the feature party trains both halves by itself.",
    )
    feature_optimizer: OptimizerConfig = Field(OptimizerConfig(), description="Updates the feature parties' halves.")
    label_optimizer: OptimizerConfig = Field(OptimizerConfig(), description="Updates the label party's halves.")
    loss: LossConfig = Field(
        LossConfig(),
        description="A registered loss, as cross_entropy (the paper's), or with {name: focal, arguments: {gamma: 2}}.",
    )
    averaging: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Predict with an average of the weights of the last steps: its decay in a step, as 0.995; 0: off.",
    )
    head: Literal["private", "local"] = Field(
        "private",
        description="'local': the label party also trains a head on true labels, which never leaves it.",
    )
    pretrain: PretrainConfig | None = Field(
        None, description="Train the feature parties' halves on their own features first, without labels."
    )
    validation: float = Field(
        HELD_OUT,
        ge=0,
        lt=1,
        description="Share of the training records that is held out: their noisy labels judge, at no cost in budget. "
        "0: none. Also none by default where they have nothing to decide.",
    )
    patience: int = Field(
        PATIENCE,
        ge=0,
        description="Stop when the noisy hold-out got no better for n epochs, and keep the best epoch; 0: off.",
    )
    checkpoint_every: int = Field(200, ge=1, description="Steps between checkpoints, on both sides.")
    wire: WireDtype = Field("float32", description="Numbers of embeddings and gradients while they cross the border.")
    micro_batches: int = Field(
        1,
        ge=1,
        le=1024,
        description="Parts of a batch: while the label party works on one, the feature party prepares the next.",
    )
    staleness: int = Field(
        0,
        ge=0,
        le=64,
        description="The forward pass of a batch may use weights that are n updates old, which hides the round trip.",
    )

    def build_loss(self, classes: int) -> Loss:
        """Return the loss for this number of classes."""
        from tpsl.perturb import make_loss

        return make_loss(self.loss.name, classes, self.loss.arguments)

    @model_validator(mode="after")
    def _patience_has_something_to_judge_by(self) -> Self:
        if self.patience and not self.validation:
            raise ValueError("patience needs a noisy hold-out to judge by: set validation, as 0.1, or patience to 0")
        return self

    @model_validator(mode="after")
    def _labels_arrive_in_order(self) -> Self:
        """Labels that come one after the other are used once, as they come."""
        if self.labels == "arriving":
            for name, wanted in (("order", "arrival"), ("epochs", 1), ("head", "private"), ("validation", 0.0)):
                if getattr(self, name) != wanted:
                    raise ValueError(f"labels 'arriving' needs {name}: {wanted}, not {getattr(self, name)}")
        return self


Returns = Literal["nothing", "rounded", "score"]
"""What a feature party gets back of predictions, from the least to the most."""


class PredictionConfig(_Model):
    """What a feature party gets back where the parties predict new records together."""

    returns: Returns = Field(
        "nothing",
        description="What a feature party gets back for each record: nothing, its score rounded, or its score.",
    )
    decimals: int = Field(2, ge=1, le=6, description="'rounded': the decimal places of a score that is returned.")

    def at_most(self, most: Returns | None) -> PredictionConfig:
        """Return the same, or with less that is returned if `most` is less."""
        names = get_args(Returns)
        if most is None or names.index(most) >= names.index(self.returns):
            return self
        return self.model_copy(update={"returns": most})

    def returned(self, scores: Any) -> Any:
        """Return an array of scores as a feature party gets it, if it gets any."""
        return scores.round(self.decimals) if self.returns == "rounded" else scores

    def __str__(self) -> str:
        return f"scores rounded to {self.decimals} decimals" if self.returns == "rounded" else self.returns


class Job(_Model):
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
        description="How the private head learns: 'network' from noisy labels, 'statistic' from one noisy sum, 'refit' "
        "from both; 'auto' chooses by ε and the numbers of records and classes.",
    )
    statistic: StatisticConfig | None = Field(
        None, description="Labels of some records leave in one noisy statistic instead of one by one."
    )

    @model_validator(mode="before")
    @classmethod
    def _what_follows_from_the_rest(cls, content: Any) -> Any:
        return with_hold_out(with_method(content)) if isinstance(content, dict) else content

    @model_validator(mode="after")
    def _statistic_fits(self) -> Self:
        check_method(self.method, self.statistic)
        if self.statistic is None:
            return self
        if self.privacy.epsilon is None or self.privacy.draws != 1:
            raise ValueError(f"method '{self.method}' needs privacy.epsilon and one draw: each record spends ε once")
        if self.has_late_labels:
            raise ValueError(f"method '{self.method}' needs all labels at once: training.labels must be 'stored'")
        if isinstance(self.data, TableData) and self.data.makes_new_records:
            raise ValueError(f"method '{self.method}' cannot count people: an alignment must be of mode both")
        if self.statistic.share_codes and self.training.wire != "float32":
            raise ValueError("statistic.share_codes sends whole numbers, which need training.wire: float32")
        return self

    @model_validator(mode="after")
    def _parties_have_folders(self) -> Self:
        """A feature party's name becomes the name of its folder in a run, beside the label party's."""
        for party in feature_party_names(self.data):
            if party == "label" or not re.fullmatch(r"\w[\w-]*", party):
                raise ValueError(
                    f"the feature party {party!r} needs a name of letters, digits, '_' and '-' that is not 'label'"
                )
        return self

    @model_validator(mode="after")
    def _widths_are_those_of_parties(self) -> Self:
        known = (*feature_party_names(self.data), "label")
        for party in self.model.cut if isinstance(self.model.cut, dict) else ():
            if party not in known:
                raise ValueError(f"model.cut names {party!r}; the parties are {', '.join(known)}")
        return self

    @model_validator(mode="after")
    def _somebody_learns(self) -> Self:
        if self.privacy.gradients == "none" and self.training.head != "local":
            raise ValueError("with privacy.gradients 'none' only a local head learns: set training.head to 'local'")
        return self

    @model_validator(mode="after")
    def _labels_can_be_handed_over(self) -> Self:
        if self.hands_over:
            reason = self.needs_split_training()
            if reason is not None:
                raise ValueError(f"training.exchange 'labels' is not possible: {reason}")
        return self

    @model_validator(mode="after")
    def _wide_part_has_its_labels(self) -> Self:
        if self.model.wide and self.privacy.gradients == "none":
            raise ValueError("model.wide is fitted on noisy labels, and with privacy.gradients 'none' there are none")
        if self.model.wide and self.method == "statistic":
            raise ValueError(
                "model.wide is fitted on noisy labels, and with method 'statistic' there are none to train on"
            )
        if self.model.wide and self.training.labels == "arriving":
            raise ValueError("model.wide is fitted before the first step: training.labels must be 'stored'")
        return self

    @model_validator(mode="after")
    def _new_records_have_their_labels(self) -> Self:
        if isinstance(self.data, TableData) and self.data.makes_new_records and self.has_late_labels:
            raise ValueError(
                "training.labels 'arriving' needs records that are known by id, and an alignment of mode label-only "
                "makes new ones: take mode both"
            )
        return self

    @property
    def has_late_labels(self) -> bool:
        """Whether labels arrive in the vault while the job runs."""
        return self.training.labels == "arriving"

    @property
    def hands_over(self) -> bool:
        """Whether the noisy labels themselves cross, once, instead of gradients in every step."""
        return self.training.exchange == "labels"

    def needs_split_training(self) -> str | None:
        """Return why one feature party cannot train on noisy labels alone what the job describes; None if it can."""
        parties = feature_party_names(self.data)
        reasons = {
            f"the features are at {len(parties)} parties": len(parties) > 1,
            "the label party has features of its own": label_party_has_features(self.data),
            "the local head is trained on true labels": self.training.head == "local",
            "labels that arrive late are released step by step": self.has_late_labels,
            "with privacy.gradients 'none' nothing is released": not self.releases,
            "method 'auto' may choose a sum over embeddings": self.method == "auto" and self.statistic is not None,
            f"method '{self.method}' sums embeddings at the label party": self.method in ("statistic", "refit"),
        }
        return next((f"{reason}, which needs split training" for reason, holds in reasons.items() if holds), None)

    def with_labels_handed_over(self) -> Job:
        """Return the same job whose feature party gets the noisy labels themselves: what a run on such labels did."""
        return self.model_copy(update={"training": self.training.model_copy(update={"exchange": "labels"})})

    def with_gradients(self) -> Job:
        """Return the same job whose parties exchange gradients: what a party does that has all halves in one process.

        Its weights are, bit for bit, those of split training.
        """
        return self.model_copy(update={"training": self.training.model_copy(update={"exchange": "gradients"})})

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
        return codes + max(self.head_width(party) for party in feature_party_names(self.data))

    def without_wide_part(self) -> Job:
        """Return the job of the same network without a wide part: what is pre-trained, and frozen."""
        return self.model_copy(update={"model": self.model.model_copy(update={"wide": False})})

    def agreed(self) -> dict[str, Any]:
        """Return what the parties must agree on: everything but where each of them keeps its files, and the unit.

        Whom a record is about is the label party's bookkeeping: no message and no weight depends on it.
        """
        content = self.model_dump(mode="json")
        data = content["data"]
        for file in [*data.get("features", [data]), data.get("label", {})]:
            for own in ("path", "unit", "alignment"):
                file.pop(own, None)
        return content

    def other_network(self, other: Job) -> str | None:
        """Return the first difference after which one network cannot go on from the weights of the other."""
        return _first_difference(self._network(), other._network(), "")

    def _network(self) -> dict[str, Any]:
        """Return the model, and which records it is of; which of them are used, and where they are, does not matter."""
        agreed = self.agreed()
        data = {key: value for key, value in agreed["data"].items() if key not in _CHOICE_OF_RECORDS}
        for file in [*data.get("features", []), data.get("label", {})]:
            for key in _NAMES_OF_RECORDS:
                file.pop(key, None)
        return {"data": data, "model": agreed["model"]}

    def digest(self) -> str:
        """Return a SHA-256 that is equal for two parties exactly if they agree on the job."""
        text = json.dumps(self.agreed(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def content(self) -> dict[str, Any]:
        """Return what the job says, for one with changes: no nulls, which take no fields, and no defaults of training.

        Those follow from the rest of a job.
        """
        left_out = set(TrainingConfig.model_fields) - self.training.model_fields_set
        return self.model_dump(mode="json", exclude_none=True, exclude={"training": left_out})

    def to_yaml(self) -> str:
        """Return the job as a YAML file with every value written out."""
        return as_yaml(self.model_dump(mode="json"))

    def first_difference(self, other: Job) -> str | None:
        """Return the name of the first field in which two jobs differ, as `part.field: this against that`."""
        return _first_difference(self.model_dump(mode="json"), other.model_dump(mode="json"), "")

    def first_disagreement(self, other: Job) -> str | None:
        """Return the first difference that is not about where a party keeps its files."""
        return _first_difference(self.agreed(), other.agreed(), "")


class JobError(ValueError):
    """A job that cannot be understood; the message names the file and the field."""


def load_job(path: Path, overrides: dict[str, Any] | None = None) -> Job:
    """Read a job file; `overrides` replace single fields of its parts."""
    content = read_yaml(path, JobError)
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise JobError(f"{path}: a job is a mapping with the parts {', '.join(Job.model_fields)}")
    _resolve_paths(content.get("data"), path.parent)
    return _with_alignments(make_job(content, overrides or {}, str(path)), path.stem)


def reason_of(found: Mapping[str, Any]) -> str:
    """Return what is wrong in one error of a schema, in words of ours where those of pydantic say little."""
    spoken = {
        "extra_forbidden": "there is no such key; `tpsl help keys` lists them",
        "missing": "is needed, and not given",
    }
    return spoken.get(found["type"]) or found["msg"].removeprefix("Value error, ")


def make_job(content: dict[str, Any], overrides: dict[str, Any], origin: str) -> Job:
    """Validate a job given as data; errors name the origin, the field and the value."""
    merged = _merged(_merged(_DEFAULTS, content), {part: fields for part, fields in overrides.items() if fields})
    try:
        return Job.model_validate(merged)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"]) or "job"
        reason = reason_of(first)
        has_value = not isinstance(first["input"], dict) and first["type"] != "missing"
        given = f", got {shortened(repr(first['input']))}" if has_value else ""
        raise JobError(f"{origin}: {shortened(where)}: {shortened(reason, 300)}{given}") from None


_CHOICE_OF_RECORDS = ("since", "split", "test_fraction", "split_seed", "rows", "alignment")
_NAMES_OF_RECORDS = ("id", "time", "keys")
_DEFAULTS: dict[str, Any] = {"data": {"source": "flights"}, "privacy": {"epsilon": 1.0}}


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


def _first_difference(a: Any, b: Any, name: str) -> str | None:
    a, b = _by_party(a), _by_party(b)
    if isinstance(a, dict) and isinstance(b, dict):
        for key in [*a, *(k for k in b if k not in a)]:
            found = _first_difference(a.get(key), b.get(key), f"{name}.{key}" if name else str(key))
            if found:
                return found
        return None
    return None if a == b else f"{shortened(name)}: {shortened(repr(_shown(a)))} against {shortened(repr(_shown(b)))}"


def _by_party(value: Any) -> Any:
    """Return a list of the parties' files as a mapping, so that a difference is named by its party and key."""
    if isinstance(value, list) and value and all(isinstance(entry, dict) and "party" in entry for entry in value):
        return {entry["party"]: entry for entry in value}
    return value


def _shown(value: Any) -> Any:
    """Return a value as it may be shown: URLs without passwords and parameters."""
    if isinstance(value, dict):
        return {key: _shown(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_shown(entry) for entry in value]
    return str(location_of(value)) if isinstance(value, str) and is_url(value) else value
