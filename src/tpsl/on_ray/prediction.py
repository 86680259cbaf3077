"""Batch prediction as a Ray Data job: a file of scores for each file of new records.

Each process loads the model once and scores one file after the other. A file of scores is whole or absent, so a job
that was interrupted, or a process that was lost, costs the files that were being scored and no other; whatever
happens, each file of records has exactly one file of scores, the same as `tpsl predict` makes of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tpsl.files import draft_of, make_private_folder, write_atomically
from tpsl.learners.record_scoring import RecordScorer
from tpsl.on_ray.cluster import RayError, RayWorkers, Surroundings, ray_data
from tpsl.prediction.scores import place_of_scores
from tpsl.progress import Progress, no_progress
from tpsl.tables.locations import StoredFile, files_of, is_url, location_of

_NOTE = "predicted.json"


@dataclass(frozen=True)
class FilePrediction:
    """What is predicted: the model, a table of many files for each party, and the folder for the scores.

    The files of the parties go together by their names, as `part-07.parquet` at each of them, and hold the same ids.
    """

    model: Path
    records: Mapping[str, str]
    out: Path
    local_head: bool = False

    def run(self, ray: ModuleType, share: RayWorkers, progress: Progress = no_progress) -> int:
        """Score every file that has no scores yet, on a cluster; return how many files have them now."""
        files = _by_name({party: files_of(location_of(table, Path.cwd())) for party, table in self.records.items()})
        self._begin(files)
        places = {name: self._place(name) for name in files}
        missing = [name for name, place in places.items() if not place.exists()]
        done = len(files) - len(missing)
        progress(done, len(files), "")
        if missing:
            rows = [{"sources": json.dumps(self._sources(files[name])), "place": str(places[name])} for name in missing]
            data, workers = ray_data(), min(share.count_in(ray), len(missing))
            scored = data.from_items(rows, override_num_blocks=len(rows)).map_batches(
                _Scorer,
                fn_constructor_args=(Surroundings.of_this_process(), self.model.absolute(), self.local_head),
                batch_size=1,
                compute=data.ActorPoolStrategy(size=workers),
                **share.resources,
            )
            for each in scored.iter_rows():
                done += 1
                progress(done, len(files), Path(each["place"]).name)
        return len(files)

    def _sources(self, found: Mapping[str, StoredFile]) -> dict[str, str]:
        """Return where the files of each party are, with what the URL of its table says of the storage."""
        ends = {party: table.partition("?")[1:] for party, table in self.records.items() if is_url(table)}
        return {party: file.name + "".join(ends.get(party, ())) for party, file in found.items()}

    def _place(self, name: str) -> Path:
        stem = name.partition(".")[0]
        return place_of_scores(self.out.absolute() / f"{stem}.parquet", local_head=self.local_head)

    def _begin(self, files: Mapping[str, Mapping[str, StoredFile]]) -> None:
        """Note what is predicted, or see that it is what was begun here."""
        listed = {
            party: [[found[party].name, found[party].size, found[party].modified] for found in files.values()]
            for party in self.records
        }
        content = {"model": _digest(self.model), "local_head": self.local_head, "records": listed}
        note = self.out / _NOTE
        make_private_folder(self.out)
        if note.exists():
            if json.loads(note.read_text(encoding="utf-8")) != content:
                raise RayError(f"{self.out}: holds scores by another model or of other records; choose another --out")
            return
        if set(self.out.iterdir()) - {draft_of(note)}:  # that of a command that was killed
            raise RayError(f"{self.out}: holds other files; choose another --out")
        write_atomically(note, json.dumps(content).encode())


class _Scorer:
    """A process that scores files."""

    def __init__(self, surroundings: Surroundings, model: Path, local_head: bool) -> None:
        surroundings.enter()
        self._scorer = RecordScorer(model, local_head=local_head)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        for sources, place in zip(batch["sources"], batch["place"], strict=True):
            self._scorer.score(json.loads(sources), Path(place))
        return {"place": batch["place"]}


def _by_name(files: Mapping[str, list[StoredFile]]) -> dict[str, dict[str, StoredFile]]:
    """Return the file of each party, by its name; all parties have files of the same names."""
    named: dict[str, dict[str, StoredFile]] = {}
    for party, found in files.items():
        for file in found:
            name = file.name.rpartition("/")[2]
            if party in named.setdefault(name, {}):
                raise RayError(f"{file.name}: another file of {party!r} has the same name; scores would collide")
            named[name][party] = file
    for name, found_by in named.items():
        for party in files:
            if party not in found_by:
                raise RayError(f"{name}: {next(iter(found_by))!r} has such a file of records, and {party!r} has none")
    stems: dict[str, str] = {}
    for name in named:
        if stems.setdefault(name.partition(".")[0], name) != name:
            raise RayError(f"{name}: has the same name as {stems[name.partition('.')[0]]} but for the ending")
    return named


def _digest(model: Path) -> str:
    """Return what tells a finished model from others: a digest of what its folder notes, the versions of its halves."""
    notes = sorted([*model.glob("*.json"), *model.glob("*/*.json")])
    return hashlib.sha256(b"\0".join(note.read_bytes() for note in notes)).hexdigest()
