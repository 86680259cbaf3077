"""A graph in the formats that others read, `torch.export` and ONNX, for any number of records at a time."""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from threading import RLock
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from tpsl.files import write_atomically

PT2, ONNX, WEIGHTS = "half.pt2", "half.onnx", "half.safetensors"
RECORDS = "records"
"""What the first dimension of inputs and output is called."""

_LONGEST = 200  # characters of a reason that are shown
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_exporting = RLock()


class ExportError(ValueError):
    """A half that cannot be exported as asked; the message is one sentence."""


def require_onnx() -> None:
    """Raise unless PyTorch finds what it needs to write ONNX."""
    if not all(map(find_spec, ("onnx", "onnxscript"))):
        raise ExportError("ONNX is not installed: `pip install 'tpsl[export]'` gets it")


def write_formats(graph: nn.Module, inputs: Mapping[str, Tensor], output: str, folder: Path) -> dict[str, str]:
    """Write the weights, and the graph in each format that PyTorch can make of it.

    `inputs` are an example of a few records, by name. Returns, for each file that is not there, why.
    """
    write_atomically(folder / WEIGHTS, save(graph.state_dict()))
    archive = io.BytesIO()
    with _quiet(), torch.no_grad():
        try:
            program = _traced(graph, inputs)
            torch.export.save(program, archive)
        except Exception as error:  # whatever a network of a user's own does that cannot be traced
            reason = _reason("torch.export cannot follow the half", error)
            return {PT2: reason, ONNX: reason}
        write_atomically(folder / PT2, archive.getvalue())
        try:
            translated = _as_onnx(program, list(inputs), output)
        except Exception as error:
            return {ONNX: _reason("ONNX has no form of the half", error)}
        translated.save(folder / ONNX)
    for file in folder.glob(f"{ONNX}*"):  # weights of more than 2 GB are in a file beside it
        file.chmod(0o600)
    return {}


def _traced(graph: nn.Module, inputs: Mapping[str, Tensor]) -> Any:
    each = ({0: torch.export.Dim(RECORDS)},) * len(inputs)
    return torch.export.export(graph, tuple(inputs.values()), dynamic_shapes=(each,))


def _as_onnx(program: Any, inputs: list[str], output: str) -> Any:
    found: Any = torch.onnx.export(program, dynamo=True, verbose=False, input_names=inputs, output_names=[output])
    found.rename_axes({found.model.graph.inputs[0].shape[0]: RECORDS})
    return found


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep to itself what PyTorch says of its own insides while it exports.

    One thread at a time: what is kept quiet is the whole process, and the last to leave would keep it so.
    """
    with _exporting, warnings.catch_warnings():
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logging.disable(before)


def _reason(what: str, error: BaseException) -> str:
    """Return why something could not be written: what went wrong at the bottom of it, as far as a sentence goes."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(_COLOURS.sub("", str(error)).split())
    return f"{what} ({type(error).__name__}: {text if len(text) <= _LONGEST else text[:_LONGEST] + '…'})"
