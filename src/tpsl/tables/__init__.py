"""Tables in files: read in blocks of records, whatever their size, and the meaning of their columns."""

from tpsl.tables.errors import DataError

__all__ = ["DataError"]
