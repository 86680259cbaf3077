"""The committee of a search predicts new records: every candidate does, and counts by its weight."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tpsl.data.features import Features
from tpsl.data.source import Inputs
from tpsl.data.split import Rows
from tpsl.prediction.halves import PredictionError, Probabilities, TrainedHalves, load_bottom, load_top
from tpsl.training.run_folder import RunFolder
from tpsl.tuning.committee import Committee

TUNE = "tune.json"


@dataclass(frozen=True)
class CommitteeNetwork:
    """All candidates of a search with their weights, which add up to 1."""

    members: tuple[tuple[float, TrainedHalves], ...]

    @property
    def parties(self) -> tuple[str, ...]:
        """The parties whose inputs are needed."""
        return self.members[0][1].parties

    def part(self, inputs: Mapping[str, Features | Inputs], rows: Mapping[str, Rows]) -> Probabilities:
        """Return what the committee says of some records; `rows` are theirs in each party's inputs."""
        committee = Committee()
        for weight, halves in self.members:
            committee.add(weight, halves.part(inputs, rows))
        return committee.predict()


def load_committee(out: Path) -> tuple[RunFolder, CommitteeNetwork]:
    """Return the committee of the folder of a search, and a finished run of it, which has encoders of all parties."""
    try:
        candidates = json.loads((out / TUNE).read_text(encoding="utf-8"))["candidates"]
        found = [(float(row["weight"]), out / "runs" / str(row["run"]), int(row["epoch"])) for row in candidates]
    except OSError as error:
        raise PredictionError(f"{out / TUNE}: cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise PredictionError(f"{out / TUNE}: is no result of tpsl tune that can predict ({error})") from error
    finished = next((RunFolder(run) for _, run, _ in found if RunFolder(run).result() is not None), None)
    if finished is None:
        raise PredictionError(f"{out}: no run of this search is finished")
    members = tuple((weight, _halves(run, epoch)) for weight, run, epoch in found if weight > 0)
    return finished, CommitteeNetwork(members)


def _halves(run: Path, epoch: int) -> TrainedHalves:
    top = load_top(run, epoch=epoch)
    return TrainedHalves({party: load_bottom(run, party, epoch=epoch) for party in top.widths}, top)
