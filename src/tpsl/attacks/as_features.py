"""What attacks that learn from features read where there is no table: principal components of what is there.

Models of the label are fitted to a few numbers of each record. Of images, sequences and other inputs of a user's own,
and of embeddings, these are the directions in which the records differ most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tpsl.data.features import Features, Inputs
from tpsl.data.order import Rows
from tpsl.run.transcript import TranscriptStep

Numbers = npt.NDArray[np.floating[Any]]
Parts = Callable[[], Iterable[tuple[Rows, Numbers]]]
"""Some rows and their numbers, again and again until all rows were given; may be asked for twice."""

_COMPONENTS_OF_EMBEDDINGS, _COMPONENTS_OF_INPUTS = 8, 16
_COUNTED = 256
"""Values of a sequence of integers are counted in this many bins."""
_WIDEST = 2048
_AT_ONCE = 1024


def as_features(inputs: Mapping[str, Features | Inputs]) -> dict[str, Features]:
    """Return features of each party: those of a table as they are, of other inputs their principal components."""
    return {party: held if isinstance(held, Features) else _of_inputs(held) for party, held in inputs.items()}


def embeddings_as_features(steps: Callable[[], Iterable[TranscriptStep]], records: int) -> Features:
    """Return the components of the embeddings as last sent, for whoever does not have the features.

    Of a table with this many records, those that were not seen have components of 0.
    """
    return _components(lambda: ((seen.rows, seen.embeddings) for seen in steps()), records, _COMPONENTS_OF_EMBEDDINGS)


def _of_inputs(inputs: Inputs) -> Features:
    return _components(partial(_flattened, inputs), len(inputs), _COMPONENTS_OF_INPUTS)


def _components(parts: Parts, records: int, most: int) -> Features:
    count, total, products = 0, np.zeros(()), np.zeros(())
    for _, numbers in parts():
        wide = numbers.astype(np.float64)
        count, total, products = count + len(wide), total + wide.sum(axis=0), products + wide.T @ wide
    mean = total / count
    variances, directions = np.linalg.eigh(products / count - np.multiply.outer(mean, mean))
    variances, directions = variances[-most:], directions[:, -most:]
    directions = directions / np.sqrt(np.maximum(variances, 1e-12 * max(variances[-1], 1e-300)))
    components = np.zeros((records, directions.shape[1]), dtype=np.float32)
    for rows, numbers in parts():
        components[rows] = (numbers - mean) @ directions
    names = tuple(f"component {number}" for number in range(directions.shape[1]))
    return Features(np.zeros((records, 0), dtype=np.int32), components, 1, (), names)


def _flattened(inputs: Inputs) -> Iterable[tuple[Rows, Numbers]]:
    """Yield all inputs as rows of numbers: of a sequence of integers how often each occurs, of all else the values.

    Wider rows are made narrower by a fixed random projection, which keeps distances.
    """
    for start in range(0, len(inputs), _AT_ONCE):
        rows = np.arange(start, min(start + _AT_ONCE, len(inputs)), dtype=np.int64)
        numbers = np.concatenate([_numbers(array) for array in inputs.batch(rows)], axis=1)
        if numbers.shape[1] > _WIDEST:
            generator = np.random.default_rng(0)
            numbers = numbers @ generator.standard_normal((numbers.shape[1], _WIDEST), dtype=np.float32)
        yield rows, numbers


def _numbers(array: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    if array.dtype.kind not in "iu" or array.ndim == 1:
        return array.reshape(len(array), -1).astype(np.float32)
    counts = np.zeros((len(array), _COUNTED), dtype=np.float32)
    values = array.reshape(len(array), -1) % _COUNTED
    np.add.at(counts, (np.arange(len(array))[:, None], values), 1.0)
    return counts
