"""One party's half of a trained model as files for its owner, which need nothing of tpsl.

FOLDER/half.pt2, half.onnx, half.safetensors   the half for PyTorch and for others, and its weights alone
FOLDER/encoder.json, encode.py, spelling.py    what was learned to encode the party's table, and what applies it
FOLDER/predict.py                              from raw records to embeddings or probabilities, as an example
FOLDER/MODEL_CARD.md, card.json                what it is; an export is whole once card.json is there
"""

from __future__ import annotations

import inspect
import io
import json
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from tpsl.data import row_encoder
from tpsl.data.encoder import EncoderState
from tpsl.data.features import Features
from tpsl.files import make_private_folder, write_atomically
from tpsl.model import predict_script
from tpsl.model.model_card import Card, Head, as_json, as_markdown
from tpsl.model.predictors import LabelHalf
from tpsl.net.messages import LABEL_PARTY
from tpsl.run.run_folder import NOT_PRIVATE
from tpsl.split.batches import Batches
from tpsl.tables import spelling

if TYPE_CHECKING:
    from tpsl.model.trained import TrainedModel

PT2, ONNX, WEIGHTS = "half.pt2", "half.onnx", "half.safetensors"
RECORDS = "records"
"""What the first dimension of inputs and output is called."""

_EXAMPLES = 3  # records to trace a half with; 0 and 1 would be taken for fixed sizes
_LONGEST = 200  # characters of a reason that are shown
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class ExportError(ValueError):
    """A half that cannot be exported as asked; the message is one sentence."""


@dataclass(frozen=True)
class Exported:
    """Where a half was written, and its card."""

    folder: Path
    card: Card


def export_half(model: TrainedModel, party: str, out: Path, head: Head = "private") -> Exported:
    """Write a party's half into a new folder.

    The model's folder need hold no other party's half. The label party's local head goes into a folder of its own in
    it, `NOT-PRIVATE`. A half that PyTorch cannot export is written as weights, and the card says why.
    """
    if not all(map(find_spec, ("onnx", "onnxscript"))):
        raise ExportError("ONNX is not installed: `pip install 'tpsl[export]'` gets it")
    for run in model.runs():
        run.refuse_scratch()
    known = (*model.run.job().data.feature_parties, LABEL_PARTY)
    if party not in known:
        raise ExportError(f"{model.path}: there is no party {party!r} in the job; the parties are {', '.join(known)}")
    if head == "local" and party != LABEL_PARTY:
        raise ExportError(f"a local head is trained on true labels and stays with the label party: {party} has none")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ExportError(f"{out}: is there already, and is not an empty folder; choose another --out")
    facts = model.card(party, head)
    half, inputs, encoder = _half(model, party, head)
    folder = out / NOT_PRIVATE if head == "local" else out
    make_private_folder(folder)
    missing = write_formats(half, inputs, _output(party), folder)
    shipped = {"predict.py": _source(predict_script)}
    if encoder is not None:
        shipped |= {"encode.py": _source(row_encoder), "spelling.py": _source(spelling)}
        shipped["encoder.json"] = json.dumps(encoder.plain(), ensure_ascii=False)
    for name, text in shipped.items():
        write_atomically(folder / name, text.encode())
    with torch.no_grad():
        example = half(*inputs.values())
    card = facts | {
        "inputs": [_described(name, tensor) for name, tensor in inputs.items()],
        "output": _described(_output(party), example),
        "columns": dict(encoder.columns) if encoder is not None else {},
        "files": {
            name: f"not written: {missing[name]}" if name in missing else "written"
            for name in (PT2, ONNX, WEIGHTS, *sorted(shipped))
        },
    }
    write_atomically(folder / "MODEL_CARD.md", as_markdown(card))
    write_atomically(folder / "card.json", as_json(card))
    return Exported(folder, card)


def _half(model: TrainedModel, party: str, head: Head) -> tuple[nn.Module, dict[str, Tensor], EncoderState | None]:
    """Return what is exported, an example of its inputs, and how the party's table is encoded, if it has one."""
    if party != LABEL_PARTY:
        return model.embedder(party), *_reads(model, party)
    predictor = model.predictor(local_head=head == "local")
    shares = {f"share_{name}": torch.zeros(_EXAMPLES, width) for name, width in predictor.widths.items()}
    if shares.pop(f"share_{LABEL_PARTY}", None) is None:
        return LabelHalf(predictor, None).eval(), shares, None
    inputs, encoder = _reads(model, party)
    return LabelHalf(predictor, model.embedder(party)).eval(), shares | inputs, encoder


def _reads(model: TrainedModel, party: str) -> tuple[dict[str, Tensor], EncoderState | None]:
    """Return an example of what a party's bottom half reads, and how its table is encoded, if it has one."""
    like = model.inputs_like_those_of_training(party)
    if isinstance(like, Features):
        encoder = model.run.encoder(party)
        categorical = torch.zeros(_EXAMPLES, len(encoder.categories), dtype=torch.int32)
        return {"categorical": categorical, "numeric": torch.zeros(_EXAMPLES, len(encoder.numeric_fields))}, encoder
    batch = Batches(like).batch(np.arange(_EXAMPLES) % len(like))
    return {f"input_{number}": array for number, array in enumerate(batch)}, None


def _output(party: str) -> str:
    return "probabilities" if party == LABEL_PARTY else "embeddings"


def _source(module: ModuleType) -> str:
    """Return a module's text as it stands in an exported folder, where its neighbours lie beside it."""
    text = inspect.getsource(module).replace("from tpsl.tables import spelling", "import spelling")
    return text.replace("from tpsl.tables.spelling", "from spelling").replace(
        "from tpsl.data.row_encoder", "from encode"
    )


def _described(name: str, tensor: Tensor) -> dict[str, Any]:
    return {
        "name": name,
        "type": str(tensor.dtype).removeprefix("torch."),
        "shape": [RECORDS, *tensor.shape[1:]],
    }


# ---- formats


def write_formats(half: nn.Module, inputs: Mapping[str, Tensor], output: str, folder: Path) -> dict[str, str]:
    """Write the weights, and the half in each format that PyTorch can make of it.

    `inputs` are an example of a few records, by name. Returns, for each file that is not there, why.
    """
    write_atomically(folder / WEIGHTS, save(half.state_dict()))
    archive = io.BytesIO()
    with _quiet(), torch.no_grad():
        try:
            each = ({0: torch.export.Dim(RECORDS)},) * len(inputs)
            program: Any = torch.export.export(half, tuple(inputs.values()), dynamic_shapes=(each,))
            torch.export.save(program, archive)
        except Exception as error:  # whatever a network of a user's own does that cannot be traced
            reason = _reason("torch.export cannot follow the half", error)
            return {PT2: reason, ONNX: reason}
        write_atomically(folder / PT2, archive.getvalue())
        try:
            found: Any = torch.onnx.export(
                program, dynamo=True, verbose=False, input_names=list(inputs), output_names=[output]
            )
            found.rename_axes({found.model.graph.inputs[0].shape[0]: RECORDS})
        except Exception as error:
            return {ONNX: _reason("ONNX has no form of the half", error)}
        found.save(folder / ONNX)
    for file in folder.glob(f"{ONNX}*"):  # weights of more than 2 GB are in a file beside it
        file.chmod(0o600)
    return {}


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep to itself what PyTorch says of its own insides while it exports: the whole process is quiet."""
    with warnings.catch_warnings():
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
