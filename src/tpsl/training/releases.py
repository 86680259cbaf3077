"""Training labels into the vault, and their noisy labels out of it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from tpsl.data.sides import LabelRecords, LabelSide
from tpsl.data.true_labels import reveal
from tpsl.progress import Notice
from tpsl.training.job import Job
from tpsl.vault import NO_LIMITS, LedgerTotal, NoisyLabels, Overlap, ReleasePolicy, Vault, VaultError


def noisy_labels_for(
    job: Job, side: LabelSide, vault_path: Path, notice: Notice, policy: ReleasePolicy = NO_LIMITS
) -> tuple[NoisyLabels, LedgerTotal]:
    """Return the noisy labels of the training records, and what these have spent over all releases of the vault.

    A vault that does not exist yet is made from the data's training labels. One that does must have the same labels of
    the records it knows; the others are added. The release happens once: a second run on the vault gets the same noisy
    labels. What the policy does not permit is an error before anything is drawn.
    """
    store_labels(side, vault_path, notice)
    noisy = release_labels(job, side.records, vault_path, notice, policy)
    with Vault.open(vault_path) as vault:
        return noisy, vault.total(side.records.training_ids)


def release_labels(
    job: Job, records: LabelRecords, vault_path: Path, notice: Notice, policy: ReleasePolicy = NO_LIMITS
) -> NoisyLabels:
    """Release the labels of the training records, which the vault has; the same as `noisy_labels_for` otherwise."""
    mechanism, why = job.privacy.choose(records.classes)
    if job.privacy.mechanism == "auto":
        notice(f"mechanism auto: {why}")
    ids, draws, seed = records.training_ids, job.privacy.draws, job.privacy.noise_seed
    with Vault.open(vault_path) as vault:
        report = vault.release(mechanism, draws=draws, ids=ids, seed=seed, policy=policy)
        notice(
            f"{report.released:,} noisy labels released with {mechanism}, "
            f"{report.already_released:,} were released before"
        )
        return vault.noisy_labels(mechanism, ids, draws=draws, seed=seed)


def compared(vault: Vault, side: LabelSide) -> Overlap:
    """Return what a vault has in common with the training records and their labels."""
    return vault.compare(side.records.training_ids, reveal(side.labels)[side.records.train])


def check_labels(vault: Vault, side: LabelSide, *, may_be_new: bool = False) -> bool:
    """Raise a `VaultError` if the vault has another label of a record, or is another data set's; say if it has all.

    A vault that knows no record is another's, unless all of them `may_be_new`. Otherwise the vault's labels would be
    trained on and the data's evaluated, without a word.
    """
    overlap, records = compared(vault, side), len(side.records.train)
    if overlap.differing:
        raise VaultError(overlap.difference(vault.path))
    if not (overlap.known or may_be_new):
        raise VaultError(
            f"the vault {vault.path} does not know {records} of the {records} training records: "
            "it holds others, or none"
        )
    return overlap.known == records


def store_labels(side: LabelSide, vault_path: Path, notice: Notice, *, may_be_new: bool = False) -> None:
    """Have the labels of the training records in the vault, all of which `may_be_new` to it. Nothing is released.

    Stored labels stay as they are; a vault that has another label or unit of a record is an error.
    """
    ids, units = side.records.training_ids, side.records.training_units
    labels = reveal(side.labels)[side.records.train]
    if not Vault.exists(vault_path):
        notice(f"storing {len(ids):,} training labels in the new vault {vault_path}")
        try:
            Vault.create(vault_path, classes=side.records.classes, batches=[(ids, labels, units)]).close()
            return
        except VaultError:
            if not Vault.exists(vault_path):  # or another process has made it
                raise
    with Vault.open(vault_path) as vault:
        if not check_labels(vault, side, may_be_new=may_be_new):
            new = ~vault.knows(ids)
            notice(f"adding {int(new.sum()):,} training labels to the vault {vault_path}")
            chosen = pa.array(new)
            vault.add([(ids.filter(chosen), labels[new], None if units is None else units.filter(chosen))])
        if units is not None:
            vault.require_units(ids, units)
