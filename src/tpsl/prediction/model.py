"""What a folder predicts with: the network of a run, or the committee of a search (`tpsl tune`).

A run is a model with one member. In the folder of a search, `tune.json` lists the members: epochs of its runs, at the
label party each with its weight. A feature party needs no weights: it sends the shares of all members.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tpsl.files import read_plain
from tpsl.prediction.committee import Committee, mixture
from tpsl.prediction.half_loading import Embedder, PredictionError, Predictor, Probabilities, SideBySide, TrainedHalves
from tpsl.prediction.local_head import load_embedder, load_predictor
from tpsl.training.own_parts import OwnParts
from tpsl.training.run_folder import RunFolder

TUNE = "tune.json"
WITH_JUDGES = "with-judges"
"""The folder in a search's own of its committee as it was trained once more (`tpsl.select.search`), if it was."""


@dataclass(frozen=True)
class Member:
    """One network of a model."""

    run: RunFolder
    epoch: int | None = None
    """The epoch after which it was kept; None: as the run has ended."""
    weight: float | None = None
    """How much it counts; None where nobody knows, at a feature party."""


@dataclass(frozen=True)
class TrainedModel:
    """One network, or several that predict together; `path` is the folder that errors name."""

    path: Path
    members: tuple[Member, ...]

    @classmethod
    def open(cls, path: Path) -> TrainedModel:
        """Return the model of the folder of a run or of a search."""
        if not (path / TUNE).exists():
            return cls(path, (Member(RunFolder(path)),))
        return cls(path, _members(path))

    @property
    def is_committee(self) -> bool:
        """Whether this is the committee of a search."""
        return self.members[0].epoch is not None

    @property
    def run(self) -> RunFolder:
        """A run whose data, encoders and release are those of all members."""
        return self.members[0].run

    def runs(self) -> list[RunFolder]:
        """Return the runs of all members, each once."""
        return list({member.run.path: member.run for member in self.members}.values())

    def embedder(self, party: str, own: OwnParts | None = None) -> Embedder:
        """Return what makes a party's share; the folder need hold no other party's half."""
        parts = [load_embedder(member.run.path, party, own, member.epoch) for member in self.members]
        return SideBySide(tuple(parts)) if self.is_committee else parts[0]

    def predictor(self, *, local_head: bool = False, own: OwnParts | None = None) -> Predictor:
        """Return what the label party predicts with, from its folder: the private head, or the local one."""
        if not self.is_committee:
            return load_predictor(self.run.path, local_head=local_head, own=own)
        if local_head:
            raise PredictionError(f"{self.path}: is the folder of a search, whose committee has no local head")
        return Committee(
            tuple((weight, load_predictor(run.path, own=own, epoch=epoch)) for weight, run, epoch in self._weighted())
        )

    def kept_predictions(self, records: Literal["validation", "test"]) -> Probabilities:
        """Return what a search's committee says of its held-out or test records, as its runs have kept it."""
        return mixture((weight, run.predictions(epoch)[records]) for weight, run, epoch in self._weighted())

    def _weighted(self) -> list[tuple[float, RunFolder, int]]:
        """Return weight, run and epoch of each member of a committee."""
        found = []
        for member in self.members:
            if member.weight is None or member.epoch is None:
                raise PredictionError(f"{self.path / TUNE}: has no weights; only the label party's half has some")
            found.append((member.weight, member.run, member.epoch))
        return found

    def halves(self, *, local_head: bool = False) -> TrainedHalves:
        """Return all halves, from a folder that holds those of all parties."""
        top = self.predictor(local_head=local_head)
        return TrainedHalves({party: self.embedder(party) for party in top.widths}, top, len(self.members))

    def version(self, party: str) -> str:
        """Return the version of a feature party's half: halves of different models differ in it."""
        if not self.is_committee:
            return self.run.version(party)
        return _joint_version(member.run.version(party, member.epoch) for member in self.members)

    def versions(self) -> dict[str, str]:
        """Return the versions of the feature parties' halves that the label party's half was trained with."""
        if not self.is_committee:
            return self.run.versions()
        found = [member.run.versions(member.epoch) for member in self.members]
        return {party: _joint_version(each[party] for each in found) for party in found[0]}


def _joint_version(versions: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(["tpsl committee", *versions]).encode()).hexdigest()


def _members(out: Path) -> tuple[Member, ...]:
    try:
        rows = json.loads(read_plain(out / TUNE))["candidates"]
        found = tuple(
            Member(
                RunFolder(out / "runs" / str(row["run"])),
                int(row["epoch"]),
                float(row["weight"]) if "weight" in row else None,
            )
            for row in rows
        )
    except OSError as error:
        raise PredictionError(f"{out / TUNE}: cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise PredictionError(f"{out / TUNE}: is no result of tpsl tune that can predict ({error})") from error
    if not found:
        raise PredictionError(f"{out / TUNE}: lists no network")
    return found
