"""Which records the parties have in common, found out before a job without showing the others."""


class AlignmentError(ValueError):
    """An alignment that cannot be made or gone on with; the sentence names the folder, the party or the package."""
