"""The transcript: what was recorded is read back, a resumed recording has no seam, and an incomplete one is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tpsl.models.halves import Top, Tops
from tpsl.models.model_config import ModelConfig
from tpsl.run.transcript import Trajectory, TrajectoryWriter, Transcript, TranscriptWriter

WIDTH = 3
SIZES = (4, 4, 2)
Step = tuple[np.ndarray, torch.Tensor, torch.Tensor]


def recorded_steps() -> list[Step]:
    generator = torch.Generator().manual_seed(0)
    return [
        (
            np.arange(size, dtype=np.int64) * 7 + step,
            torch.randn(size, WIDTH, generator=generator),
            torch.randn(size, WIDTH, generator=generator),
        )
        for step, size in enumerate(SIZES)
    ]


def record(folder: Path, steps: list[Step], before: int = 0) -> None:
    writer = TranscriptWriter(folder, WIDTH, steps_before=before, records_before=sum(SIZES[:before]))
    for step in steps:
        writer.record(*step)
    writer.close()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_was_recorded_is_read_back_step_by_step(tmp_path: Path) -> None:
    record(tmp_path, recorded_steps())
    transcript = Transcript(tmp_path)
    assert (len(transcript), transcript.records, transcript.width) == (3, sum(SIZES), WIDTH)
    for number, (read, (rows, embeddings, gradients)) in enumerate(zip(transcript, recorded_steps(), strict=True)):
        assert read.step == number
        assert np.array_equal(read.rows, rows)
        assert np.array_equal(read.embeddings, embeddings.numpy())
        assert np.array_equal(read.gradients, gradients.numpy())


@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_a_resumed_recording_is_cut_back_to_the_checkpoint_and_has_no_seam(tmp_path: Path, before: int) -> None:
    record(tmp_path / "whole", recorded_steps())
    record(tmp_path / "resumed", recorded_steps())
    with (tmp_path / "resumed" / "gradients.f32").open("ab") as file:
        file.write(b"half")  # a kill within a record
    record(tmp_path / "resumed", recorded_steps()[before:], before)
    assert contents(tmp_path / "resumed") == contents(tmp_path / "whole")


def test_a_recording_that_ends_before_the_checkpoint_cannot_be_resumed(tmp_path: Path) -> None:
    record(tmp_path, recorded_steps()[:1])
    with pytest.raises(ValueError, match=r"sizes\.i64: has 8 bytes where the checkpoint needs 16"):
        record(tmp_path, recorded_steps()[2:], before=2)


def test_sync_makes_all_of_it_readable_by_others(tmp_path: Path) -> None:
    writer = TranscriptWriter(tmp_path, WIDTH)
    writer.record(*recorded_steps()[0])
    writer.sync()
    assert Transcript(tmp_path).records == SIZES[0]
    writer.close()


@pytest.mark.parametrize("name", ["sizes.i64", "rows.i64", "embeddings.f32", "gradients.f32"])
def test_the_reader_refuses_what_is_not_complete(tmp_path: Path, name: str) -> None:
    record(tmp_path, recorded_steps())
    file = tmp_path / name
    written = file.read_bytes()
    record_size = 8 if name.endswith("i64") else 4 * WIDTH
    for damaged in (written[:-1], b""):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match=f"{name}: has {len(damaged)} bytes, no whole number of records"):
            Transcript(tmp_path)
    file.write_bytes(written[:-record_size])
    with pytest.raises(ValueError, match="the recording is not complete"):
        Transcript(tmp_path)
    file.unlink()
    with pytest.raises(ValueError, match=f"{name}: has 0 bytes"):
        Transcript(tmp_path)


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"width": "wide"}'])
def test_a_folder_without_a_transcript_says_how_to_get_one(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "transcript.json").write_text(text)
        (tmp_path / "trajectory.json").write_text(text)
    with pytest.raises(ValueError, match="holds no transcript"):
        Transcript(tmp_path)
    with pytest.raises(ValueError, match="holds no trajectory"):
        Trajectory(tmp_path)


@pytest.mark.parametrize("written", [2, 0, "1", None])
def test_a_recording_of_another_format_is_one_sentence(tmp_path: Path, written: object) -> None:
    record(tmp_path, recorded_steps())
    TrajectoryWriter(tmp_path, top_half(0)).close()
    for name, reader in (("transcript", Transcript), ("trajectory", Trajectory)):
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"format": written}))
        with pytest.raises(ValueError) as refused:
            reader(tmp_path)
        sentence = f"{tmp_path}: its {name} has format {written!r}; this version of tpsl reads format 1"
        assert str(refused.value) == sentence


def top_half(seed: int) -> Tops:
    config, generator = ModelConfig(bottom=(WIDTH,), top=(4,)), torch.Generator().manual_seed(seed)
    return Tops([Top(WIDTH, 2, config, generator)], 2)


def test_the_trajectory_gives_back_the_weights_before_each_step(tmp_path: Path) -> None:
    top = top_half(0)
    writer = TrajectoryWriter(tmp_path, top)
    weights = []
    for step in range(3):
        weights.append({name: value.clone() for name, value in top.state_dict().items()})
        writer.record()
        with torch.no_grad():
            for parameter in top.parameters():
                parameter += step + 1
    writer.close()
    writer = TrajectoryWriter(tmp_path, top, steps_before=3)  # resumed at the end: nothing is lost
    writer.close()
    reader, attacked = Trajectory(tmp_path), top_half(1).members[0]
    for step in (2, 0, 1):
        reader.load_into(attacked, step)
        assert all(
            torch.equal(value, weights[step][f"members.0.{name}"]) for name, value in attacked.state_dict().items()
        )
    (tmp_path / "trajectory.f32").write_bytes((tmp_path / "trajectory.f32").read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"trajectory\.f32: .* the recording is not complete"):
        Trajectory(tmp_path)


class Elsewhere(torch.Tensor):
    """A tensor that behaves as one in the memory of a GPU does: NumPy reads it only after a copy to the CPU."""

    def numpy(self, **options: object) -> np.ndarray:
        raise TypeError("can't convert device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory")

    def cpu(self, *arguments: object) -> torch.Tensor:
        return self.as_subclass(torch.Tensor).clone()


def test_what_lies_in_another_memory_is_copied_and_recorded(tmp_path: Path) -> None:
    (rows, embeddings, gradients), top = recorded_steps()[0], top_half(0)
    (half,) = top.members
    for module in (*half.layers, half.output):
        for name, parameter in list(module.named_parameters()):
            setattr(module, name, torch.nn.Parameter(parameter.detach().as_subclass(Elsewhere)))
    with pytest.raises(TypeError):
        next(top.parameters()).detach().numpy()
    record(tmp_path, [(rows, embeddings.as_subclass(Elsewhere), gradients.as_subclass(Elsewhere))])
    writer = TrajectoryWriter(tmp_path, top)
    writer.record()
    writer.close()
    assert np.array_equal(next(iter(Transcript(tmp_path))).gradients, gradients.numpy())
    attacked = top_half(1)
    Trajectory(tmp_path).load_into(attacked.members[0], 0)
    assert all(torch.equal(value, attacked.state_dict()[name]) for name, value in top_half(0).state_dict().items())
