"""How often each part of an audit may accuse sound code: four times in a million audits, all parts together.

Record and replay compares bytes and never accuses sound code. The tests of a run's own vault have the same level
(`tpsl.vault.stored_outcomes.LEVEL`).
"""

CANARIES = 1e-6
STATISTIC = 1e-6
RELEASES = 1e-6
