"""New records of all parties, scored by whatever a folder predicts with: a network, a committee, or a learner."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tpsl.data.dataset import class_names
from tpsl.learners.learning import learned_network
from tpsl.model.records import Network, NewRecords, place_of_scores, predict_records, read_records
from tpsl.model.trained import TrainedModel
from tpsl.progress import Progress, no_progress


class RecordScorer:
    """What the folder of a run or of a search predicts with, loaded once for any number of files."""

    def __init__(self, folder: Path, *, local_head: bool = False) -> None:
        self._run, self._local_head = (model := TrainedModel.open(folder)).run, local_head
        self._network: Network = learned_network(self._run) or model.halves(local_head=local_head)
        self._class_names = class_names(self._run.job().data)

    def score(
        self,
        files: Mapping[str, str],
        out: Path,
        aligned: Mapping[str, Path] | None = None,
        progress: Progress = no_progress,
    ) -> tuple[Path, NewRecords]:
        """Score the records of a table of each party; return where the scores are and the first party's records.

        Scores are in the order of the first table. The file is whole or absent; its name says so if they are NOT
        PRIVATE.
        """
        place = place_of_scores(out, local_head=self._local_head)
        found = {
            party: read_records(self._run, party, file, (aligned or {}).get(party), progress)
            for party, file in files.items()
        }
        scores = predict_records(self._network, found, self._class_names, progress)
        first = next(iter(found.values()))
        scores.write(place, first)
        return place, first
