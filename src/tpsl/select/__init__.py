"""Model selection that costs no budget: many configurations, one release, and noisy labels that choose."""
