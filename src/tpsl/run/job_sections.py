"""The sections of a job: privacy, training, prediction and statistic. Data and model have modules of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from tpsl.data.order import Order
from tpsl.mechanisms import AUTO, MECHANISMS, Estimator, Mechanism, build_mechanism, check_parameters
from tpsl.models.model_config import OptimizerConfig, PretrainConfig
from tpsl.net.messages import WireDtype

if TYPE_CHECKING:
    from tpsl.perturb import Loss

Method = Literal["network", "statistic", "auto"]
"""How a private head learns."""
Returns = Literal["nothing", "rounded", "score"]
"""What a feature party gets back of predictions, from the least to the most."""

HELD_OUT = 0.1
"""The share of the training records whose noisy labels choose when training ends. They have no part in its steps, so
they notice when the network learns noise by heart; their labels were released anyway, so it costs no ε."""
PATIENCE = 2
"""Epochs without a better one after which training ends."""
MOST_EPOCHS = 20
"""Epochs of a network that is stopped: far more than it takes where labels are noisy."""
_CROSS_ENTROPY = "cross_entropy"
MOST_CODES = 1024
"""The most codes of fields that a party shows of a record (`share_codes`)."""


class Section(BaseModel):
    """Frozen and closed: an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PrivacyConfig(Section):
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
        if self.gradients != "none":
            check_parameters(self.mechanism, self.parameters)
        return self

    @property
    def parameters(self) -> dict[str, float | None]:
        """What the mechanism is built with."""
        return {"epsilon": self.epsilon, "sigma": self.sigma, "delta": self.delta}

    def build(self, classes: int) -> Mechanism:
        """Return the mechanism for this number of classes."""
        return build_mechanism(self.mechanism, classes, **self.parameters)[0]

    def reason(self, classes: int) -> str:
        """Return why the mechanism is this one, in a sentence; nothing if the job names it."""
        if self.mechanism != AUTO:
            return ""
        return f"mechanism auto: {build_mechanism(self.mechanism, classes, **self.parameters)[1]}"


class TrainingConfig(Section):
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
    exchange: Literal["gradients", "labels"] = Field(
        "gradients",
        description="'labels': the noisy labels cross once, and the feature party trains both halves by itself.",
    )
    feature_optimizer: OptimizerConfig = Field(OptimizerConfig(), description="Updates the feature parties' halves.")
    label_optimizer: OptimizerConfig = Field(OptimizerConfig(), description="Updates the label party's halves.")
    loss: str = Field(_CROSS_ENTROPY, description="A registered loss: cross_entropy (the paper's), or one of yours.")
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
        description="Share of the training records whose noisy labels choose the epoch, at no cost in budget. "
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

    @field_validator("loss")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name != _CROSS_ENTROPY:  # which needs no PyTorch to be known
            from tpsl.perturb import LOSSES

            LOSSES.get(name)
        return name

    def build_loss(self, classes: int) -> Loss:
        """Return the loss for this number of classes."""
        from tpsl.perturb import make_loss

        return make_loss(self.loss, classes)


class PredictionConfig(Section):
    """What a feature party gets back where the parties predict new records together."""

    returns: Returns = Field(
        "nothing",
        description="What a feature party gets back for each record: nothing, its score rounded, or its score.",
    )
    decimals: int = Field(2, ge=1, le=6, description="'rounded': the decimal places of a score that is returned.")

    def at_most(self, most: Returns | None) -> PredictionConfig:
        """Return the same, or with less that is returned if `most` is less."""
        least: Returns = min(self.returns, most or self.returns, key=get_args(Returns).index)
        return self.model_copy(update={"returns": least})

    def returned(self, scores: Any) -> Any:
        """Return an array of scores as a feature party gets it, if it gets any."""
        return scores.round(self.decimals) if self.returns == "rounded" else scores

    def __str__(self) -> str:
        return f"scores rounded to {self.decimals} decimals" if self.returns == "rounded" else self.returns


class StatisticConfig(Section):
    """One noisy statistic `T = Σ_i y_i φ(x_i)`, and the map φ of the head fitted on it.

    The labels of all training records but those held out leave in it, and in nothing else.
    """

    noise: Literal["gaussian", "laplace"] = Field(
        "gaussian", description="The noise on the sum: 'gaussian' promises (ε, δ), 'laplace' ε alone and adds far more."
    )
    delta: float = Field(1e-6, gt=0, lt=1, description="The δ of gaussian noise; laplace has none.")
    releases: Literal[1, 2] = Field(
        1,
        description="2: a second sum of the same records, over a map that looks closer where the first head has found "
        "something; each has half the budget. Worth it for many records.",
    )
    share_codes: bool = Field(
        False,
        description="Feature parties also show category codes and ranks of numbers: the map then knows every field.",
    )
