"""The one error of this room, which is that of the tables it reads."""

from tpsl.tables import DataError as DataError
