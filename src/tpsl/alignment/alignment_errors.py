"""What can be wrong with an alignment."""


class AlignmentError(ValueError):
    """An alignment that cannot be made or gone on with; the sentence names the folder, the party or the package."""
