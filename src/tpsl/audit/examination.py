"""The whole audit: canaries, releases, a statistic, record and replay, and the run's own vault, in one examination."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from tpsl.audit.canaries import AuditError, new_folder
from tpsl.audit.canary_bound import AuditResult, audit_run
from tpsl.audit.repeated_releases import ReleasesResult, repeat_releases
from tpsl.audit.replay import ReplayResult, flipped_at_the_source, replay_run
from tpsl.audit.statistic_canaries import StatisticResult, audit_statistic
from tpsl.data.dataset import Dataset, load_label_party
from tpsl.files import for_json
from tpsl.mechanisms import secure_words
from tpsl.net.messages import LABEL_PARTY
from tpsl.progress import Notice
from tpsl.run.job import Job
from tpsl.run.observer import UNWATCHED, Watching
from tpsl.run.one_process import ALL_STEPS, load_records
from tpsl.run.own_parts import OwnParts
from tpsl.run.releases import statistic_plan
from tpsl.run.run_folder import RunFolder
from tpsl.run.setup import RunSetup
from tpsl.run.warm_start import StartingPoint
from tpsl.vault import Vault

Part = Literal["canaries", "releases", "statistic", "replay", "vault"]
PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True)
class VaultResult:
    """What `vault verify` says of the vault that a run has released from."""

    passed: bool
    path: str
    accusations: tuple[str, ...]
    cannot_see: tuple[str, ...]


@dataclass(frozen=True)
class Examination:
    """What each part has found; None for a part that was left out."""

    canaries: AuditResult | None = None
    releases: ReleasesResult | None = None
    statistic: StatisticResult | None = None
    replay: ReplayResult | None = None
    vault: VaultResult | None = None

    @property
    def parts(self) -> dict[Part, AuditResult | ReleasesResult | StatisticResult | ReplayResult | VaultResult]:
        """The parts that were made, in order."""
        found = {part: getattr(self, part) for part in PARTS}
        return {part: result for part, result in found.items() if result is not None}

    @property
    def passed(self) -> bool:
        """No part accuses. Sound code passes in all but four of a million examinations."""
        return all(result.passed for result in self.parts.values())

    @property
    def accusations(self) -> list[str]:
        """What was found, a sentence each that begins with the part."""
        return [f"{part}: {text}" for part, result in self.parts.items() for text in result.accusations]

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-able data: null for a part that was left out."""
        return {"passed": self.passed, "accusations": self.accusations, **for_json(asdict(self))}


def examine(
    job: Job,
    folder: Path,
    *,
    only: Collection[Part] = PARTS,
    run: Path | None = None,
    own: Mapping[str, OwnParts] = MappingProxyType({}),
    canaries: int = 20_000,
    confidence: float = 0.95,
    watching: Watching = UNWATCHED,
) -> Examination:
    """Audit a job at the label party, in a new folder, and the vault of its `run`, if there is one.

    Guarantee: sound code is accused in four of a million examinations at most (`LEVEL` for each part). Parts a job has
    nothing for are left out, with a notice. `own` is what parties bring themselves, beside what the run has noted. A
    run that started from an earlier one is trained again from the same weights.
    """
    wanted = _possible(job, only, run, watching.notice)
    new_folder(folder)
    if run is not None:
        own = RunFolder(run).all_own_parts() | {party: parts for party, parts in own.items() if parts != OwnParts()}
    start = StartingPoint.of_run(run) if run is not None and RunFolder(run).origin(LABEL_PARTY) else None
    encoders = start.encoders() if start else {}
    data = load_records(job, own, encoders=encoders) if {"canaries", "replay"} & set(wanted) else None

    def within(part: Part) -> Watching:
        return replace(watching, progress=lambda done, total, note: watching.progress(done, total, f"{part}: {note}"))

    def again(part: Part, name: str) -> RunSetup:
        place = RunFolder(folder / part / name)
        return RunSetup(job, place, own, record_steps=ALL_STEPS, watching=within(part), start=start)

    found: dict[str, Any] = {}
    if "canaries" in wanted:
        found["canaries"] = audit_run(again("canaries", "run"), canaries, confidence, secure_words(), data)
    if "releases" in wanted:
        mechanism, draws = job.privacy.build(_classes(job, data, own)), job.privacy.draws
        progress = within("releases").progress
        found["releases"] = repeat_releases(mechanism, folder / "releases", draws=draws, progress=progress)
    if "statistic" in wanted:
        classes = _classes(job, data, own)
        plan, progress = statistic_plan(job, classes), within("statistic").progress
        found["statistic"] = audit_statistic(
            plan, classes, folder / "statistic", canaries=canaries, confidence=confidence, progress=progress
        )
    if "replay" in wanted and data is not None:
        changed = flipped_at_the_source(job, secure_words(), own, encoders)
        found["replay"] = replay_run(again("replay", "before"), data, changed, secure_words())
    if "vault" in wanted and run is not None:
        found["vault"] = _verified(RunFolder(run).vault())
    return Examination(**found)


def _classes(job: Job, data: Dataset | None, own: Mapping[str, OwnParts]) -> int:
    if data is not None:
        return data.classes
    source = own.get(LABEL_PARTY, OwnParts()).source(LABEL_PARTY)
    return load_label_party(job.data, source=source).records.classes


def _verified(path: Path) -> VaultResult:
    with Vault.open(path) as vault:
        problems = tuple(vault.verify())
        return VaultResult(not problems, str(path), problems, () if problems else tuple(vault.cannot_see()))


def _possible(job: Job, only: Collection[Part], run: Path | None, notice: Notice) -> list[Part]:
    """Return the parts to make, in order; a notice names each that cannot be made, an error says that none can."""
    unknown = sorted(set(only) - set(PARTS))
    if unknown:
        raise AuditError(f"there is no part {unknown[0]!r} of an audit; the parts are {', '.join(PARTS)}")
    without: dict[Part, str] = {}
    if not job.trains:
        without["canaries"] = "no gradients cross (method: statistic)"
    if not job.releases:
        without |= dict.fromkeys(("canaries", "releases"), "the job releases no labels (gradients: none)")
    elif job.privacy.mechanism == "none":
        without["releases"] = "the job releases labels without noise, and claims nothing"
    if job.statistic is None:
        without["statistic"] = "the job has none"
    if run is None:
        without["vault"] = "a job has no vault yet; name a run folder"
    elif not Vault.exists(RunFolder(run).vault()):
        without["vault"] = f"the run's vault {RunFolder(run).vault()} is not there"
    wanted = [part for part in PARTS if part in only and part not in without]
    if not wanted:
        raise AuditError("; ".join(f"{part} cannot be audited: {without[part]}" for part in PARTS if part in only))
    for part in PARTS:
        if part in only and part in without and part != "statistic" and (part != "vault" or run is not None):
            notice(f"{part}: left out, {without[part]}")
    return wanted
