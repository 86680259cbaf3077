"""Joint prediction: feature parties send embeddings of new records, the label party scores them.

A feature party asks for part after part of the records (`Predict`), with its embeddings; where the job allows it the
answer is their scores. If any party is restarted all begin again with the first part. Numbers cross in float32,
whatever the job trains with.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from tpsl.data.config import TableData
from tpsl.data.out_of_core import RowStack
from tpsl.model.predictors import Embedder, LocalPredictor, PredictionError, Predictor, Probabilities
from tpsl.model.records import NewRecords, Scores, has_features, numbered_records, place_of_scores
from tpsl.model.trained import TrainedModel
from tpsl.net.agreement import RECORD_IDS, Agreement
from tpsl.net.asking import NOTHING, Answers, Due, Label, Script
from tpsl.net.client import LabelClient
from tpsl.net.connection import Patience, Terms
from tpsl.net.desk import Desk
from tpsl.net.failures import BadMessage, JobStopped, NetError, PeerRestarted
from tpsl.net.messages import LABEL_PARTY, Limits, Message, described
from tpsl.net.rounding import checked_tensor
from tpsl.net.server import LabelServer
from tpsl.run.job import Job
from tpsl.run.job_agreement import PROTOCOL, ids_digest
from tpsl.run.job_sections import PredictionConfig
from tpsl.run.local import Local, certificates_of, connect_address, listen_address
from tpsl.run.observer import Watching
from tpsl.run.run_folder import RunFolder
from tpsl.run.schedule import in_parts, rows_at_once
from tpsl.vault import Vault

PREDICT, FINISH = METHODS = ("Predict", "Finish")

MOST_NUMBERED = 10_000_000
"""The most records that a label party takes which has no list of them: memory is taken when they are announced."""
_AHEAD = 2
"""Parts whose scores may be awaited while the next part is computed."""

_IDS_AT_ONCE = 1 << 16
_NO_LIST = b"tpsl: the label party has no list of these records"
_KNOWN_BY, _RETURNED, _VERSION = "records known by", "returned", "version of the half"
_ADVICE = {
    _KNOWN_BY: "a label party without --records needs a feature party with --numbered",
    _RETURNED: "either side can make it less with `local.returns`",
    _VERSION: "these halves are of different runs",
    RECORD_IDS: "give both sides the same records, or align them",
}


@dataclass(frozen=True)
class PredictionSetup:
    """What a process knows of a joint prediction before it meets the others."""

    model: TrainedModel
    local: Local
    watching: Watching
    insecure_loopback: bool = False

    @property
    def run(self) -> RunFolder:
        """The run that the model was trained in, or one of several."""
        return self.model.run

    @cached_property
    def job(self) -> Job:
        """The job that the run was trained under."""
        return self.run.job()

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes of the label."""
        return self.job.data.class_names

    @property
    def returned(self) -> PredictionConfig:
        """What feature parties get back: what the job allows, and no more than this side does."""
        return self.job.prediction.at_most(self.local.returns)

    def terms(self, widest_share: int) -> Terms:
        """Return the messages that are accepted: a part of the records, as wide as the widest share or all classes."""
        limits = Limits(rows_at_once(len(self.model.members)), max(widest_share, len(self.class_names)))
        patience = Patience(self.local.silence, self.local.wait)
        return Terms(limits, "float32", patience, self.watching.connections)

    def agreement(
        self, records: NewRecords | None, own: Mapping[str, str], by_party: Mapping[str, Mapping[str, str]]
    ) -> Agreement:
        """Return what must be equal at both ends; None: the label party has no list of the records."""
        fields = {
            "protocol version": str(PROTOCOL),
            "purpose": "prediction",
            "digest of the job": self.job.digest(),
            _RETURNED: str(self.returned),
            _KNOWN_BY: "id" if records is not None else "number",
            **({"number of records": str(len(records))} if records is not None else {}),
            **own,
        }
        ids = _NO_LIST if records is None else ids_digest(records.common_ids)
        return Agreement(fields, ids, _ADVICE, by_party)


class Collected:
    """What the label party makes of the shares of all parties, part by part.

    The private head scores at once. The local head has learned from true labels: what it reads is kept until no peer
    can see how long its scores take.
    """

    def __init__(self, predictor: Predictor, class_names: tuple[str, ...]) -> None:
        self._predictor, self._class_names = predictor, class_names
        self._scores = Scores(class_names)
        self._inputs: RowStack | None = None

    def add(self, shares: Mapping[str, Tensor]) -> Probabilities | None:
        """Take in the next part; return its scores if they may leave."""
        if isinstance(self._predictor, LocalPredictor):
            inputs = self._predictor.inputs(*(shares[party] for party in self._predictor.widths)).numpy()
            if self._inputs is None:
                self._inputs = RowStack(np.float32, inputs.shape[1])
            self._inputs.add(inputs)
            return None
        found = self._predictor.probabilities(shares)
        if not np.isfinite(found).all():
            raise PredictionError("the network predicts numbers that are not finite")
        self._scores.add(found)
        return found

    def scores(self) -> Scores:
        """Return the scores of all parts; those of the local head are computed now."""
        if isinstance(self._predictor, LocalPredictor) and self._inputs is not None:
            inputs, self._scores = self._inputs.finish(), Scores(self._class_names)
            for rows in in_parts(np.arange(len(inputs), dtype=np.int64)):
                self._scores.add(self._predictor.head.predict(inputs[rows]))
        return self._scores


class PredictingLabelParty:
    """The label party: what it predicts with, its list of the records (None: it has none), and what it returns.

    `own` makes its own share, if it has features. `keep` is called with what was collected before the feature parties
    are told that all is done.
    """

    def __init__(
        self,
        predictor: Predictor,
        own: Embedder | None,
        records: NewRecords | None,
        returned: PredictionConfig,
        keep: Callable[[Collected, NewRecords], None],
        watching: Watching,
        *,
        class_names: tuple[str, ...],
        networks: int = 1,
    ) -> None:
        self._predictor, self._own, self._records, self._returned = predictor, own, records, returned
        self._keep, self._watching, self._class_names, self._networks = keep, watching, class_names, networks

    def begin(self, said: Answers) -> tuple[Answers, Script]:
        """Begin with the first part; return what the feature parties are answered, and the script."""
        records = self._records if self._records is not None else numbered_records(_announced(said))
        self.found, self.collected = records, Collected(self._predictor, self._class_names)
        return dict.fromkeys(said, NOTHING), self._script(records, self.collected)

    def _script(self, records: NewRecords, collected: Collected) -> Script:
        done, widths = 0, self._predictor.widths
        for part, rows in enumerate(records.parts(self._networks)):
            question = yield Due(PREDICT, 0, part, rows=len(rows), widths=widths)
            shares = {name: said.tensor for name, said in question.asked.items() if said.tensor is not None}
            if self._own is not None and records.inputs is not None:
                shares[LABEL_PARTY] = self._own.embed(records.inputs, rows)
            found, answer = collected.add(shares), NOTHING
            if found is not None and self._returned.returns != "nothing":
                answer = Message(tensor=torch.from_numpy(self._returned.returned(found)).reshape(len(found), -1))
            question.answer_all(answer)
            done += len(rows)
            self._watching.progress(done, len(records), "predicting")
        question = yield Due(FINISH)
        self._keep(collected, records)
        question.answer_all()

    def attend(self, desk: Desk) -> None:
        """Predict with all feature parties, through restarts."""
        while True:
            answers, script = self.begin(desk.gather())
            self._watching.observer.gathered(desk.start(answers))
            try:
                desk.answer_all(script)
                return
            except PeerRestarted as restarted:
                self._watching.notice(f"{restarted.peer} was restarted: beginning again")


def _announced(said: Answers) -> int:
    """Return how many records the only feature party has, where the label party has no list of them."""
    ((name, message),) = said.items()
    if len(message.numbers) != 1 or not 0 < message.numbers[0] <= MOST_NUMBERED:
        raise BadMessage(
            f"{described(name)} announces {message.numbers} records; from 1 to {MOST_NUMBERED:,} are taken"
        )
    return message.numbers[0]


class PredictingFeatureParty:
    """A feature party: what makes its share, its records, what comes back, and how many networks predict."""

    def __init__(
        self,
        party: str,
        embedder: Embedder,
        records: NewRecords,
        returned: PredictionConfig,
        class_names: tuple[str, ...],
        watching: Watching,
        *,
        networks: int = 1,
    ) -> None:
        self._party, self._embedder, self._records, self._networks = party, embedder, records, networks
        self._returned, self._class_names, self._watching = returned, class_names, watching

    def attend(self, label: Label, announced: tuple[int, ...] = ()) -> Scores:
        """Have all records scored, through restarts; return the scores that came back."""
        while True:
            try:
                label.agree({self._party: Message(numbers=announced)})
                return self._predict(label)
            except PeerRestarted as restarted:
                self._watching.notice(f"{restarted.peer} was restarted: beginning again")

    def _predict(self, label: Label) -> Scores:
        scores, done = Scores(self._class_names), 0
        awaited = deque[tuple[int, Callable[[], Answers]]]()

        def take() -> None:
            nonlocal done
            rows, answers = awaited.popleft()
            self._take(answers()[self._party], rows, scores)
            done += rows
            self._watching.progress(done, len(self._records), "predicting")

        inputs = self._records.inputs
        assert inputs is not None  # a feature party has features
        for part, rows in enumerate(self._records.parts(self._networks)):
            share = Message(tensor=self._embedder.embed(inputs, rows))
            awaited.append((len(rows), label.ask_ahead(PREDICT, 0, part, {self._party: share})))
            if len(awaited) > _AHEAD:
                take()
        while awaited:
            take()
        label.ask(FINISH, 0, 0, {self._party: NOTHING})
        return scores

    def _take(self, answer: Message, rows: int, scores: Scores) -> None:
        """Take the scores of a part, if scores come back."""
        if self._returned.returns == "nothing":
            if answer.tensor is not None:
                raise BadMessage("the label party sent scores, and none are returned")
            return
        found = checked_tensor(answer, "the scores from the label party", rows, len(scores.columns))
        if not bool(((found >= 0) & (found <= 1)).all()):
            raise BadMessage("the label party sent scores that do not lie between 0 and 1")
        scores.add(found.numpy())


def predict_as_label(
    setup: PredictionSetup, records: NewRecords | None, out: Path, *, local_head: bool = False
) -> tuple[Path, NewRecords]:
    """Be the label party of a prediction: write the scores of all records, and return where, and of which records.

    Guarantee: what leaves are, where the job and the local file allow it, scores of the private head, which are
    post-processing of the vault's release. Scores of the local head never leave, nor does the time that they take: they
    are computed when every connection has ended. `records` may be None if there is one feature party and the label
    party has no features: then records get numbers, in the order in which they come.
    """
    place = place_of_scores(out, local_head=local_head)
    _require_what_may_be(setup, records, local_head)
    certificates = None if setup.insecure_loopback else certificates_of(setup.local, LABEL_PARTY)
    address = listen_address(setup.local)
    predictor = setup.model.predictor(local_head=local_head)
    own = setup.model.embedder(LABEL_PARTY) if LABEL_PARTY in predictor.widths else None

    def keep(collected: Collected, found: NewRecords) -> None:
        if not local_head:
            collected.scores().write(place, found)

    party = PredictingLabelParty(
        predictor,
        own,
        records,
        setup.returned,
        keep,
        setup.watching,
        class_names=setup.class_names,
        networks=len(setup.model.members),
    )
    versions = {name: {_VERSION: version} for name, version in setup.model.versions().items()}
    agreed, names = setup.agreement(records, {}, versions), setup.job.data.feature_parties
    desk = Desk(names, agreed, setup.terms(max(predictor.widths[name] for name in names)))
    desk.waiting_for = setup.watching.observer.waiting_for
    with LabelServer(address, desk, METHODS, certificates=certificates) as server:
        setup.watching.notice(f"listening at {address.rpartition(':')[0]}:{server.port}")
        try:
            party.attend(desk)
        except NetError as error:
            server.stop(error)
            raise
        except Exception:
            server.stop(JobStopped("the label party has an error that is not the feature parties'"))
            raise
    if local_head:
        party.collected.scores().write(place, party.found)
    return place, party.found


def predict_as_feature(
    setup: PredictionSetup, party: str, records: NewRecords, out: Path | None, *, numbered: bool = False
) -> Path | None:
    """Be a feature party of a prediction; return where the scores are that came back, None if none do.

    What leaves are embeddings of these records. With `numbered` the label party has no list of them, and takes them in
    the order of this party's file.
    """
    returned = setup.returned
    if returned.returns != "nothing" and out is None:
        raise PredictionError(f"the label party returns {returned}: name a file for them with --out")
    certificates = None if setup.insecure_loopback else certificates_of(setup.local, party)
    address = connect_address(setup.local)
    records = records.numbered() if numbered else records
    embedder, networks = setup.model.embedder(party), len(setup.model.members)
    role = PredictingFeatureParty(
        party, embedder, records, returned, setup.class_names, setup.watching, networks=networks
    )
    agreed = setup.agreement(None if numbered else records, {_VERSION: setup.model.version(party)}, {})
    terms = setup.terms(embedder.width)
    with LabelClient(address, party, agreed, terms, certificates=certificates) as client:
        setup.watching.observer.gathered({LABEL_PARTY: client.traffic})
        try:
            scores = role.attend(client, (len(records),) if numbered else ())
        except NetError as error:
            client.stop(error)
            raise
        except Exception:
            client.stop(f"{party} has an error that is not the label party's")
            raise
    if out is None or returned.returns == "nothing":
        return None
    scores.write(out, records)
    return out


def _require_what_may_be(setup: PredictionSetup, records: NewRecords | None, local_head: bool) -> None:
    """Raise where scores would be returned that may not be, or records lack; warn of what nobody can check."""
    returned, several = setup.returned, len(setup.job.data.feature_parties) > 1
    if local_head and returned.returns != "nothing":
        raise PredictionError(
            f"the local head was trained on true labels, so its scores stay here, and this job returns: {returned}; "
            "say --set local.returns=nothing on both sides, or use the private head"
        )
    if records is None and (several or has_features(setup.run, LABEL_PARTY)):
        raise PredictionError("the label party needs --records: a file with the ids of the records, and its features")
    if returned.returns != "nothing":
        setup.run.refuse_scratch()
        _warn_of_training_records(setup, records)


def _warn_of_training_records(setup: PredictionSetup, records: NewRecords | None) -> None:
    """Say how many of the records whose scores are returned were trained on, or why nobody can tell."""
    data, vault, notice = setup.job.data, setup.run.vault(), setup.watching.notice
    unknown = "feature parties get scores back, and nobody can tell whether of records that were trained on"
    if records is None:
        notice(f"{unknown}: there is no list of them")
    elif isinstance(data, TableData) and data.makes_new_records:
        notice(f"{unknown}: each alignment gives them new ids")
    elif not Vault.exists(vault):
        notice(f"{unknown}: there is no vault at {vault}")
    elif trained := _known(vault, records):
        notice(
            f"warning: {trained:,} of these records were trained on; what is returned of them is covered by ε, "
            "but says more of their noisy labels than scores of other records do"
        )


def _known(vault: Path, records: NewRecords) -> int:
    """Return how many of the records are in the vault, so that their labels were, or may be, released."""
    with Vault.open(vault) as opened:
        return sum(
            int((opened.knows(records.ids_at(part)) | opened.knows(records.common_ids.take(pa.array(part)))).sum())
            for part in np.array_split(np.arange(len(records)), -(-len(records) // _IDS_AT_ONCE))
        )
