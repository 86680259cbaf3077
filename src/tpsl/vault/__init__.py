"""The vault: labels in, one release per record out, a ledger of what that cost, and its verification.

For the label party only. A true label is read here and nowhere else, and leaves once, as a noisy label.
"""

from tpsl.vault.adding import Added
from tpsl.vault.errors import VaultBusy, VaultError, VaultFull
from tpsl.vault.ledger import Entry, LargestUnit, Ledger, Spent
from tpsl.vault.lookalikes import Lookalikes
from tpsl.vault.noisy import NoisyLabels
from tpsl.vault.releasing import ReleaseReport
from tpsl.vault.vault import Vault

__all__ = [
    "Added",
    "Entry",
    "LargestUnit",
    "Ledger",
    "Lookalikes",
    "NoisyLabels",
    "ReleaseReport",
    "Spent",
    "Vault",
    "VaultBusy",
    "VaultError",
    "VaultFull",
]
