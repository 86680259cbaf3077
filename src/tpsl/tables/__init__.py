"""Tables in files: read in blocks of records, whatever their size, and the meaning of their columns."""


class DataError(ValueError):
    """Data cannot be used as asked; the message is one sentence naming the file, column, row or option at fault."""
