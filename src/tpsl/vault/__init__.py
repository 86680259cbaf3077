"""The vault: labels in, one release per record out, a ledger of what that cost, and its verification.

For the label party only. A true label leaves once, as a noisy label; training and all that crosses the border know no
other. The two things that look at true labels besides, the evaluation of test records and the local head, do so when no
peer can see how long they take (`tpsl.training.after_training`).
"""

from tpsl.vault.adding import Added
from tpsl.vault.errors import VaultBusy, VaultError, VaultFull
from tpsl.vault.ledger import Entry, LargestUnit, Ledger, Spent
from tpsl.vault.noisy import NoisyLabels
from tpsl.vault.releasing import ReleaseReport
from tpsl.vault.vault import Vault

__all__ = [
    "Added",
    "Entry",
    "LargestUnit",
    "Ledger",
    "NoisyLabels",
    "ReleaseReport",
    "Spent",
    "Vault",
    "VaultBusy",
    "VaultError",
    "VaultFull",
]
