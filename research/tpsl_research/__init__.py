"""The laboratory: the paper's tables and figure, grids of runs, what ε buys, other defences, what changes are worth.

Nothing in `tpsl` imports it. Its noise is seeded, because an experiment should be repeatable: none of its runs is
private, and their rows say so.
"""
