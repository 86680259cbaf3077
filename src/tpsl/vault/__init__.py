"""The vault: labels in, one release per record out, a ledger of what that cost, and its verification.

For the label party only. A true label leaves once, as a noisy label or in one noisy statistic of many records; training
and all that crosses the border know no other. The two things that look at true labels besides, the evaluation of test
records and the local head, do so when no peer can see how long they take (`tpsl.training.after_training`).
"""

from tpsl.vault.comparing import Overlap
from tpsl.vault.errors import VaultBusy, VaultError, VaultFull
from tpsl.vault.ingest import Added, LabelTable
from tpsl.vault.ledger import Entry, LargestUnit, Ledger, Spent
from tpsl.vault.noisy import NoisyLabels, NoisyStatistic
from tpsl.vault.place import default_place
from tpsl.vault.planned import StatisticPlan
from tpsl.vault.policy import NO_LIMITS, ReleasePolicy
from tpsl.vault.releasing import ReleaseReport
from tpsl.vault.summing import VaultSum, sums_over
from tpsl.vault.totals import LedgerTotal
from tpsl.vault.vault import Vault

__all__ = [
    "NO_LIMITS",
    "Added",
    "Entry",
    "LabelTable",
    "LargestUnit",
    "Ledger",
    "LedgerTotal",
    "NoisyLabels",
    "NoisyStatistic",
    "Overlap",
    "ReleasePolicy",
    "ReleaseReport",
    "Spent",
    "StatisticPlan",
    "Vault",
    "VaultBusy",
    "VaultError",
    "VaultFull",
    "VaultSum",
    "default_place",
    "sums_over",
]
