"""Which records the parties have in common, found out before a job without showing the others."""
