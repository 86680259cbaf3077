"""A saved encoder for a few records at a time, as they come to a service."""

from collections.abc import Sequence

from tpsl.data.encoder import EncoderState
from tpsl.data.errors import DataError
from tpsl.data.features import Features
from tpsl.data.plain_encoder import PlainEncoder, Record


class RowEncoder:
    """Encodes records that are mappings from column to value, without PyArrow.

    Guarantee: the features are, bit for bit, those of `EncoderState.encode` for a table of these records.
    """

    def __init__(self, state: EncoderState) -> None:
        self._state, self._plain = state, PlainEncoder(state.plain())

    def encode(self, rows: Sequence[Record]) -> Features:
        """Return the features of records; one that lacks a column, or has a value that cannot be read, is an error."""
        try:
            return self._state.features(*self._plain.encode(rows))
        except ValueError as error:
            raise DataError(str(error)) from None
