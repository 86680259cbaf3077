"""The one error of tables and data."""


class DataError(ValueError):
    """Data cannot be used as asked; the message is one sentence naming the file, column, row or option at fault."""
