"""The records of a job, for tasks in this process and in others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tpsl.data.dataset import Dataset, load_label_party
from tpsl.data.features import Features
from tpsl.data.sides import FeatureSide
from tpsl.net.peers import LABEL_PARTY
from tpsl.training.job import Job
from tpsl.training.one_process import load_records
from tpsl.training.own_parts import OwnParts


class SharedRecords:
    """Records that are loaded once: other processes map the encoded features (`tpsl.select.shared_objects`).

    True labels are not handed on: each process loads the label party's side for itself. Inputs of a party's own, and
    features too large for memory, are loaded by each process, too.
    """

    def __init__(self, job: Job, own: Mapping[str, OwnParts], dataset: Dataset) -> None:
        self._job, self._own = job, own
        self._sides: dict[str, FeatureSide] | None = dataset.feature_sides
        self._dataset: Dataset | None = dataset

    @property
    def dataset(self) -> Dataset:
        """The records of all parties."""
        if self._dataset is None:
            self._dataset = self._loaded()
        return self._dataset

    def __getstate__(self) -> dict[str, Any]:
        sides = self._sides if self._sides is not None and all(map(_is_in_memory, self._sides.values())) else None
        return {"_job": self._job, "_own": self._own, "_sides": sides, "_dataset": None}

    def _loaded(self) -> Dataset:
        if self._sides is None:
            return load_records(self._job, self._own)
        source = self._own.get(LABEL_PARTY, OwnParts()).source(LABEL_PARTY)
        late = self._job.has_late_labels
        return Dataset(self._sides, load_label_party(self._job.data, late_labels=late, source=source))


def _is_in_memory(side: FeatureSide) -> bool:
    return isinstance(side.features, Features) and not side.features.is_mapped
