"""Files of tensors: those of safetensors, byte for byte, whoever writes them; read by rows."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from tpsl.models.shard import Shard
from tpsl.training.tensor_file import Piece, is_intact, read_tensors, write_tensors


def tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "weights": torch.randn(7, 5),
        "a bias, ä": torch.randn(3).bfloat16(),
        "steps": torch.tensor(12),
        "none": torch.zeros(0, 4),
        "is_set": torch.tensor([True, False]),
        "half": torch.randn(2, 2).half(),
        "counts": torch.arange(6, dtype=torch.int16),
        "transposed": torch.randn(4, 3).double().t(),
    }


def test_a_file_is_that_of_the_library(tmp_path: Path) -> None:
    written = tensors()
    (piece,) = write_tensors(tmp_path / "file", written)
    content = (tmp_path / "file").read_bytes()
    assert content == save({name: tensor.contiguous() for name, tensor in written.items()})
    assert piece == Piece(0, len(content), hashlib.sha256(content).hexdigest())
    read = read_tensors(tmp_path / "file")
    assert read.keys() == written.keys()
    assert all(torch.equal(read[name], written[name]) and read[name].dtype == written[name].dtype for name in read)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_a_file_that_was_there_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 10_000)
    write_tensors(tmp_path / "file", {"one": torch.ones(2)})
    assert (tmp_path / "file").read_bytes() == save({"one": torch.ones(2)})


def test_rows_are_read_without_the_others(tmp_path: Path) -> None:
    written = tensors()
    write_tensors(tmp_path / "file", written)
    read = read_tensors(tmp_path / "file", {"weights": Shard(2, 5, 7)}.get)
    assert torch.equal(read["weights"], written["weights"][2:5]) and torch.equal(read["half"], written["half"])
    for rows in (6, 8):
        with pytest.raises(RuntimeError, match=rf"weights has the shape \[7, 5\], not {rows} rows"):
            read_tensors(tmp_path / "file", {"weights": Shard(2, 5, rows)}.get)


def test_any_changed_byte_of_a_piece_is_noticed(tmp_path: Path) -> None:
    (piece,) = write_tensors(tmp_path / "file", tensors())
    content = (tmp_path / "file").read_bytes()
    assert is_intact(tmp_path / "file", piece)
    for at in (0, 100, len(content) - 1):
        (tmp_path / "file").write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        assert not is_intact(tmp_path / "file", piece)
    (tmp_path / "file").write_bytes(content[:-1])
    assert not is_intact(tmp_path / "file", piece)


def test_what_no_file_can_hold_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"wave is of the type torch\.complex128"):
        write_tensors(tmp_path / "file", {"wave": torch.zeros(2, dtype=torch.complex128)})
