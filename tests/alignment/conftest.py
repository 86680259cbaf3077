"""Parties with keys, without files."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tpsl.alignment.keys import KeyList, KeyTable
from tpsl.alignment.terms import AlignmentTerms
from tpsl.data.aligned import KeySource
from tpsl.data.config import AlignmentConfig

Record = Mapping[str, str]
"""The keys of a record by name; one that is not there is missing."""
MakeTable = Callable[..., KeyTable]
MakeTerms = Callable[..., AlignmentTerms]


def key_list(name: str, records: Sequence[Record]) -> KeyList:
    rows = [row for row, record in enumerate(records) if name in record]
    digests = b"".join(hashlib.sha256(f"{name} {records[row][name]}".encode()).digest() for row in rows)
    return KeyList(np.array(rows, np.int64), np.frombuffer(digests, np.uint8).reshape(-1, 32))


@pytest.fixture
def make_table() -> MakeTable:
    """A party's table from its records, with the keys that appear in them, in alphabetical order."""

    def make(records: Sequence[Record], order: npt.NDArray[np.int64] | None = None) -> KeyTable:
        text = repr([sorted(record.items()) for record in records]).encode()
        source = KeySource(len(records), 0, 0, hashlib.sha256(text).hexdigest())
        names = sorted({name for record in records for name in record}) or ["id"]
        return KeyTable.of([key_list(name, records) for name in names], source, order)

    return make


@pytest.fixture
def make_terms() -> MakeTerms:
    def make(parties: int = 1, *, keys: Sequence[str] = ("id",), **options: Any) -> AlignmentTerms:
        named = [{"name": name, "rule": "exact"} for name in keys]
        config = AlignmentConfig.model_validate({"keys": named, **options})
        return AlignmentTerms(config, tuple(f"party{number}" for number in range(parties)))

    return make
