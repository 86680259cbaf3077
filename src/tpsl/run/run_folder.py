"""The folder of a run: the job, the metrics, one folder for each party.

    RUN/job.yaml              the agreement
    RUN/result.json           a run that has it is finished; over a network `tpsl label evaluate` adds the test metrics
    RUN/<feature party>/      bottom.safetensors, checkpoints/, result.json, and on request transcript/
    RUN/label/                top.safetensors, checkpoints/, metrics.jsonl, ledger.json (which vault, and what its
                              records have spent), predictions/ (of held-out and test records after each epoch), and on
                              request trajectory.*; an experiment's own vault/
    RUN/label/NOT-PRIVATE/    the local head, trained on true labels: never leaves the label party
    RUN/<any party>/encoder/  what was learned to encode the party's table: vocabularies, means, deviations
    RUN/<any party>/epochs/   on request the weights after each epoch, for an ensemble
    RUN/<any party>/versions.json    which halves belong together: the version of the party's half, at the label party
                              those of the feature parties' halves that its top half was trained with
    RUN/<any party>/records.json     how many records there are, a digest that is the same at every party, and which
                              version of tpsl has trained
    RUN/<any party>/start/    what the run has begun with, if it started from an earlier one: weights, encoder and
                              origin.json, which says from which
    RUN/<any party>/own_parts.json   the factories of what the party brings itself, if anything
    RUN/hand-over/            the exchange in which noisy labels crossed, if the job says so: a run folder of its own,
                              with <feature party>/noisy_labels.safetensors
    RUN/<any party>/progress.json    how far the party is, while it runs
    RUN/<any party>/confirmed.json   the peers that know that this party has finished: it waits for them no more

With two organisations each has a run folder of its own, with the folder of its own party in it and no other.
Everything under RUN/label depends on the label party's data and stays there; where a feature party has trained alone,
it is the top half and what noisy labels say of it.
"""

from __future__ import annotations

import fcntl
import json
import math
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter, ValidationError
from safetensors import safe_open

from tpsl.data.encoder import EncoderState
from tpsl.files import (
    make_private_folder,
    open_durably,
    open_private,
    read_plain,
    remove_drafts,
    replaced,
    require_plain,
    shortened,
    write_atomically,
)
from tpsl.net.messages import LABEL_PARTY
from tpsl.run.job import Job, JobError, load_job
from tpsl.run.observer import PROGRESS
from tpsl.run.own_parts import OwnParts
from tpsl.run.result import EpochMetrics, FeatureResult, LedgerNote, Measured, Origin, RecordsNote, TrainResult
from tpsl.tables.columns import TextsDigest

Content = TypeVar("Content")
_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
"""Gives the parser of a kind of content, which takes a millisecond to make."""

NOT_PRIVATE = "NOT-PRIVATE"
"""The folder in the label party's folder for what was computed from true labels and must never leave it."""
ENCODER, START, ORIGIN = "encoder", "start", "origin.json"
"""How a party's table was encoded; what it has begun with, if it started from an earlier run; and which one."""
_OWN_PARTS, _LEDGER, _METRICS = "own_parts.json", "ledger.json", "metrics.jsonl"
_VERSIONS, _RECORDS, _RESULT, _CONFIRMED = "versions.json", "records.json", "result.json", "confirmed.json"
_MOST_BYTES = 1 << 28  # of a file that is read whole
_BEFORE_THE_JOB = {".lock", ".job.yaml.new"}
"""What a run that was killed before it wrote its job may have left."""
_WARNING = b"""The local head in this folder was trained on true labels. It is not differentially private.
Keep it, its scores and everything computed from it at the label party: do not send, export or serve it.
"""


def epoch_folder(party_folder: Path, epoch: int) -> Path:
    """Return where a party keeps its half as it was after an epoch, in a run that keeps them all."""
    return party_folder / "epochs" / f"{epoch:04d}"


class RunError(ValueError):
    """A run folder that cannot be used; the message names it."""


class RunFolder:
    """One execution of a job."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def party(self, name: str) -> Path:
        """Return the folder of a party."""
        return self.path / name

    @property
    def label(self) -> Path:
        """The label party's folder."""
        return self.party("label")

    @contextmanager
    def started(
        self,
        job: Job,
        parties: Collection[str],
        *,
        moved: bool = False,
        own: Mapping[str, OwnParts] = MappingProxyType({}),
    ) -> Iterator[None]:
        """Hold the folder for this process, with a folder for each of these parties in it.

        A folder of another job, with other own parts, or in use, is refused. `moved` allows that the parties' files lie
        elsewhere now. Drafts that a killed process has left are removed.
        """
        for party in own.keys() - parties:
            raise RunError(f"the parties are {', '.join(parties)}: there is no {party!r} to have parts of its own")
        self._make()
        with open_private(self.path / ".lock", "wb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunError(f"{self.path}: another process is training in this folder") from None
            is_new = not self.job_path.exists()
            if is_new:
                write_atomically(self.job_path, job.to_yaml().encode())
            else:
                held = self.job()
                difference = held.first_disagreement(job) if moved else held.first_difference(job)
                if difference:
                    raise RunError(f"{self.path}: holds a run of another job ({difference}); choose another --out")
            remove_drafts(self.path)
            for party in parties:
                make_private_folder(self.party(party))
                self.party(party).chmod(0o700)
                self._note_own_parts(party, own.get(party, OwnParts()))
            try:
                yield
            except (Exception, KeyboardInterrupt):
                if is_new:
                    self._forget_if_empty(parties)
                raise

    def _forget_if_empty(self, parties: Collection[str]) -> None:
        """Free the folder for another job after an error that came before anything was kept."""
        kept = {entry.name for entry in self.path.iterdir()} - {self.job_path.name, *parties, *_BEFORE_THE_JOB}
        kept |= {entry.name for party in parties for entry in self.party(party).iterdir()} - {_OWN_PARTS, START}
        if not kept:
            for party in parties:
                shutil.rmtree(self.party(party))
            self.job_path.unlink()

    def _make(self) -> None:
        """Make the folder, for its owner only; a folder with other things in it is left as it is."""
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path}: is a file, no folder for a run; choose another --out")
        if self.path.is_dir() and not self.job_path.exists():
            others = sorted({entry.name for entry in self.path.iterdir()} - _BEFORE_THE_JOB)
            if others:
                raise RunError(f"{self.path}: holds no run but other files ({others[0]}); choose another --out")
        make_private_folder(self.path)
        self.path.chmod(0o700)

    @property
    def job_path(self) -> Path:
        """The agreement."""
        return self.path / "job.yaml"

    def job(self) -> Job:
        """Return the job of this run."""
        if not self.job_path.is_file():
            raise RunError(f"{self.path}: is not a run folder, it has no job.yaml")
        try:
            return load_job(self.job_path)
        except JobError as error:
            raise RunError(str(error)) from error

    def own_parts(self, party: str) -> OwnParts:
        """Return the factories of what a party has brought itself to this run."""
        return read_note(self.party(party) / _OWN_PARTS, OwnParts) or OwnParts()

    def save_encoder(self, party: str, encoder: EncoderState) -> None:
        """Keep how a party's table was encoded."""
        encoder.save(self.party(party) / ENCODER)

    def encoder(self, party: str) -> EncoderState:
        """Return how a party's table was encoded, for records that come later."""
        if not (self.party(party) / ENCODER).is_dir():
            raise RunError(f"{self.party(party)}: no encoder was saved: the run is not finished, or has no such table")
        return EncoderState.load(self.party(party) / ENCODER)

    def note_records(self, party: str, ids: Any) -> None:
        """Note which records a run was trained on, and by which version of tpsl."""
        note = RecordsNote(len(ids), _digest(ids), f"tpsl {version('tpsl')}")
        write_note(self.party(party) / _RECORDS, note)

    def program(self, party: str) -> str | None:
        """Return which version of tpsl has trained a party's half; None if the run is not finished."""
        note = read_note(self.party(party) / _RECORDS, RecordsNote)
        return None if note is None else note.program

    def records_digest(self, party: str) -> str:
        """Return the digest of the run's records as this party has noted it."""
        path = self.party(party) / _RECORDS
        note = read_note(path, RecordsNote)
        if note is None:
            raise RunError(f"{path}: is missing: the run is not finished")
        return note.digest

    def require_records(self, party: str, ids: Any) -> None:
        """Raise unless these are the records that a party was trained on, in their order."""
        if _digest(ids) != self.records_digest(party):
            raise RunError(f"{self.path}: was trained on other records than these: the data have changed since")

    def note_versions(self, party: str, versions: Mapping[str, str]) -> None:
        """Note in a party's folder the versions of the feature parties' halves, as far as it knows them."""
        write_note(self.party(party) / _VERSIONS, dict(versions))

    def kept_epochs(self, party: str) -> list[int]:
        """Return the epochs after which a party's half was kept, in a run that keeps them."""
        return sorted(int(folder.name) for folder in epoch_folder(self.party(party), 0).parent.glob("[0-9]*"))

    def keep_versions(self, party: str, epoch: int) -> None:
        """Keep what was noted last as the versions of an epoch whose halves are kept."""
        folder = self.party(party)
        write_atomically(epoch_folder(folder, epoch) / _VERSIONS, (folder / _VERSIONS).read_bytes())

    def version(self, party: str, epoch: int | None = None) -> str:
        """Return the version of a feature party's half in this folder, or of the half of an epoch that was kept."""
        return self.noted_versions(party, [party], epoch)[party]

    def versions(self, epoch: int | None = None) -> dict[str, str]:
        """Return the versions of the feature parties' halves that the label party's half was trained with."""
        return self.noted_versions(LABEL_PARTY, self.job().data.feature_parties, epoch)

    def noted_versions(self, holder: str, parties: Collection[str], epoch: int | None = None) -> dict[str, str]:
        """Return what was noted in a party's folder of the halves of these parties."""
        folder = self.party(holder)
        path = (folder if epoch is None else epoch_folder(folder, epoch)) / _VERSIONS
        noted = read_note(path, dict[str, str])
        if noted is None:
            raise RunError(f"{path}: is missing, so nobody can tell which halves belong together")
        if not noted.keys() >= set(parties):
            raise RunError(f"{path}: is damaged (it does not have {', '.join(sorted(set(parties) - noted.keys()))})")
        return {party: noted[party] for party in parties}

    def all_own_parts(self) -> dict[str, OwnParts]:
        """Return what every party has brought itself to this run, by its name."""
        return {party: self.own_parts(party) for party in (*self.job().data.feature_parties, LABEL_PARTY)}

    def has_begun(self, party: str) -> bool:
        """Whether a party has kept anything that was computed with its parts and from what it began with."""
        return not {entry.name for entry in self.party(party).iterdir()} <= {_OWN_PARTS, _LEDGER, START, PROGRESS}

    def origin(self, party: str) -> Origin | None:
        """Return from which run a party has started, or None if the weights came from the job's seed."""
        return read_note(self.party(party) / START / ORIGIN, Origin)

    def _note_own_parts(self, party: str, parts: OwnParts) -> None:
        """Note a party's own parts; once it has kept anything that was computed with them, they stay the same."""
        folder = self.party(party)
        if not self.has_begun(party):
            (folder / _OWN_PARTS).unlink(missing_ok=True)
            if parts != OwnParts():
                write_note(folder / _OWN_PARTS, parts)
            return
        noted = self.own_parts(party)
        for part in OwnParts.model_fields:
            if getattr(noted, part) != getattr(parts, part):
                raise RunError(f"{self.path}: {party} has begun this run with another {part}; choose another --out")

    def result(self) -> TrainResult | None:
        """Return the result, or None if the run is not finished."""
        return read_note(self.path / _RESULT, TrainResult)

    def finished_result(self) -> TrainResult:
        """Return the result of a finished run."""
        result = self.result()
        if result is None:
            raise RunError(f"{self.path}: the run is not finished")
        return result

    def common_result(self, parties: Collection[str]) -> TrainResult | None:
        """Return the result where one process plays all roles; None until every feature party has noted its own."""
        return self.result() if all(self.party_result(party) is not None for party in parties) else None

    def finish(self, result: TrainResult) -> None:
        """Write the result: from now on the run is finished."""
        write_note(self.path / _RESULT, result)

    def note_ledger(self, note: LedgerNote) -> None:
        """Note which vault the run releases from, and what its records have spent there; for this user's eyes."""
        vault, run = note.vault.resolve(), self.path.resolve()
        inside = vault.is_relative_to(run)
        write_note(self.label / _LEDGER, replace(note, vault=vault.relative_to(run) if inside else vault))

    def noted_ledger(self) -> LedgerNote | None:
        """Return what was noted of the run's vault, or None if nothing was released yet."""
        note = read_note(self.label / _LEDGER, LedgerNote)
        return note and replace(note, vault=self.path / note.vault)

    def vault(self) -> Path:
        """Return where the vault is, or was, that the run has released from: as noted, else in its folder."""
        note = self.noted_ledger()
        return note.vault if note else self.label / "vault"

    @property
    def is_scratch(self) -> bool:
        """Whether the run is for its owner alone: its vault counts in no total, and nothing of it may leave."""
        note = self.noted_ledger()
        return note is not None and note.scratch

    def refuse_scratch(self) -> None:
        """Raise a `RunError` if nothing of this run may leave."""
        if self.is_scratch:
            raise RunError(
                f"{self.path}: is a scratch run, of which nothing may leave; train another one without --scratch, on "
                "data that come with tpsl with --vault FOLDER"
            )

    def not_private(self) -> Path:
        """Return the folder for what must never leave the label party, with a warning in it."""
        folder = self.label / NOT_PRIVATE
        make_private_folder(folder)
        write_atomically(folder / "README.txt", _WARNING)
        return folder

    def finish_local_head(self, weights: bytes, metrics: dict[str, float]) -> None:
        """Keep the local head and what it reaches on the test records."""
        folder = self.not_private()
        write_atomically(folder / "local_head.safetensors", weights)
        write_note(folder / _RESULT, metrics)

    def lacks_local_head(self, job: Job) -> bool:
        """Whether the run has all that a local head needs, but not the head."""
        return job.training.head == "local" and (self.label / NOT_PRIVATE / "inputs.f32").exists()

    def local_head(self) -> dict[str, float] | None:
        """Return what the local head reaches on the test records; None if there is none."""
        return read_note(self.label / NOT_PRIVATE / _RESULT, dict[str, Measured])

    def finish_party(self, result: FeatureResult) -> None:
        """Write a feature party's result: from now on its part in the run is finished."""
        write_note(self.party(result.party) / _RESULT, result)

    def party_result(self, party: str) -> FeatureResult | None:
        """Return a feature party's result, or None if its part is not finished."""
        return read_note(self.party(party) / _RESULT, FeatureResult)

    def confirmed_to(self, party: str) -> list[str]:
        """Return the peers that know that this party has finished."""
        return read_note(self.party(party) / _CONFIRMED, list[str]) or []

    def confirm(self, party: str, peer: str) -> None:
        """Note that a peer knows that this party has finished."""
        write_note(self.party(party) / _CONFIRMED, sorted({*self.confirmed_to(party), peer}))

    def write_predictions(self, epoch: int, validation: npt.NDArray[np.float32], test: npt.NDArray[np.float32]) -> None:
        """Keep what the network says of held-out and test records after an epoch; computed from noisy labels alone."""
        folder = self.label / "predictions"
        make_private_folder(folder)
        header: dict[str, Any] = {}
        arrays, stop = {"test": test, "validation": validation}, 0
        for name, array in arrays.items():
            header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [stop, stop + array.nbytes]}
            stop += array.nbytes
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with replaced(folder / f"epoch-{epoch:04d}.safetensors") as draft, open_durably(draft, "wb") as file:
            # As `safetensors.numpy.save` does, which would copy all of them: they may lie on disk.
            file.write(len(text).to_bytes(8, "little") + text)
            for array in arrays.values():
                file.write(np.ascontiguousarray(array).data)

    def predictions(self, epoch: int) -> dict[str, npt.NDArray[np.float32]]:
        """Return the probabilities of the `validation` and `test` records after an epoch; they stay in their file."""
        path = self.label / "predictions" / f"epoch-{epoch:04d}.safetensors"
        try:
            require_plain(path)
            with safe_open(path, "pt") as file:
                return {name: file.get_tensor(name).numpy() for name in file.keys()}  # noqa: SIM118
        except OSError as error:
            raise RunError(f"{path}: cannot be read ({error.strerror})") from error
        except Exception as error:  # safetensors raises its own errors for damaged bytes
            raise RunError(f"{path}: is damaged ({error})") from error

    def metrics(self) -> list[dict[str, Any]]:
        """Return the metrics of each evaluation so far."""
        path = self.label / _METRICS
        lines = _read_bytes(path).splitlines() if path.exists() else []
        entries = [_parsed(f"{path}, line {number}", EpochMetrics, line) for number, line in enumerate(lines, 1)]
        # One object for every NaN: what was read twice compares equal.
        return [{name: math.nan if value != value else value for name, value in entry} for entry in entries]

    def write_metrics(self, entries: list[dict[str, Any]]) -> None:
        """Replace the metrics."""
        content = "".join(json.dumps(entry) + "\n" for entry in entries)
        write_atomically(self.label / _METRICS, content.encode())


def _digest(ids: Any) -> str:
    digest = TextsDigest(b"tpsl records of a run")
    digest.update(ids)
    return digest.digest().hex()


def read_note(path: Path, kind: type[Content], most: int = _MOST_BYTES) -> Content | None:
    """Return what a JSON file of a run says; None if there is none. A damaged file is a `RunError` that names it."""
    return _parsed(str(path), kind, _read_bytes(path, most)) if path.exists() else None


def _parsed(where: str, kind: type[Content], content: bytes) -> Content:
    try:
        found: Content = _adapter(kind).validate_json(content, strict=True)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        reason = ": ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"]]))
        raise RunError(f"{where}: is damaged ({shortened(reason, 300)})") from error
    return found


def write_note(path: Path, content: object) -> None:
    """Write a JSON file of a run, whole or not at all."""
    write_atomically(path, _adapter(type(content)).dump_json(content, indent=1))


def _read_bytes(path: Path, most: int = _MOST_BYTES) -> bytes:
    try:
        return read_plain(path, most)
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from error
