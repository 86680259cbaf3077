"""Labels of training records into the vault, and their noisy labels out of it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tpsl.data.out_of_core import empty, parts, taken, taken_texts
from tpsl.data.sides import LabelRecords, LabelSide
from tpsl.data.true_labels import reveal
from tpsl.mechanisms import DEFAULT_BOUND, fit_noise
from tpsl.progress import Notice, no_notice
from tpsl.run.job import Job
from tpsl.run.method import rare_label_warning_of
from tpsl.run.schedule import Schedule
from tpsl.vault import NoisyLabels, Overlap, ReleasePolicy, Spent, StatisticPlan, Vault, VaultError
from tpsl.vault.accounting import Charge, spent_under
from tpsl.vault.cost import Planned, PlannedStatistic
from tpsl.vault.errors import VaultChanged
from tpsl.vault.place import address_of

Column = Any
"""A column of texts: ids or units."""

# ---- what a job releases


def planned_labels(job: Job, classes: int) -> Planned:
    """Return the job's release of noisy labels."""
    return Planned(job.privacy.build(classes), job.privacy.draws, job.privacy.noise_seed)


def statistic_plan(job: Job, classes: int, width: int = 1) -> StatisticPlan:
    """Return the job's statistic of vectors of this width: the least noise whose exact cost is at most ε and δ.

    That is the cost of all its releases together; it does not depend on the width.
    """
    section, epsilon = job.statistic, job.privacy.epsilon
    if section is None or epsilon is None:
        raise ValueError("the job has no statistic")
    delta = section.delta if section.noise == "gaussian" else 0.0
    noise = fit_noise(section.noise, epsilon, delta, DEFAULT_BOUND, classes, section.releases)
    return StatisticPlan(noise, DEFAULT_BOUND, width, job.privacy.noise_seed, section.releases)


def planned_releases(job: Job, classes: int) -> dict[str, Charge]:
    """Return what a job releases, by name: noisy labels of some records, and a statistic of others if it has one.

    Noisy labels are those of records that train a network, and of those that are held out.
    """
    found: dict[str, Charge] = {}
    if job.trains or (job.releases and job.training.validation):
        planned = planned_labels(job, classes)
        found[planned.mechanism.name] = planned
    if job.statistic is not None:
        plan = statistic_plan(job, classes)
        found[f"{plan.noise.kind} statistic"] = PlannedStatistic(plan, classes, plan.releases)
    return found


def check_first_releases(job: Job, classes: int, records: int, policy: ReleasePolicy) -> None:
    """Raise a `VaultError` unless a job may release this many records that nothing was released of before."""
    for charge in planned_releases(job, classes).values():
        policy.check(spent_under([charge], records), records)


def labelled_ids(job: Job, records: LabelRecords) -> Column:
    """Return the ids of the training records that get noisy labels: all whose labels do not leave in a statistic."""
    if job.statistic is None:
        return records.training_ids
    return taken_texts(records.training_ids, Schedule(job, records.train, records.test).labelled)


def statistic_ids(job: Job, records: LabelRecords) -> Column:
    """Return the ids of the training records whose labels leave in the statistic."""
    return taken_texts(records.training_ids, Schedule(job, records.train, records.test).statistic)


# ---- out of the vault


def noisy_labels_for(
    job: Job, side: LabelSide, vault_path: Path, notice: Notice, policy: ReleasePolicy
) -> tuple[NoisyLabels, Spent]:
    """Return the noisy labels of the training records, and what these have spent over all releases of the vault.

    The labels are stored first (`store_labels`). The release happens once: a second run on the vault gets the same
    noisy labels. What the policy does not permit is an error before anything is drawn.
    """
    store_labels(side, vault_path, notice)
    noisy = release_labels(job, side.records, vault_path, notice, policy)
    with Vault.open(vault_path) as vault:
        return noisy, vault.total(side.records.training_ids)


def release_labels(
    job: Job, records: LabelRecords, vault_path: Path, notice: Notice, policy: ReleasePolicy
) -> NoisyLabels:
    """Release the labels of the training records, which the vault has, but those that leave in a statistic."""
    planned, ids = planned_labels(job, records.classes), labelled_ids(job, records)
    mechanism, draws, seed = planned.mechanism, planned.draws, planned.seed
    with Vault.open(vault_path) as vault:
        report = vault.release(mechanism, draws=draws, ids=ids, seed=seed, policy=policy)
        before = report.already_released
        if report.released:
            others = f", {before:,} were released before" if before else ""
            notice(f"{report.released:,} noisy labels released with {report.mechanism}{others}")
        else:
            notice(f"all {before:,} noisy labels were released before, with {report.mechanism}")
        return vault.noisy_labels(mechanism, ids, draws=draws, seed=seed, room=empty)


# ---- into the vault: from here on true labels are read


def overlap_with_vault(vault: Vault, side: LabelSide) -> Overlap:
    """Return what a vault has in common with the training records and their labels."""
    return vault.compare(side.records.training_ids, _training_labels(side))


def check_labels(vault: Vault, side: LabelSide, notice: Notice = no_notice) -> int:
    """Raise a `VaultError` if the vault has another label of a record; return how many of the records it has.

    Otherwise the vault's labels would be trained on and the data's evaluated. Records that an alignment has made keep
    the labels that the vault has, with a notice: a refusal would tell others that one of them is known.
    """
    overlap, ids_are_new = overlap_with_vault(vault, side), side.records.ids_are_new
    if overlap.differing and not ids_are_new:
        raise VaultError(overlap.difference(vault.path))
    if overlap.differing:
        notice(
            f"{overlap.differing:,} of the training records have another label or unit in the file than when the vault "
            f"{vault.path} stored them: it keeps the labels that it has; align again to release the new ones"
        )
    if ids_are_new != vault.counts_people:
        counted, these = ("people", "not those") if vault.counts_people else ("records", "those")
        raise VaultError(
            f"the vault {vault.path} counts what {counted} spend, and these records are {these} of an alignment of "
            "mode label-only, which makes new records of the same people"
        )
    return overlap.known


def tell_of_rare_labels(job: Job, side: LabelSide, notice: Notice) -> None:
    """Say so if noise will drown the rarest class of the training records; before a peer can see how long it takes."""
    labels, names = _training_labels(side), side.records.class_names
    counts = np.zeros(len(names), np.int64)
    for part in parts(len(labels)):
        counts += np.bincount(labels[part], minlength=len(names))
    if warning := rare_label_warning_of(job, dict(zip(names, counts.tolist(), strict=True))):
        notice(warning)


def store_labels(
    side: LabelSide,
    vault_path: Path,
    notice: Notice,
    *,
    name: str | None = None,
    scratch: bool = False,
    labels_before: Collection[str] | None = None,
) -> None:
    """Have the labels of the training records in the vault. Nothing is released.

    Stored labels stay as they are; a vault that has another label or unit of a record is an error. One that is not
    there is made, as a `scratch` vault or not, and its label gets the `name`. If the vault has got labels since it had
    those of `labels_before`, or records of this label meanwhile, nothing is stored and `VaultChanged` is raised.
    """
    records, labels = side.records, _training_labels(side)
    ids, units = records.training_ids, records.training_units
    _tell_of_odd_labels(side, labels, notice)
    folder, label = address_of(vault_path)
    there = Vault.labels(folder)
    if labels_before is not None and set(labels_before) != set(there):
        raise VaultChanged(folder)
    if not there or label not in (None, *there):
        notice(f"storing {len(ids):,} training labels as {vault_path}")
        Vault.create(
            folder,
            label=label or name,
            classes=records.classes,
            batches=[(ids, labels, units)],
            counts_people=records.ids_are_new,
            scratch=scratch,
            notice=notice,
            labels_before=there,
        ).close()
    else:
        with Vault.open(vault_path) as vault:
            missing = len(ids) - check_labels(vault, side, notice)
            if missing:
                new = ~vault.knows(ids)
                notice(f"adding {missing:,} training labels to the vault {vault.path}")
                if int(new.sum()) != missing:
                    raise VaultChanged(vault.path)
                chosen = pa.array(new)
                batch = ids.filter(chosen), labels[new], None if units is None else units.filter(chosen)
                vault.add([batch], notice=notice, only_new=True)
            if units is not None:
                vault.require_units(ids, units)
    if side.in_file is not None:
        with Vault.open(vault_path) as vault:
            vault.keep_file_records(side.in_file.ids, reveal(side.in_file.labels))


def _training_labels(side: LabelSide) -> npt.NDArray[np.int64]:
    return taken(reveal(side.labels), side.records.train)


def _tell_of_odd_labels(side: LabelSide, labels: npt.NDArray[np.int64], notice: Notice) -> None:
    """Say it if there is nothing to learn, or if units make labels unknown; a refusal would tell others of labels."""
    records = side.records
    if len(labels) and all((labels[part] == labels[0]).all() for part in parts(len(labels))):
        value = records.class_names[labels[0]]
        notice(f"all {len(labels):,} training labels are {value!r}: nothing can be learned; is it the right column?")
    if records.further_records:
        notice(
            f"{records.further_records:,} known records count as unknown: their unit has another record, and only one "
            "of each has its label, so that a unit spends no more than a record"
        )
