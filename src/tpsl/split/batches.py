"""Batches of a party's inputs, as its bottom half reads them."""

from __future__ import annotations

import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tpsl.data.features import Arrays, Features, Inputs
from tpsl.data.order import Rows

Gathered = tuple[Tensor, ...]
"""Inputs that somebody else has gathered already."""
_COPIED_AT_ONCE = 1 << 20
"""Rows."""
_resident: dict[tuple[int, torch.device], Tensor] = {}
"""Copies of arrays on GPUs, by the array (its `id`) and the device; each goes with its array."""


class Batches:
    """Gathers batches on a device: of encoded features in memory by index there, of other inputs by asking for them.

    Features that lie on disk are taken into the memory of a GPU if they fill no more than half of what is free. Else a
    thread reads the batch that is expected next while this one is learned from.
    """

    def __init__(self, inputs: Features | Inputs, device: torch.device | None = None) -> None:
        self._inputs, self._device = inputs, device
        self._features: list[Tensor] = []
        self._reader = ThreadPoolExecutor(1, "reads ahead")
        self._ahead: tuple[Rows, Future[Arrays]] | None = None
        if isinstance(inputs, Features) and (not inputs.is_mapped or _fits(inputs, device)):
            self._features = [self._in_memory(inputs.categorical), self._in_memory(inputs.numeric)]
            inputs.release_pages()

    @property
    def resident(self) -> tuple[Tensor, ...]:
        """All inputs, if they are in the memory of the device."""
        return tuple(self._features)

    def batch(self, rows: Rows | Gathered) -> Gathered:
        """Return what a bottom half is called with for these rows: of features, categories and numbers."""
        if isinstance(rows, tuple):
            return rows
        if self._features:
            index = self._tensor(rows)
            return tuple([values.index_select(0, index) for values in self._features])
        return tuple(map(self._tensor, self._read(rows)))

    def expect(self, rows: Rows | Gathered) -> None:
        """Begin to read these rows, which will be asked for next, if that takes time.

        A user's own source is not read ahead: it may not be made for threads.
        """
        if isinstance(self._inputs, Features) and not self._features and self._ahead is None:
            assert not isinstance(rows, tuple)
            self._ahead = rows, self._reader.submit(self._inputs.batch, rows)

    def _read(self, rows: Rows) -> Arrays:
        """Return the inputs of some rows; what was read ahead if it is these."""
        if self._ahead is None:
            return self._inputs.batch(rows)
        (expected, reading), self._ahead = self._ahead, None
        found = reading.result()
        return found if np.array_equal(expected, rows) else self._inputs.batch(rows)

    def _tensor(self, array: Any) -> Tensor:
        return torch.from_numpy(np.require(array, requirements=["W", "C"])).to(self._device)

    def _in_memory(self, array: Any) -> Tensor:
        """Return an array as a tensor on the device; a GPU keeps one copy of it, for all runs on these inputs."""
        if self._device is None or self._device.type == "cpu":
            return self._tensor(array)
        key = id(array), self._device
        if key not in _resident:
            _resident[key] = self._copied(array)
            weakref.finalize(array, _resident.pop, key, None)
        return _resident[key]

    def _copied(self, array: Any) -> Tensor:
        """Return a copy on the device, made in parts, which never lie in memory all at once."""
        tensor = torch.empty(array.shape, dtype=torch.from_numpy(array[:0].copy()).dtype, device=self._device)
        for start in range(0, len(array), _COPIED_AT_ONCE):
            part = slice(start, start + _COPIED_AT_ONCE)
            tensor[part] = self._tensor(array[part])
        return tensor


def _fits(features: Features, device: torch.device | None) -> bool:
    if device is None or device.type != "cuda":
        return False
    free, _ = torch.cuda.mem_get_info(device)
    return features.categorical.nbytes + features.numeric.nbytes <= free // 2
