"""One party of a joint prediction as a program of its own: the label party listens, feature parties connect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from tpsl.data.config import TableData
from tpsl.data.dataset import class_names, feature_party_names
from tpsl.prediction.collecting import Collecting, Scoring
from tpsl.prediction.exchange import TOPICS, PredictingFeatureParty, PredictingLabelParty
from tpsl.prediction.halves import PredictionError, has_label_features
from tpsl.prediction.model import TrainedModel
from tpsl.prediction.records import NewRecords
from tpsl.prediction.scores import place_of_scores
from tpsl.training.agreement import PROTOCOL, ids_digest
from tpsl.training.job import Job, PredictionConfig
from tpsl.training.local import Local, certificates_of, connect_address, listen_address
from tpsl.training.observer import Watching
from tpsl.training.run_folder import RunFolder
from tpsl.training.schedule import rows_at_once
from tpsl.transport.channel import JobStopped, PeerMissing, Refused, run_alone
from tpsl.transport.checks import BadMessage
from tpsl.transport.feature_client import FeatureClient
from tpsl.transport.frames import Limits
from tpsl.transport.handshake import RECORD_IDS, Agreement
from tpsl.transport.label_server import LabelServer
from tpsl.transport.link import Patience, Terms
from tpsl.transport.peers import LABEL_PARTY
from tpsl.vault import Vault

_IDS_AT_ONCE = 1 << 16
_NO_LIST = b"tpsl: the label party has no list of these records"
_KNOWN_BY, _RETURNED, _VERSION = "records known by", "returned", "version of the half"
_ADVICE = {
    _KNOWN_BY: "a label party without --records needs a feature party with --numbered",
    _RETURNED: "either side can make it less with --returns",
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
        return class_names(self.job.data)

    @property
    def returned(self) -> PredictionConfig:
        """What feature parties get back: what the job allows, and no more than this side does."""
        return self.job.prediction.at_most(self.local.returns)

    def terms(self, widest_share: int) -> Terms:
        """Return the tensors that are accepted: a part of the records, as wide as the widest share or all classes."""
        limits = Limits(rows_at_once(len(self.model.members)), max(widest_share, len(self.class_names)), TOPICS)
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


def predict_as_label(
    setup: PredictionSetup, records: NewRecords | None, out: Path, *, local_head: bool = False
) -> tuple[Path, NewRecords]:
    """Be the label party of a prediction: write the scores of all records, and return where, and of which records.

    Guarantee: what leaves are requests for parts and, where the job and the local file allow it, scores of the private
    head, which are post-processing of the vault's release. Scores of the local head never leave, nor does the time that
    they take: they are computed when every connection has ended. `records` may be None if there is one feature party
    and the label party has no features: then records get numbers, in the order in which they come.
    """
    place = place_of_scores(out, local_head=local_head)
    _require_what_may_be(setup, records, local_head)
    credentials = None if setup.insecure_loopback else certificates_of(setup.local, LABEL_PARTY).server()
    address = listen_address(setup.local)
    predictor = setup.model.predictor(local_head=local_head)
    own = setup.model.embedder(LABEL_PARTY) if LABEL_PARTY in predictor.widths else None
    scoring = Scoring(predictor, own, setup.class_names, len(setup.model.members))

    def keep(collected: Collecting, found: NewRecords) -> None:
        if scoring.is_private:
            collected.scores().write(place, found)

    party = PredictingLabelParty(scoring, records, setup.returned, keep, setup.watching)
    versions = {name: {_VERSION: version} for name, version in setup.model.versions().items()}
    agreed, names = setup.agreement(records, {}, versions), feature_party_names(setup.job.data)
    terms = setup.terms(max(predictor.widths[name] for name in names))
    with LabelServer(address, names, agreed, terms, credentials=credentials) as server:
        setup.watching.notice(f"listening at {address.rpartition(':')[0]}:{server.port}")
        try:
            collected, found = run_alone(party.attend(server))
        except (PeerMissing, BadMessage, JobStopped) as error:
            server.stop(str(error))
            raise
        except Exception:
            server.stop("the label party has an error of its own")
            raise
    if not scoring.is_private:
        collected.scores().write(place, found)
    return place, found


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
    credentials = None if setup.insecure_loopback else certificates_of(setup.local, party).channel()
    address = connect_address(setup.local)
    records = records.numbered() if numbered else records
    embedder, networks = setup.model.embedder(party), len(setup.model.members)
    role = PredictingFeatureParty(
        embedder, records, returned, setup.class_names, setup.watching, numbered=numbered, networks=networks
    )
    agreed = setup.agreement(None if numbered else records, {_VERSION: setup.model.version(party)}, {})
    terms = setup.terms(embedder.width)
    with FeatureClient(address, party, agreed, terms, credentials=credentials) as client:
        try:
            scores = run_alone(role.attend(client))
        except (PeerMissing, Refused, JobStopped):
            raise
        except Exception as error:
            client.stop(str(error) if isinstance(error, BadMessage) else f"{party} has an error of its own")
            raise
    if out is None or returned.returns == "nothing":
        return None
    scores.write(out, records)
    return out


def _require_what_may_be(setup: PredictionSetup, records: NewRecords | None, local_head: bool) -> None:
    """Raise where scores would be returned that may not be, or records lack; warn of what nobody can check."""
    returned, several = setup.returned, len(feature_party_names(setup.job.data)) > 1
    if local_head and returned.returns != "nothing":
        raise PredictionError(
            f"the local head was trained on true labels, so its scores stay here, and this job returns: {returned}; "
            "say --set local.returns=nothing on both sides, or use the private head"
        )
    if records is None and (several or has_label_features(setup.run)):
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
