"""Networks of a party's own are exported where PyTorch can, and named with the reason where it cannot."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tpsl.model import predict_script
from tpsl.model.exporting import write_formats
from tpsl.model.predictors import Embedder, TrainedBottom
from tpsl.models.halves import Bottoms

WIDTH = 4
EXAMPLES = Path(__file__).parents[2] / "examples"


def graph(half: nn.Module) -> Embedder:
    return Embedder([TrainedBottom("party", Bottoms([half], WIDTH))]).eval()


def example(folder: str, module: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES / folder))
    monkeypatch.delitem(sys.modules, module, raising=False)
    return importlib.import_module(module)


def assert_the_script_gives(
    expected: Tensor, folder: Path, inputs: dict[str, Tensor], engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Assert what the exported script writes for arrays of a party's own."""
    (folder / "card.json").write_text(json.dumps({"inputs": [{"name": name} for name in inputs]}))
    np.savez(folder / "inputs.npz", **{name: tensor.numpy() for name, tensor in inputs.items()})
    monkeypatch.setattr(predict_script, "HERE", folder)
    options = ["--records", str(folder / "inputs.npz"), "--engine", engine, "--out", str(folder / "out.npy")]
    monkeypatch.setattr(sys, "argv", ["predict.py", *options])
    predict_script.main()
    np.testing.assert_allclose(np.load(folder / "out.npy"), expected, atol=1e-5)


@pytest.mark.parametrize("which", ["images", "text"])
def test_networks_of_the_examples_are_exported(
    which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    if which == "images":
        half: nn.Module = example("digits", "images", monkeypatch).normalised_convolutions(WIDTH, None)
        inputs = {"input_0": torch.rand(3, 1, 8, 4)}
    else:
        sequences = example("text", "sequences", monkeypatch)
        monkeypatch.setattr(sequences, "LENGTH", 2)  # the unit is unrolled: fewer words are exported sooner
        half = sequences.Recurrent(WIDTH, None)
        inputs = {"input_0": torch.randint(2000, (3, 2)), "input_1": torch.tensor([1, 2, 1])}
    written = graph(half)
    assert write_formats(written, inputs, "embeddings", tmp_path) == {}
    assert capfd.readouterr() == ("", "")  # a command that prints JSON prints nothing else
    more = [torch.cat([tensor, tensor, tensor]) for tensor in inputs.values()]
    expected = written(*more).detach()
    session = onnxruntime.InferenceSession(tmp_path / "half.onnx")
    for engine in ("torch", "onnx"):
        assert_the_script_gives(expected, tmp_path, dict(zip(inputs, more, strict=True)), engine, monkeypatch)
    assert {part.shape[0] for part in (*session.get_inputs(), *session.get_outputs())} == {"records"}


class _Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, WIDTH)


class Undecided(_Network):
    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.layer(x if x.sum() > 0 else -x)
        return output


class OfFixedSize(_Network):
    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.layer(x) / len(x)
        return output


class Unusual(_Network):
    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.layer(torch.special.i0e(x))
        return output


@pytest.mark.parametrize(
    ("half", "files", "reasons"),
    [
        (Undecided, ["half.safetensors"], {"half.pt2": "data-dependent", "half.onnx": "data-dependent"}),
        (OfFixedSize, ["half.safetensors"], {"half.pt2": "a constant (3)", "half.onnx": "a constant (3)"}),
        (Unusual, ["half.pt2", "half.safetensors"], {"half.onnx": "No ONNX function found"}),
    ],
)
def test_what_pytorch_cannot_export_is_written_as_weights(
    half: type[_Network], files: list[str], reasons: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    network = half()
    missing = write_formats(graph(network), {"input_0": torch.rand(3, 2)}, "embeddings", tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == files
    assert missing.keys() == reasons.keys()
    assert all(reason in missing[file] and len(missing[file]) < 300 for file, reason in reasons.items())
    assert load_file(tmp_path / "half.safetensors")["parts.0.bottom.members.0.layer.weight"].equal(network.layer.weight)
    assert capfd.readouterr() == ("", "")
