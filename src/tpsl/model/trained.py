"""The trained model of a folder: the one way to load, predict, embed, export and describe what a run has learned.

A run is a model with one member. In the folder of a search (`tpsl tune`), `tune.json` lists the members of an ensemble:
epochs of its runs, at the label party each with its weight. A feature party needs no weights: it sends the shares of
all members.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tpsl.data.dataset import Dataset
from tpsl.data.features import Features, Inputs
from tpsl.data.order import Rows
from tpsl.data.own import source_inputs
from tpsl.files import read_plain
from tpsl.heads.feature_map import CodeBook
from tpsl.heads.local_training import LocalHead
from tpsl.heads.statistic_fit import StatisticHead
from tpsl.heads.wide_part import with_scores
from tpsl.model.exporting import Exported, export_half
from tpsl.model.model_card import Card, Head, facts
from tpsl.model.predictors import (
    Embedder,
    Ensemble,
    LocalPredictor,
    PredictionError,
    Predictor,
    PrivateHead,
    Probabilities,
    StatisticPredictor,
    TrainedBottom,
    TrainedHalves,
)
from tpsl.model.records import Source, has_features, predict_records, read_records
from tpsl.net.messages import LABEL_PARTY, described
from tpsl.run.build import build_bottoms, build_top
from tpsl.run.checkpoint import load_weights, read_weights
from tpsl.run.job import Job
from tpsl.run.own_parts import OwnParts
from tpsl.run.run_folder import NOT_PRIVATE, RunFolder, epoch_folder
from tpsl.run.stages.collect import CODE_COLUMNS, CODES, STATISTIC_HEAD
from tpsl.run.stages.prepare import PRETRAINED, load_wide

TUNE = "tune.json"
_BOTTOM, _TOP, _LOCAL_HEAD = "bottom.safetensors", "top.safetensors", "local_head.safetensors"


@dataclass(frozen=True)
class Member:
    """One network of a model."""

    run: RunFolder
    epoch: int | None = None
    """The epoch after which it was kept; None: as the run has ended."""
    weight: float | None = None
    """How much it counts; None where nobody knows, at a feature party."""

    def parts(self, party: str, own: OwnParts, read: Features | Inputs) -> list[TrainedBottom | CodeBook]:
        """Return what makes a party's share: codes, the frozen embedding and the cut, as the job sends them."""
        job, folder = self.run.job(), self.folder(party)
        found: list[TrainedBottom | CodeBook] = []
        if (codes := self.run.party(party) / CODES).exists():
            try:
                found.append(CodeBook(read_weights(codes, PredictionError)))
            except KeyError as error:
                raise PredictionError(f"{codes}: holds no codes of fields ({error})") from error
        if party != LABEL_PARTY and _sends_frozen(job):
            frozen = build_bottoms(job.without_wide_part(), party, read, own)
            load_weights(frozen, self.run.party(party) / PRETRAINED, PredictionError)
            found.append(TrainedBottom(party, frozen))
        if job.model.wide and isinstance(read, Features):
            read = with_scores(read, np.zeros(len(read), np.float32))
        bottom = build_bottoms(job, party, read, own)
        load_weights(bottom, folder / _BOTTOM, PredictionError)
        try:
            wide = load_wide(self.run.party(party)) if job.model.wide else None
        except ValueError as error:
            raise PredictionError(str(error)) from error
        return [*found, TrainedBottom(party, bottom, wide)]

    def predictor(self, own: OwnParts, *, local_head: bool = False) -> Predictor:
        """Return what the label party predicts with: the private head, or the local one."""
        job = self.run.job()
        if local_head and self.run.lacks_local_head(job):
            raise PredictionError(
                f"{self.run.path}: the local head is not trained yet: `tpsl label evaluate {self.run.path}` does it"
            )
        if local_head and self.run.local_head() is None:
            raise PredictionError(f"{self.run.path}: the run has no local head; it needs training.head: local")
        reads = {party: job.head_width(party) for party in job.data.feature_parties}
        if has_features(self.run, LABEL_PARTY):
            reads[LABEL_PARTY] = job.model.cut_width(LABEL_PARTY)
        sent = reads if _sends_frozen(job) else None
        top = self._private_head(own, sent) if job.trains or not (local_head or job.releases) else None
        found = top if job.statistic is None else self._of_statistic(top, reads)
        if found is not None and not local_head:
            return found
        path = self.run.label / NOT_PRIVATE / _LOCAL_HEAD
        try:
            head = LocalHead.of(read_weights(path, PredictionError))
        except (KeyError, RuntimeError) as error:
            raise PredictionError(f"{path}: holds no local head ({error})") from error
        return LocalPredictor(head, top, found.widths if isinstance(found, StatisticPredictor) else reads, reads)

    def _private_head(self, own: OwnParts, sent: Mapping[str, int] | None) -> PrivateHead:
        job, folder = self.run.job(), self.folder(LABEL_PARTY)
        if not job.trains:
            raise PredictionError(
                f"{self.run.path}: was trained with privacy.gradients 'none': only its local head has learned"
            )
        classes = len(job.data.class_names)
        shares = [*job.data.feature_parties, *([LABEL_PARTY] if (folder / _BOTTOM).exists() else [])]
        top = build_top(job, shares, classes, own)
        load_weights(top, folder / _TOP, PredictionError)
        cuts = {party: job.model.cut_width(party) for party in shares}
        return PrivateHead(top, job.training.build_loss(classes), cuts, sent)

    def _of_statistic(self, top: PrivateHead | None, reads: Mapping[str, int]) -> StatisticPredictor:
        """Return the statistic's head of a finished run; `reads` are the widths of shares without codes."""
        _require_finished(self.run, LABEL_PARTY)
        path = self.run.label / STATISTIC_HEAD
        tensors = read_weights(path, PredictionError)
        try:
            *of_parties, own = tensors.pop(CODE_COLUMNS).tolist()
            head = StatisticHead.of(tensors)
        except (KeyError, RuntimeError, ValueError) as error:
            raise PredictionError(f"{path}: holds no head of a statistic ({error})") from error
        codes = dict(zip((party for party in reads if party != LABEL_PARTY), of_parties, strict=True))
        widths = {party: width + codes.get(party, own) for party, width in reads.items()}
        return StatisticPredictor(head, top, widths, own)

    def folder(self, party: str) -> Path:
        """Return where a party's weights are; a run that keeps its epochs need not be finished."""
        if self.epoch is not None:
            return epoch_folder(self.run.party(party), self.epoch)
        _require_finished(self.run, party)
        return self.run.party(party)


@dataclass(frozen=True)
class TrainedModel:
    """What a run has learned, or several that predict together; `path` is the folder that errors name.

    A folder need hold no other half than the one that is asked for.
    """

    path: Path
    members: tuple[Member, ...]
    own: Mapping[str, OwnParts] = field(default_factory=dict)
    """By party, the parts of its own that were Python objects; factories are noted in the run."""

    @classmethod
    def open(cls, path: Path, own: Mapping[str, OwnParts] | None = None) -> TrainedModel:
        """Return the model of the folder of a run or of a search."""
        members = _members(path) if (path / TUNE).exists() else (Member(RunFolder(path)),)
        return cls(path, members, own or {})

    # ---- what there is

    @property
    def is_ensemble(self) -> bool:
        """Whether this is the ensemble of a search."""
        return self.members[0].epoch is not None

    @property
    def run(self) -> RunFolder:
        """A run whose data, encoders and release are those of all members."""
        return self.members[0].run

    def runs(self) -> list[RunFolder]:
        """Return the runs of all members, each once."""
        return list({member.run.path: member.run for member in self.members}.values())

    def own_parts(self, party: str) -> OwnParts:
        """Return what a party has brought itself."""
        return self.own.get(party) or self.run.own_parts(party)

    def version(self, party: str) -> str:
        """Return the version of a feature party's half: halves of different models differ in it."""
        if not self.is_ensemble:
            return self.run.version(party)
        return _joint_version(member.run.version(party, member.epoch) for member in self.members)

    def versions(self) -> dict[str, str]:
        """Return the versions of the feature parties' halves that the label party's half was trained with."""
        if not self.is_ensemble:
            return self.run.versions()
        found = [member.run.versions(member.epoch) for member in self.members]
        return {party: _joint_version(each[party] for each in found) for party in found[0]}

    def card(self, party: str = LABEL_PARTY, head: Head = "private") -> Card:
        """Return what a party knows of its half: what it is, and what was promised about the labels behind it."""
        return facts(self, party, head)

    def inputs_like_those_of_training(self, party: str) -> Features | Inputs:
        """Return what a party's bottom half reads: of a table no record, of a source of the party's own its records."""
        make_source = self.own_parts(party).source(party)
        if make_source is not None:
            return source_inputs(party, make_source)
        encoder = self.run.encoder(party)
        shapes = (0, len(encoder.categories)), (0, len(encoder.numeric_fields))
        return encoder.features(np.empty(shapes[0], np.int32), np.empty(shapes[1], np.float32))

    # ---- what predicts

    def embedder(self, party: str, inputs: Features | Inputs | None = None) -> Embedder:
        """Return what makes a party's share.

        Its dimensions are those of the saved encoder, or of the source of the party's own that it trained with; those
        of `inputs` if they are given, whose values are not looked at.
        """
        for member in self.members:
            member.folder(party)  # raises where it has none, or is not finished
        own, read = self.own_parts(party), self.inputs_like_those_of_training(party) if inputs is None else inputs
        parts = [part for member in self.members for part in member.parts(party, own, read)]
        return Embedder(parts).eval().requires_grad_(False)

    def predictor(self, *, local_head: bool = False) -> Predictor:
        """Return what the label party predicts with, from its folder: the private head, or the local one."""
        own = self.own_parts(LABEL_PARTY)
        if not self.is_ensemble:
            found = self.members[0].predictor(own, local_head=local_head)
        elif local_head:
            raise PredictionError(f"{self.path}: is the folder of a search, whose ensemble has no local head")
        else:
            found = Ensemble((self._weight(member), member.predictor(own)) for member in self.members)
        return found.eval().requires_grad_(False)

    def halves(
        self, inputs: Mapping[str, Features | Inputs] | None = None, *, local_head: bool = False
    ) -> TrainedHalves:
        """Return all halves, from a folder that holds those of all parties; `inputs` are as in `embedder`."""
        top = self.predictor(local_head=local_head)
        if inputs is not None:
            for party in top.widths.keys() - inputs.keys():
                raise PredictionError(f"{self.path}: was trained with {described(party)}, whose features are missing")
            if LABEL_PARTY in inputs.keys() - top.widths.keys():
                raise PredictionError(f"{self.path}: the label party has no features of its own in this run")
        bottoms = {party: self.embedder(party, inputs[party] if inputs else None) for party in top.widths}
        return TrainedHalves(bottoms, top, len(self.members))

    def _weight(self, member: Member) -> float:
        if member.weight is None:
            raise PredictionError(f"{self.path / TUNE}: has no weights; only the label party's half has some")
        return member.weight

    # ---- predicting and exporting

    def predict(self, records: Source | Mapping[str, Source], *, head: Head = "private") -> Probabilities:
        """Return the probabilities of new records in the order of the first table: of class 1, or of each of k.

        `records` are those of the only party that has features, or of each by its name; parties' records are joined by
        id. The folder must hold every party's half. Scores of a local head are NOT PRIVATE.
        """
        halves = self.halves(local_head=head == "local")
        given = records if isinstance(records, Mapping) else {self._only(halves.parties): records}
        found = {party: read_records(self.run, party, source) for party, source in given.items()}
        scores = predict_records(halves, found, self.run.job().data.class_names)
        return scores.array(next(iter(found.values())))

    def predict_rows(self, data: Dataset, rows: Rows | None = None) -> Probabilities:
        """Return the probabilities of these rows of a data set (all, if None), in their order; no label is read."""
        own = {} if data.label_features is None else {LABEL_PARTY: data.label_features}
        inputs = {**data.feature_parties, **own}
        return self.halves(inputs).probabilities(inputs, rows)

    def embed(self, records: Source, party: str | None = None) -> npt.NDArray[np.float32]:
        """Return what a party hands over of new records, in the order of its table: float32 `[n, width]`."""
        party = self._only(self.run.job().data.feature_parties) if party is None else party
        embedder, found = self.embedder(party), read_records(self.run, party, records)
        assert found.inputs is not None  # what has an embedder has features
        shares = [embedder.embed(found.inputs, rows).numpy() for rows in found.parts(len(self.members))]
        return np.concatenate(shares)[found.in_file_order()]

    def export(self, out: str | os.PathLike[str], party: str, *, head: Head = "private") -> Exported:
        """Write a party's half into a new folder, to be used without tpsl: see `tpsl.model.exporting`."""
        return export_half(self, party, Path(out), head)

    def _only(self, parties: Iterable[str]) -> str:
        """Return the only one of these parties."""
        party, *others = parties
        if others:
            raise PredictionError(
                f"{self.path}: the records of {', '.join([party, *others])} are told apart by the name of the party"
            )
        return party


def load(path: str | os.PathLike[str], own: Mapping[str, OwnParts] | None = None) -> TrainedModel:
    """Return the trained model of the folder of a run or of a search; anything else is a `ValueError` that says why.

    `own` is needed for parties that gave Python objects: a run notes only what it can make again.
    """
    model = TrainedModel.open(Path(path), own)
    model.run.job()
    return model


def _sends_frozen(job: Job) -> bool:
    """Whether feature parties send their frozen pre-trained embeddings too, which a top half does not read."""
    return job.sends_frozen and (job.training.head == "local" or job.statistic is not None)


def _require_finished(run: RunFolder, party: str) -> None:
    """Raise if a party's part of a run is not in its folder, or not finished."""
    if not run.party(party).is_dir():
        raise PredictionError(
            f"{run.path}: the part of {party!r} is not here, so it cannot predict alone; `tpsl predict` with "
            "--listen or --connect does it together with the other parties"
        )
    if (run.result() if party == LABEL_PARTY else run.party_result(party)) is None:
        raise PredictionError(f"{run.path}: the part of {party!r} in the run is not finished, so it cannot predict")


def _joint_version(versions: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(["tpsl ensemble", *versions]).encode()).hexdigest()


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
