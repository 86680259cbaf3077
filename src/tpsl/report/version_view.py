"""Versions of a model, side by side: runs that start from one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

from tpsl.net.messages import LABEL_PARTY
from tpsl.report.run_view import OriginView, RunView
from tpsl.report.words import MISSING, rounded_up
from tpsl.run.run_folder import RunError, RunFolder

_SHOWN = 12


class VersionRow(TypedDict):
    """One version; what is unknown, or must not be known to the reader's party, is None."""

    run: str
    version: str
    starts_from: str
    updated: str | None
    train_records: int | None
    epsilon_text: str
    """Of this run's own release."""
    total_epsilon_text: str
    """The most that any record has spent whose label is in the weights."""
    validation_auc: float | None
    """By noisy labels of held-out records, with its 95 % interval."""
    validation_auc_low: float | None
    validation_auc_high: float | None
    test_auc: float | None


def versions_of(run: RunFolder, party: str, feature_parties: Sequence[str]) -> dict[str, str]:
    """Return the versions of feature parties' halves that a party knows; none of a run that was never evaluated."""
    with suppress(RunError):
        return run.noted_versions(party, feature_parties if party == LABEL_PARTY else [party])
    return {}


def origin_of(run: RunFolder, party: str) -> OriginView | None:
    """Return from which run a party has started; only its name is told, not where it lies."""
    origin = run.origin(party)
    if origin is None:
        return None
    spent = None if origin.released is None else rounded_up(origin.released.epsilon, 4)
    name = Path(origin.run).name
    return OriginView(
        run=name, versions=dict(origin.versions), train_records=origin.train_records, total_epsilon_text=spent
    )


def version_rows(views: Sequence[RunView]) -> list[VersionRow]:
    """Return the runs that start from another one, and those that they start from, oldest first."""
    started = [view["origin"]["versions"] for view in views if view["origin"]]
    related = [view for view in views if view["origin"] or (view["versions"] and view["versions"] in started)]
    return [_row(view, views) for view in sorted(related, key=lambda view: view["updated"] or "")]


def version_text(versions: Mapping[str, str]) -> str:
    """Return the beginning of a version; where several parties have halves, of each by its name."""
    if len(versions) == 1:
        return next(iter(versions.values()))[:_SHOWN]
    return ", ".join(f"{party} {version[:_SHOWN]}" for party, version in versions.items()) or MISSING


def _row(view: RunView, views: Sequence[RunView]) -> VersionRow:
    origin, kept = view["origin"], view["kept_epoch"] or view["epoch"]
    judged = [entry for entry in view["curves"] if entry["epoch"] == kept][-1:] or [{}]
    return VersionRow(
        run=view["name"],
        version=version_text(view["versions"]),
        starts_from=_parent(origin, views) if origin else MISSING,
        updated=view["updated"],
        train_records=view["train_records"],
        epsilon_text=view["promise"]["epsilon_text"],
        total_epsilon_text=view["promise"]["total_epsilon_text"],
        validation_auc=judged[0].get("validation_auc"),
        validation_auc_low=judged[0].get("validation_auc_low"),
        validation_auc_high=judged[0].get("validation_auc_high"),
        test_auc=(view["test"] or {}).get("test_auc"),
    )


def _parent(origin: OriginView, views: Sequence[RunView]) -> str:
    known = (view["name"] for view in views if view["versions"] == origin["versions"])
    return next(known, f"{origin['run']}, {version_text(origin['versions'])}")
