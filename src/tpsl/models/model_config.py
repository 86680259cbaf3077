"""The network and how its halves are updated, as a job says it. The schema itself needs no PyTorch."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

LAZY_FROM_ROWS = 200_000
LAZY_FROM_ROWS_IF_THE_SAME = 50_000
"""Where lazy updates give the weights of dense ones: from here on they are a third faster, and worth loading Numba."""
Width = Annotated[int, Field(ge=1, le=65_536)]
Precision = Literal["float32", "tf32", "bf16"]
"""In which precision matrix products are computed; a party's own matter."""


class _Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelConfig(_Config):
    """Widths of the layers, and how many networks of this shape there are."""

    embedding_dim: int = Field(16, ge=1, le=4096, description="Width of each category's embedding.")
    bottom: tuple[int, ...] = Field((128, 128), min_length=1, description="Widths of the bottom half's ReLU layers.")
    top: tuple[int, ...] = Field((128, 128), description="Widths of the top half's ReLU layers.")
    cut: Width | dict[str, Width] | None = Field(
        None,
        description="Width of a party's share of the cut: one number for all, or one for each party by name. "
        "Default: the last width of `bottom`.",
    )
    embedding_updates: Literal["auto", "dense", "lazy"] = Field(
        "auto",
        description="'lazy' updates only the embeddings that a batch touches, 'dense' all of them; "
        f"'auto' is lazy from {LAZY_FROM_ROWS:,} embeddings on. With SGD and Adagrad, without averaging and "
        "pre-training, the results are the same up to rounding; 'auto' is then lazy from "
        f"{LAZY_FROM_ROWS_IF_THE_SAME:,} on.",
    )
    members: int = Field(
        1,
        ge=1,
        le=64,
        description="Networks trained side by side on the same noisy labels; their mean logit predicts. Costs no ε.",
    )
    wide: bool = Field(
        False,
        description="Each party first fits an additive model of its own fields on the noisy labels; the network learns "
        "what that leaves over. Two classes. Costs no ε.",
    )

    @model_validator(mode="after")
    def _scores_have_one_place(self) -> Self:
        if self.wide and isinstance(self.cut, dict):
            raise ValueError("with a wide part all shares of the cut have one width: give `cut` as one number")
        return self

    def is_lazy(self, rows: int, *, is_the_same: bool = False) -> bool:
        """Whether a table of n rows has lazy updates; `is_the_same`: the weights would be those of dense updates."""
        if self.embedding_updates == "auto":
            return rows >= (LAZY_FROM_ROWS_IF_THE_SAME if is_the_same else LAZY_FROM_ROWS)
        return self.embedding_updates == "lazy"

    def deep_width(self, party: str) -> int:
        """Return how wide the output of a party's bottom half is, of one member and without a score."""
        agreed = self.cut.get(party) if isinstance(self.cut, dict) else self.cut
        return self.bottom[-1] if agreed is None else agreed

    def share_width(self, party: str) -> int:
        """Return the width of one member's part of a party's share of the cut: its output, and the score if any."""
        return self.deep_width(party) + self.wide

    def cut_width(self, party: str) -> int:
        """Return the width of a party's share of the cut: a part for each member."""
        return self.members * self.share_width(party)


class ScheduleConfig(_Config):
    """How the learning rate changes from step to step."""

    is_value: ClassVar[bool] = True

    name: str = Field(description="A class of torch.optim.lr_scheduler, or a registered schedule.")
    arguments: dict[str, Any] = Field(default_factory=dict, description="What it takes besides the optimiser.")

    @field_validator("name")
    @classmethod
    def _is_known(cls, name: str) -> str:
        from tpsl.models.optimizer import SCHEDULES, in_one_case

        return in_one_case(name, SCHEDULES)


class OptimizerConfig(_Config):
    """The optimiser of one half."""

    name: str = Field("adam", description="A class of torch.optim in any case, as sgd or AdamW, or a registered one.")
    learning_rate: float = Field(1e-3, gt=0, le=100, description="The step size.")
    weight_decay: float = Field(0.0, ge=0, le=10, description="L2 penalty on the dense layers (not on embeddings).")
    arguments: dict[str, Any] = Field(
        default_factory=dict, description="What else the optimiser takes, as {momentum: 0.9}."
    )
    schedule: ScheduleConfig | None = Field(
        None,
        description="Changes the learning rate in every step: {name: a class of torch.optim.lr_scheduler or a "
        "registered schedule, arguments: what it takes besides the optimiser}.",
    )

    @field_validator("name")
    @classmethod
    def _is_known(cls, name: str) -> str:
        from tpsl.models.optimizer import OPTIMIZERS, in_one_case

        return in_one_case(name, OPTIMIZERS)

    @model_validator(mode="after")
    def _works(self) -> Self:
        if not self.is_tested or self.schedule:
            from tpsl.models.optimizer import try_out

            try_out(self, sparse=False)
        return self

    @property
    def is_tested(self) -> bool:
        """Whether this is known to work: trying it would cost time whenever a job is read."""
        return self.name in ("sgd", "adam", "adagrad") and not self.arguments


class PretrainConfig(_Config):
    """How a feature party trains its half before the first step, without labels."""

    method: Literal["masked"] = Field(description="'masked': predict hidden fields.")
    epochs: int = Field(20, ge=1, le=10_000, description="The most epochs.")
    batch_size: ClassVar[int] = 1024
    learning_rate: ClassVar[float] = 1e-3
    """The highest: it rises first and then falls to 0."""
    share: ClassVar[float] = 0.5
    """Share of the fields that are hidden."""
    patience: ClassVar[int] = 3
    """Epochs without a lower loss on the party's own held-out records after which it stops."""
