"""Sums of floats that are not rounded on the way."""

import numpy as np
import numpy.typing as npt

_AT_ONCE = 1 << 20
_LOW_BITS = 27  # of the 53 of a mantissa: sums of halves of a million mantissas are exact in float64
_LOWEST = -1073  # the exponent that `np.frexp` gives to the smallest number
_EXPONENTS = 1024 - _LOWEST + 1
_UNIT = 53 - _LOWEST  # every float is a multiple of 2**-_UNIT


class ExactSum:
    """The sum of finite numbers, and their mean: neither their order nor how they come in pieces changes a bit."""

    def __init__(self) -> None:
        self.count = 0
        self._high, self._low = np.zeros(_EXPONENTS, np.int64), np.zeros(_EXPONENTS, np.int64)

    def add(self, values: npt.NDArray[np.float64]) -> None:
        """Take in further numbers."""
        for start in range(0, len(values), _AT_ONCE):
            mantissas, exponents = np.frexp(values[start : start + _AT_ONCE])
            whole, places = (mantissas * 2.0**53).astype(np.int64), exponents - _LOWEST
            self._high += _sums(places, whole >> _LOW_BITS)
            self._low += _sums(places, whole & ((1 << _LOW_BITS) - 1))
        self.count += len(values)

    def mean(self) -> float:
        """Return the mean of all numbers so far, rounded once; 0 if there is none."""
        present = np.flatnonzero(self._high | self._low).tolist()
        total = sum(((int(self._high[at]) << _LOW_BITS) + int(self._low[at])) << at for at in present)
        return total / (self.count << _UNIT) if self.count else 0.0


def _sums(places: npt.NDArray[np.int32], numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.bincount(places, weights=numbers, minlength=_EXPONENTS).astype(np.int64)
