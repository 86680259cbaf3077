"""How often each part of an audit may accuse sound code: together less than once in a thousand audits.

Record and replay compares bytes and never accuses sound code; the tests of a vault's noise have a level of their own
(`tpsl.vault.stored_outcomes.LEVEL`, one in a million). The rest is shared between what is left.
"""

CANARIES = 3e-4
RELEASES = 3e-4
