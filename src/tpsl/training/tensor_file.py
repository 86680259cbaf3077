"""Files of tensors: safetensors that the workers of a party write together, each its own rows, and read by rows.

Where a number lies in such a file follows from the shapes alone: first comes a header in JSON, then one tensor after
the other. So each worker writes the rows of a sharded table that it has to their place. The file is the one that a
worker with the whole table would have written, byte for byte, and nobody needs the memory for that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from tpsl.files import naming_what_does_not_fit, open_durably, open_private
from tpsl.models.shard import Shard
from tpsl.workers import ALONE, Workers

ShardOf = Callable[[str], Shard | None]
"""Which rows of a tensor of this name a worker has; None: all."""
_TYPES = {
    torch.uint64: "U64", torch.int64: "I64", torch.float64: "F64", torch.complex64: "C64", torch.float32: "F32",
    torch.uint32: "U32", torch.int32: "I32", torch.bfloat16: "BF16", torch.float16: "F16", torch.uint16: "U16",
    torch.int16: "I16", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
"""The names of types in a header; tensors lie in the order of their types here, then of their names."""
_AT_ONCE = 1 << 24
"""Bytes."""


def whole(name: str) -> None:
    """Return that a worker has all rows, whatever the tensor."""


class Piece(NamedTuple):
    """Bytes of a file, from `start` to before `stop`, that one worker has written, and their SHA-256."""

    start: int
    stop: int
    sha256: str


class _Placed(NamedTuple):
    """What a worker writes of a tensor, and where in the file."""

    start: int
    content: Tensor


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], shard_of: ShardOf = whole, workers: Workers = ALONE
) -> list[Piece]:
    """Write a file durably, by all workers together; return the pieces that make it up, in their order.

    Of a tensor that is a shard each worker writes its rows, and worker 0 all else. Without one the others write nothing
    and wait for nobody, and nothing is returned to them. A file that was there is overwritten.
    """
    shards = {name: shard for name in tensors if (shard := shard_of(name)) is not None}
    if not (workers.is_first or shards):
        return []
    if workers.is_first:
        open_private(path, "wb").close()
    if shards:
        workers.wait_for_all()
    header, placed = _laid_out(tensors, shards)
    own = [_Placed(0, header)] if workers.is_first else []
    own += [each for name, each in placed.items() if workers.is_first or name in shards]
    with naming_what_does_not_fit(path), open_durably(path, "r+b") as file:
        pieces = _write(file, own)
    return _of_all(pieces, workers) if shards else pieces


def read_tensors(path: Path, shard_of: ShardOf = whole) -> dict[str, Tensor]:
    """Return the tensors of a file, of shards only their rows; the others are not read.

    Tensors of another number of rows than the whole that a shard is of are a RuntimeError, as when PyTorch loads them.
    """
    with path.open("rb"):  # that a file is not there, the library says in words of its own
        pass
    found = {}
    with safe_open(path, "pt") as file:
        for name in file.keys():  # noqa: SIM118
            if (shard := shard_of(name)) is None:
                found[name] = file.get_tensor(name).clone()
                continue
            rows = file.get_slice(name)
            if rows.get_shape()[:1] != [shard.rows]:
                raise RuntimeError(f"{name} has the shape {rows.get_shape()}, not {shard.rows} rows")
            found[name] = rows[shard.start : shard.stop].clone()
    return found


def is_intact(path: Path, piece: Piece) -> bool:
    """Whether the bytes of a piece are those that were written."""
    digest, left = hashlib.sha256(), piece.stop - piece.start
    with path.open("rb") as file:
        file.seek(piece.start)
        while left and (content := file.read(min(left, _AT_ONCE))):
            digest.update(content)
            left -= len(content)
    return not left and digest.hexdigest() == piece.sha256


def _laid_out(tensors: Mapping[str, Tensor], shards: Mapping[str, Shard]) -> tuple[Tensor, dict[str, _Placed]]:
    """Return the header, and where the part of each tensor that is here begins; in the order of the file."""
    order = list(_TYPES)
    for name, tensor in tensors.items():
        if tensor.dtype not in _TYPES:
            raise ValueError(f"{name} is of the type {tensor.dtype}, which no file of tensors holds")
    described, placed, at = {}, {}, 0
    for name, tensor in sorted(tensors.items(), key=lambda each: (order.index(each[1].dtype), each[0])):
        start, shape = 0, list(tensor.shape)
        if (shard := shards.get(name)) is not None:
            start, shape = shard.start, [shard.rows, *tensor.shape[1:]]
        size = prod(shape) * tensor.itemsize
        described[name] = {"dtype": _TYPES[tensor.dtype], "shape": shape, "data_offsets": [at, at + size]}
        placed[name] = _Placed(at + start * prod(shape[1:]) * tensor.itemsize, tensor)
        at += size
    text = json.dumps(described, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    placed = {name: each._replace(start=each.start + len(header)) for name, each in placed.items()}
    return torch.frombuffer(bytearray(header), dtype=torch.uint8), placed


def _write(file: IO[bytes], placed: list[_Placed]) -> list[Piece]:
    """Write tensors to their places; those behind each other are one piece."""
    pieces: list[Piece] = []
    begun, stop, digest = 0, 0, hashlib.sha256()
    for start, tensor in placed:
        if start != stop:
            pieces.append(Piece(begun, stop, digest.hexdigest()))
            begun, stop, digest = start, start, hashlib.sha256()
            file.seek(start)
        for content in _contents(tensor):
            file.write(content)
            digest.update(content)
            stop += len(content)
    return [piece for piece in [*pieces, Piece(begun, stop, digest.hexdigest())] if piece.start < piece.stop]


def _contents(tensor: Tensor) -> Iterator[memoryview]:
    """Yield the bytes of a tensor, in parts of bounded size."""
    if not tensor.numel():  # PyTorch may give it a stride that no bytes have
        return
    for part in tensor.detach().reshape(-1).view(torch.uint8).split(_AT_ONCE):  # type: ignore[no-untyped-call]
        yield part.cpu().numpy().data


def _of_all(pieces: list[Piece], workers: Workers) -> list[Piece]:
    """Return the pieces of all workers, in order."""
    numbers = [[piece.start, piece.stop, *np.frombuffer(bytes.fromhex(piece.sha256), "<i8")] for piece in pieces]
    rows = workers.gathered(torch.tensor(numbers, dtype=torch.int64).reshape(-1, 6)).numpy()
    return sorted(Piece(int(row[0]), int(row[1]), row[2:].astype("<i8").tobytes().hex()) for row in rows)
