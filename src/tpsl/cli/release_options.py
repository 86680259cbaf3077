"""The options by which the label party permits a release, shared by every command that releases labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tpsl.data.config import DataConfig
    from tpsl.training.job import Job
    from tpsl.vault import ReleasePolicy

VaultOption = Annotated[
    Path | None,
    typer.Option(help="The label party's vault. Default: the one in vaults/ that holds these labels, or a new one."),
]
MaxEpsilonOption = Annotated[
    float | None,
    typer.Option(min=0, help="The most that any record may have spent in all after this release. Default: 10."),
]
MaxDeltaOption = Annotated[
    float | None,
    typer.Option(min=0, max=1, help="The largest δ that a record may have in all. Default: 1/records."),
]
AllowLookalikesFlag = Annotated[
    bool, typer.Option("--allow-lookalikes", help="Draw for ids that differ only in spaces, case or leading zeros.")
]
NotPrivateFlag = Annotated[
    bool, typer.Option("--not-private", help="Permit what protects nothing: no noise, seeded noise, an infinite ε.")
]
ComposeFlag = Annotated[
    bool,
    typer.Option("--compose", help="Permit a second release of records that were released before; the ε add up."),
]


def release_policy(
    max_epsilon: float | None,
    not_private: bool,
    compose: bool = False,
    max_delta: float | None = None,
    allow_lookalikes: bool = False,
) -> ReleasePolicy:
    """Return what the options permit."""
    from tpsl.vault.policy import DEFAULT_MAX_EPSILON, ReleasePolicy

    most = DEFAULT_MAX_EPSILON if max_epsilon is None else max_epsilon
    return ReleasePolicy(most, not_private, compose, max_delta, allow_lookalikes)


def check_own_release(job: Job, policy: ReleasePolicy) -> None:
    """Refuse a job that asks for more than is permitted; for an experiment with a vault of its own."""
    from tpsl.report.label_view import classes_of
    from tpsl.vault.totals import Planned, total_of

    if job.trains:
        privacy = job.privacy
        mechanism = privacy.build(classes_of(job))
        policy.check(total_of([Planned.of(mechanism, privacy.draws, privacy.noise_seed)], 0), 0)


def require_not_private(data: DataConfig, not_private: bool) -> None:
    """Refuse an experiment that contains runs without noise, or with seeded noise, on anything but public data."""
    if data.source not in ("flights", "synthetic") and not not_private:
        raise ValueError(
            f"this experiment trains without noise, or with noise from a seed, on {data.source}: that is NOT PRIVATE, "
            "and for data that does not come with the package it needs --not-private"
        )
