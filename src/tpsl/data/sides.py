"""What one party has after loading its own table, nothing of the other party's; and other labels, for an audit."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tpsl.data.encoder import EncoderState
from tpsl.data.features import Features, Inputs
from tpsl.data.order import Rows
from tpsl.data.out_of_core import taken_texts
from tpsl.data.true_labels import TrueLabels
from tpsl.spill import Array, ArrowArray

_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class Relabelling:
    """Moves the labels of a random half of the records to another class; which ones, and where, follows from `seed`.

    For an audit that asks what depends on true labels: each source changes the labels where they enter, in the raw
    table or record that features are read from too. So a feature that is derived from the label while loading changes
    with it.
    """

    seed: int

    def __call__(self, labels: Array, classes: int, first: int = 0) -> npt.NDArray[np.int64]:
        """Return the new labels of consecutive records, the first of which is number `first` of the source.

        Asking again, in other pieces, gives the same labels.
        """
        stop = first + len(labels)
        blocks = range(first // _AT_ONCE, -(-stop // _AT_ONCE))
        drawn = [np.random.default_rng([self.seed, block]).integers(0, 2 * (classes - 1), _AT_ONCE) for block in blocks]
        moves = np.concatenate([*drawn, np.empty(0, np.int64)])[first - blocks.start * _AT_ONCE :][: len(labels)] + 1
        moves[moves >= classes] = 0
        changed: npt.NDArray[np.int64] = (labels.astype(np.int64) + moves) % classes
        return changed


def as_text(labels: npt.NDArray[np.int64], class_values: tuple[str, ...]) -> ArrowArray:
    """Return labels as a column of a party's table, in the words of the table."""
    return pa.array(class_values, pa.string()).take(pa.array(labels, pa.int64()))


@dataclass(frozen=True)
class FeatureSide:
    """A feature party's records in the canonical order, its features and the common split."""

    party: str
    ids: ArrowArray
    features: Features | Inputs
    train: Rows
    test: Rows
    encoder: EncoderState | None = None


@dataclass(frozen=True)
class LabelRecords:
    """What the label party may look at at any time: everything about its records but their labels.

    `units` say whom a record is about; they go into the vault, so that its ledger can add up by unit. `ids_are_new`
    where an alignment has made the records: then the same people may come again under other ids, and of each unit one
    record has its label; `further_records` is the number of those that count as unknown for that reason, and there are
    no `units`. `own_ids` are what the label party's file calls the records, where an alignment of mode `both` calls
    them something else: a vault knows them by these, and recognises those that come again without an alignment, or by
    another one.
    """

    ids: ArrowArray
    features: Features | Inputs | None
    class_names: tuple[str, ...]
    train: Rows
    test: Rows
    units: ArrowArray | None = None
    encoder: EncoderState | None = None
    ids_are_new: bool = False
    own_ids: ArrowArray | None = None
    further_records: int = 0

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @cached_property
    def training_ids(self) -> ArrowArray:
        """What a vault calls the training records."""
        return taken_texts(self.ids if self.own_ids is None else self.own_ids, self.train)

    @cached_property
    def training_units(self) -> ArrowArray | None:
        """Whom each training record is about; None where the data does not say."""
        return None if self.units is None else taken_texts(self.units, self.train)


@dataclass(frozen=True)
class LabelSide:
    """The label party's records, and the handle to their true labels.

    The handle goes to the vault, to the evaluation of the test rows and to the local head, if the job has one; the last
    two happen when no peer can see how long they take. Everything else is given the records alone.
    """

    records: LabelRecords
    labels: TrueLabels
    in_file: "OwnRecords | None" = None
    """Where an alignment makes new records: those of the label party's file, whether anybody else has them or not."""


@dataclass(frozen=True)
class OwnRecords:
    """All records of the label party's own file, under its own ids."""

    ids: ArrowArray
    labels: TrueLabels
