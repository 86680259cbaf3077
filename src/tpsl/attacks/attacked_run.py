"""One recorded run as its attackers see it: everything but the labels that they are after.

What an attacker has beyond the transcript is built when an attack asks for it: the label party's weights (`white_box`,
`reader`, `read`), the features, the trained bottom halves, the labels of a few records. With several feature parties
the attacker is all of them together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.torch import load_file

from tpsl.attacks.as_features import as_features
from tpsl.attacks.evidence import NoisyLabelReader
from tpsl.attacks.known_labels import KnownLabels
from tpsl.attacks.known_others import KnownOthers
from tpsl.attacks.transcript_walk import AttackError, joint_steps
from tpsl.attacks.white_box import WhiteBox
from tpsl.attacks.with_features import ReadTranscript, read_transcript
from tpsl.data.dataset import load_feature_party, load_label_party
from tpsl.data.features import Features, Inputs
from tpsl.data.sides import LabelRecords
from tpsl.heads.wide_part import with_scores
from tpsl.net.messages import LABEL_PARTY
from tpsl.run.build import build_feature_party
from tpsl.run.run_folder import RunFolder
from tpsl.run.stages.prepare import load_wide
from tpsl.run.transcript import Trajectory, Transcript, TranscriptStep
from tpsl.run.warm_start import StartingPoint
from tpsl.split.feature_party import FeatureParty

Rows = npt.NDArray[np.int64]


def require_parts_of_all(run: RunFolder) -> None:
    """Raise if a party has its part of a run elsewhere: the label party scores guesses on what the others recorded."""
    job = run.job()
    if not run.label.is_dir():
        raise AttackError(
            f"{run.path}: guesses are scored with true labels, so the label party attacks, in its own run"
        )
    for party in job.data.feature_parties if job.trains else ():
        if not run.party(party).is_dir():
            raise AttackError(
                f"{run.path}: what feature party {party!r} has recorded is in its own run; with its consent, copy its "
                f"folder {party!r} to {run.party(party)}"
            )


class AttackedRun:
    """What the attackers of one run have; `table_rows` is how many rows the table has, in or out of the transcript."""

    def __init__(
        self,
        run: RunFolder,
        classes: int,
        table_rows: int,
        draw_known: Callable[[Rows], KnownLabels],
        know_others: Callable[[AttackedRun], KnownOthers],
        inputs: Mapping[str, Features | Inputs] | None = None,
    ) -> None:
        self._run, self._draw_known, self._inputs, self.table_rows = run, draw_known, inputs, table_rows
        self._know_others = know_others
        self.job = run.job()
        self.mechanism = self.job.privacy.build(classes)
        self.parties = self.job.data.feature_parties
        sent = self.parties if self.job.trains else ()  # gradients
        self._transcripts = [Transcript(run.party(name) / "transcript") for name in sent]
        self.step_count = len(self._transcripts[0]) if self._transcripts else 0
        self.records = self._transcripts[0].records if self._transcripts else 0
        self.finished = run.result() is not None

    @property
    def classes(self) -> int:
        """The number of classes."""
        return self.mechanism.classes

    def steps(self) -> Iterator[TranscriptStep]:
        """Return what the feature parties together saw, step by step: rows, embeddings, gradients."""
        return joint_steps(self._transcripts)

    @cached_property
    def rows(self) -> Rows:
        """The rows of the table that are in the transcript, ascending."""
        rows = np.unique(np.concatenate([seen.rows for seen in self._transcripts[0]]))
        if rows[-1] >= self.table_rows:
            raise AttackError(f"the transcript has row {rows[-1]}, but there are {self.table_rows} labels")
        return rows

    @cached_property
    def known(self) -> KnownLabels:
        """The labels that some attackers know; these records are not scored then, for any attack."""
        return self._draw_known(self.rows)

    @property
    def known_labels(self) -> KnownLabels | None:
        """The labels that an attack has asked for, if any has."""
        found: KnownLabels | None = vars(self).get("known")
        return found

    @cached_property
    def known_others(self) -> KnownOthers:
        """The attacker on the statistic, who knows all labels but the one it is after."""
        return self._know_others(self)

    @cached_property
    def inputs(self) -> Mapping[str, Features | Inputs]:
        """What each feature party's half reads, loaded as the run did; a DataError where it is not here."""
        if self._inputs is not None:
            return self._inputs
        sides = (load_feature_party(self.job.data, name, **self._as_the_run_did(name)) for name in self.parties)
        return {side.party: side.features for side in sides}

    @cached_property
    def label_records(self) -> LabelRecords:
        """The label party's records without labels, loaded as the run did; a DataError where they are not here."""
        return load_label_party(self.job.data, **self._as_the_run_did(LABEL_PARTY)).records

    def _as_the_run_did(self, party: str) -> dict[str, Any]:
        """Return how the run has loaded a party's side: from its own source, or encoded as an earlier run did."""
        encoders = StartingPoint.of_run(self._run.path).encoders()
        return {"source": self._run.own_parts(party).source(party), "encoder": encoders.get(party)}

    @cached_property
    def features(self) -> Mapping[str, Features]:
        """The inputs of each feature party as a table."""
        return as_features(self.inputs)

    @cached_property
    def white_box(self) -> WhiteBox:
        """The label party's top half, with its weights at each step."""
        own = self._run.own_parts(LABEL_PARTY)
        return WhiteBox(self.job, self.parties, self.classes, Trajectory(self._run.label), own)

    @cached_property
    def reader(self) -> NoisyLabelReader:
        """What reads noisy labels off gradients."""
        return NoisyLabelReader(self.white_box, self.mechanism, self.job.privacy.estimator)

    @cached_property
    def read(self) -> ReadTranscript:
        """What the whole transcript says about each record."""
        return read_transcript(self.steps(), self.rows, self.reader.evidence, self.classes)

    def trained_parties(self) -> dict[str, FeatureParty]:
        """Return the feature parties with their trained bottom halves."""
        parties = {}
        for name, held in self.inputs.items():
            if self.job.model.wide and isinstance(held, Features):
                held = with_scores(held, load_wide(self._run.party(name)).scores(held))
            parties[name] = build_feature_party(self.job, name, held, own=self._run.own_parts(name))
            parties[name].bottom.load_state_dict(load_file(self._run.party(name) / "bottom.safetensors"))
        return parties
