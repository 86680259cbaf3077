"""Tables in files: read in blocks of records, whatever their size, and the meaning of their columns."""

from typing import Any

# PyArrow ships no types. These names say what an object of it is, where a type checker cannot.
ArrowArray = Any
"""A `pa.Array`: a column, or what was computed from one."""
ArrowObject = Any
"""Anything else of PyArrow: a type, schema, table, file or file system."""


class DataError(ValueError):
    """Data cannot be used as asked; the message is one sentence naming the file, column, row or option at fault."""
