"""Canaries, records whose labels are replaced by fair coins, and the new folder that an audit works in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tpsl.data.dataset import Dataset
from tpsl.data.sides import FeatureSide, LabelSide
from tpsl.data.true_labels import TrueLabels, reveal
from tpsl.files import make_private_folder
from tpsl.mechanisms import RandomWords
from tpsl.net.messages import LABEL_PARTY
from tpsl.run.job import Job
from tpsl.run.own_parts import OwnParts

Rows = npt.NDArray[np.int64]

OWN_FEATURES = "label-features"
"""The party that holds the label party's own features during an audit."""

_BLOCK = 4
"""At most one pair of neighbours in each block of this many training records, at a random place."""


class AuditError(ValueError):
    """An audit that cannot be made; the message names the folder."""


def new_folder(folder: Path) -> None:
    """Make a folder for its owner only; one with content is refused: what is found must come from this audit alone."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise AuditError(f"{folder}: exists already; an audit needs a new folder")
    make_private_folder(folder)
    folder.chmod(0o700)


@dataclass(frozen=True)
class Planted:
    """Data with canaries in it, where they are, and their coins."""

    data: Dataset
    rows: Rows
    coins: npt.NDArray[np.int64]
    sides: npt.NDArray[np.int64]
    """The classes of each canary, `[n, 2]`: its label is `sides[i, coins[i]]`."""
    neighbours: npt.NDArray[np.int64]
    """Canaries that follow each other among the training records, `[pairs, 2]`: positions in `rows`."""


def plant_canaries(data: Dataset, canaries: int, words: RandomWords) -> Planted:
    """Give this many training records label 0 or 1 by a fair coin; features stay as they are.

    Half of the canaries are pairs of neighbours, the others lie at random places. With k classes the coin of each
    canary falls between two classes of its own, chosen at random such that all classes have their turn. A label that
    is not known yet, of a record that is no canary, is made up. Features of the label party's own go to one more
    feature party: the network is the same, and the attacker, who is granted the label party's weights, then has all of
    the cut.
    """
    places, pairs = _places(len(data.train), canaries, words)
    chosen, k = data.train[places], data.classes
    coins = (words.words(len(chosen)) & np.uint64(1)).astype(np.int64)
    sides = np.tile(np.arange(2), (len(chosen), 1))
    if k > 2:
        first = np.argsort(words.words(len(chosen))) % k
        sides = np.stack([first, (first + 1 + _below(words, len(chosen), k - 1)) % k], axis=1)
    labels = reveal(data.labels).copy()
    labels[chosen] = sides[np.arange(len(chosen)), coins]
    parties, records = dict(data.feature_sides), data.label_side.records
    if records.features is not None:
        parties[OWN_FEATURES] = FeatureSide(OWN_FEATURES, records.ids, records.features, records.train, records.test)
    label_side = LabelSide(replace(records, features=None), TrueLabels(labels, records.class_names))
    return Planted(Dataset(parties, label_side), chosen, coins, sides, np.searchsorted(places, pairs))


def features_moved(job: Job, own: Mapping[str, OwnParts]) -> tuple[Job, dict[str, OwnParts]]:
    """Return a job and own parts in which the half that reads the label party's features is a feature party's."""
    at_label = own.get(LABEL_PARTY, OwnParts())
    moved = {**own, LABEL_PARTY: OwnParts(top=at_label.top), OWN_FEATURES: OwnParts(bottom=at_label.bottom)}
    cut = job.model.cut
    if isinstance(cut, dict) and LABEL_PARTY in cut:
        model = job.model.model_copy(update={"cut": {**cut, OWN_FEATURES: cut[LABEL_PARTY]}})
        job = job.model_copy(update={"model": model})
    return job, moved


def _below(words: RandomWords, count: int, bound: int) -> Rows:
    return (words.words(count) % np.uint64(bound)).astype(np.int64)


def _places(records: int, canaries: int, words: RandomWords) -> tuple[Rows, Rows]:
    """Choose the positions of the canaries among the training records, and which of them are pairs of neighbours."""
    canaries = min(canaries, records)
    blocks = np.sort(np.argsort(words.words(records // _BLOCK))[: canaries // 4])
    first = blocks * _BLOCK + _below(words, len(blocks), _BLOCK - 1)
    pairs = np.stack([first, first + 1], axis=1)
    rank = words.words(records).copy()
    rank[pairs] = 0  # before all others
    return np.sort(np.argsort(rank, kind="stable")[:canaries]), pairs
