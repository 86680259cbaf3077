"""What a service computes with: one party's trained half and its encoder, of the newest model and the one before it.

Two models, so that two parties need not switch at the same moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from tpsl.data.encoder import EncoderState
from tpsl.model.predictors import Embedder, PredictionError, Predictor
from tpsl.model.trained import TrainedModel
from tpsl.net.messages import LABEL_PARTY
from tpsl.progress import Notice
from tpsl.run.job_sections import PredictionConfig, Returns
from tpsl.serving.batching import Array, Arrays
from tpsl.serving.refusals import Reason, Refusal, ServiceMetrics
from tpsl.tables import DataError

Records = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class TableHalf:
    """A party's bottom half and the encoder of its table: records → its share of the cut."""

    name: str
    """The version that the label party knows the half by; of its own half nothing."""
    embedder: Embedder
    state: EncoderState

    @classmethod
    def open(cls, path: Path, party: str) -> TableHalf:
        """Read a feature party's half of a finished run, or of an ensemble."""
        model = TrainedModel.open(path)
        return cls.load(model, party, model.version(party))

    @classmethod
    def load(cls, model: TrainedModel, party: str, name: str = "") -> TableHalf:
        """Read a party's half."""
        if model.run.own_parts(party).inputs is not None:
            raise PredictionError(
                f"{model.path}: {party!r} has inputs of its own; a service takes records of tables only"
            )
        state = model.run.encoder(party)
        return cls(name, model.embedder(party), state)

    def record_schema(self) -> dict[str, Any]:
        """Return the JSON schema of a record: whether a text is a number or a date, the encoder says."""
        value = {"type": ["string", "number", "boolean", "null"]}
        return {
            "type": "object",
            "required": list(self.state.columns),
            "properties": {name: {**value, "description": kind} for name, kind in self.state.columns.items()},
        }

    def encode(self, records: Records) -> Arrays:
        """Return categories and numbers of records; a record that cannot be encoded is refused."""
        try:
            features = self.state.encode_records(records)
        except DataError as error:
            raise Refusal(Reason.MALFORMED, str(error)) from None
        return features.categorical, features.numeric

    def compute(self, arrays: Arrays) -> Array:
        """Return the shares of encoded records, float32 `[n, width]`."""
        categorical, numeric = arrays
        return self.embedder.embed(self.state.features(categorical, numeric)).numpy()


@dataclass(frozen=True)
class LabelModel:
    """The label party's half: what feature parties send, and own features if it has some → scores."""

    versions: Mapping[str, str]
    """The version of each feature party's half that this one was trained with."""
    predictor: Predictor
    own: TableHalf | None
    """The label party's own bottom half, if it has features."""
    prediction: PredictionConfig
    """What the job lets feature parties know of scores."""

    @classmethod
    def load(cls, path: Path, *, local_head: bool, most_returned: Returns | None) -> LabelModel:
        """Read the label party's half of a finished run, or of an ensemble.

        No more than `most_returned` is for feature parties. Scores of a local head are for the label party alone: where
        feature parties get any, it is refused.
        """
        model = TrainedModel.open(path)
        prediction = model.run.job().prediction.at_most(most_returned)
        if local_head and prediction.returns != "nothing":
            raise PredictionError(
                f"{path}: scores of a local head never leave the label party, and this job returns {prediction} to "
                "feature parties: forbid that with --set local.returns=nothing, or serve the private head"
            )
        predictor = model.predictor(local_head=local_head)
        own = TableHalf.load(model, LABEL_PARTY) if LABEL_PARTY in predictor.widths else None
        return cls(model.versions(), predictor, own, prediction)

    @property
    def name(self) -> str:
        """The versions of all feature parties' halves."""
        return "+".join(self.versions.values())

    def compute(self, arrays: Arrays) -> Array:
        """Return the scores of records: arrays are the feature parties' shares, then own categories and numbers."""
        shares = {party: torch.from_numpy(share) for party, share in zip(self.versions, arrays, strict=False)}
        if self.own is not None:
            shares[LABEL_PARTY] = torch.from_numpy(self.own.compute(arrays[len(self.versions) :]))
        return self.predictor.probabilities(shares)


Model = TypeVar("Model", bound=TableHalf | LabelModel)
_HELD = 2


class Versions(Generic[Model]):
    """The models of a run folder, which is read at the start and whenever `reload` is called.

    The folder may be a link that is moved from run to run. Only the command line says which folder is read.
    """

    def __init__(self, run: Path, load: Callable[[Path], Model], metrics: ServiceMetrics, notice: Notice) -> None:
        self._run, self._load, self._metrics, self._notice = run, load, metrics, notice
        self._loading = asyncio.Lock()
        self.held: tuple[Model, ...] = ()
        self._hold(self._load_now())

    @property
    def newest(self) -> Model:
        """The model that was read last."""
        return self.held[0]

    async def reload(self) -> bool:
        """Read the run folder again while requests are answered; return whether it holds another model than before.

        A folder that cannot be used is an error, and all stays as it was.
        """
        async with self._loading:
            return self._hold(await asyncio.to_thread(self._load_now))

    async def reload_and_tell(self) -> None:
        """Read the run folder again, and say in a notice what came of it."""
        try:
            changed = await self.reload()
        except (ValueError, OSError) as error:
            self._notice(f"the model stays as it was: {error}")
        else:
            self._notice(f"{'now' if changed else 'still'} serving the model {self.newest.name[:16]}")

    def _load_now(self) -> Model:
        return self._load(self._run.resolve())  # all files of one run, even if the link moves meanwhile

    def _hold(self, model: Model) -> bool:
        if self.held and model.name == self.newest.name:
            return False
        self.held = (model, *(held for held in self.held if held.name != model.name))[:_HELD]
        self._metrics.hold_models(held.name for held in self.held)
        return True
