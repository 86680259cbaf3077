"""Verification of statistics: what the ledger claims of each, against its stored numbers."""

import hashlib
from collections.abc import Sequence

from tpsl.mechanisms import noise_from_spec
from tpsl.vault.ledger import Entry
from tpsl.vault.planned import PlannedStatistic, StatisticPlan
from tpsl.vault.releasing_statistic import decode_values, read_values
from tpsl.vault.store import Store

NOISE_NOT_TESTED = (
    "the noise of statistics was not tested: that takes the vectors they were summed from, which the vault does not "
    "keep; whoever has them can ask Vault.statistic_problems"
)


def statistic_problems(store: Store, entries: Sequence[Entry], classes: int) -> list[str]:
    """What is wrong with the numbers and claims of these entries, a sentence each."""
    sequences = {int(sequence) for (sequence,) in store.execute("SELECT entry FROM statistics")}
    problems = []
    for entry in entries:
        place = f"release {entry.sequence}"
        if entry.sequence not in sequences:
            problems.append(f"{place}: the numbers of its statistic are missing")
            continue
        sequences.remove(entry.sequence)
        try:
            problems += [f"{place}: {problem}" for problem in _claims(entry, read_values(store, entry), classes)]
        except (ValueError, TypeError) as error:
            problems.append(f"{place}: {error}")
    strangers = (f"release {sequence}: a statistic is stored without a ledger entry" for sequence in sorted(sequences))
    return problems + list(strangers)


def _claims(entry: Entry, blob: bytes, classes: int) -> list[str]:
    """Where the entry of a statistic does not say what follows from its noise, its bound and its numbers."""
    details = entry.details
    noise = noise_from_spec(details["mechanism"])
    plan = StatisticPlan(noise, details["bound"], details["width"], details["seed"], details["releases"])
    planned, found = PlannedStatistic(plan, details["classes"]), []
    decode_values(blob, plan.shape(planned.classes))
    if planned.classes != classes:
        found.append(f"its ledger entry speaks of {planned.classes} classes, but the labels have {classes}")
    if hashlib.sha256(blob).hexdigest() != details["values_digest"]:
        found.append("its noisy statistic was changed, it does not have the digest of its ledger entry")
    claimed = planned.details(details["records"], "", "", "")
    for name in ("noise_digest", "epsilon", "delta", "rho", "noise"):
        if details[name] != claimed[name]:
            found.append(f"its ledger entry says {name} {details[name]!r}, but {plan.noise} has {claimed[name]!r}")
    return found
