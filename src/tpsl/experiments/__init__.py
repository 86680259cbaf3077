"""Experiments: baselines without a guarantee, grids of runs, and the paper's tables and figure."""
