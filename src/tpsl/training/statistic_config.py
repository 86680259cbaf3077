"""The section `statistic` of a job: labels that leave in one noisy sum, or two, instead of one by one."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

Method = Literal["network", "statistic", "refit", "auto"]
"""How a private head learns; what the key `method` of a job says."""

MOST_CODES = 1024
"""The most codes of fields that a party shows of a record (`share_codes`)."""
_REFIT_SHARE = 0.5


class StatisticConfig(BaseModel):
    """One noisy statistic `T = Σ_i y_i φ(x_i)` of some training records, and the map φ of the head fitted on it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Share of the training records, without those held out, whose labels leave in the statistic and in "
        "nothing else; the others train the network with noisy labels. 1: there is no network.",
    )
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
    random_features: ClassVar[int] = 1024
    """Random features of each of two kinds (rectified, products) that the map has at most; small tables get fewer."""


def with_method(content: dict[str, Any]) -> dict[str, Any]:
    """Return a job's content with `method` and `statistic` in agreement: each follows from the other if left out."""
    section, method = content.get("statistic"), content.get("method")
    if isinstance(section, StatisticConfig):
        section = section.model_dump(exclude_unset=True)
    if section is None and method in ("statistic", "refit"):
        section = {}
    if section is None or not isinstance(section, dict):
        return content
    if method == "refit":
        section = {"share": _REFIT_SHARE, **section}
    if method is None:
        method = "statistic" if section.get("share", 1.0) == 1.0 else "refit"
    return {**content, "method": method, "statistic": section}


def check_method(method: Method, section: StatisticConfig | None) -> None:
    """Raise a ValueError unless the section fits the method."""
    if method == "network" and section is not None:
        raise ValueError("method 'network' has no statistic: leave the section out, or take 'statistic' or 'refit'")
    if section is not None and method != "auto" and (section.share == 1) != (method == "statistic"):
        needed = "statistic.share 1" if method == "statistic" else "a statistic.share below 1"
        raise ValueError(f"method '{method}' needs {needed}, not {section.share:g}")
