"""The vault: labels in, one release per record out, a ledger of what that cost, and its verification.

For the label party only. A true label leaves once, as a noisy label or in one noisy statistic of many records; training
and all that crosses the border know no other. The two things that look at true labels besides, the evaluation of test
records and the local head, do so when no peer can see how long they take (`tpsl.run.after_training`).
"""

from tpsl.vault.cost import NO_LIMITS, ReleasePolicy, Spent, StatisticPlan
from tpsl.vault.errors import VaultBusy, VaultError, VaultFull
from tpsl.vault.ingest import Added, LabelTable
from tpsl.vault.ledger import Entry, Ledger
from tpsl.vault.noisy import NoisyLabels, NoisyStatistic
from tpsl.vault.place import the_vault
from tpsl.vault.releasing import ReleaseReport
from tpsl.vault.same_labels import Overlap
from tpsl.vault.vault import Vault

__all__ = [
    "NO_LIMITS",
    "Added",
    "Entry",
    "LabelTable",
    "Ledger",
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
    "the_vault",
]
