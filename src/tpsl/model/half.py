"""One party's half of a finished run as files for its owner, which need nothing of tpsl.

FOLDER/half.pt2, half.onnx, half.safetensors   the graph for PyTorch and for others, and its weights alone
FOLDER/encoder.json, encode.py, spelling.py    what was learned to encode the party's table, and what applies it
FOLDER/predict.py                              from raw records to embeddings or probabilities, as an example
FOLDER/MODEL_CARD.md, card.json                what it is; an export is whole once card.json is there
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from tpsl.data import row_encoder
from tpsl.data.dataset import feature_party_names
from tpsl.data.encoder import EncoderState
from tpsl.data.features import Features
from tpsl.files import make_private_folder, write_atomically
from tpsl.model import predict_script
from tpsl.model.formats import ONNX, PT2, RECORDS, WEIGHTS, ExportError, require_onnx, write_formats
from tpsl.model.graphs import BottomGraph, TopGraph
from tpsl.model.half_loading import has_label_features, inputs_like_those_of_training
from tpsl.model.model_card import Card, as_json, as_markdown, feature_facts, label_facts, local_head_facts
from tpsl.model.trained import TrainedModel
from tpsl.net.peers import LABEL_PARTY
from tpsl.split.batches import Batches
from tpsl.tables import spelling
from tpsl.training.own_parts import OwnParts
from tpsl.training.run_folder import NOT_PRIVATE, RunFolder

_EXAMPLES = 3  # records to trace a graph with; 0 and 1 would be taken for fixed sizes

_ABOUT_BOTTOM = (
    "The bottom half of a split network: it turns the party's own records into embeddings, which the label party's "
    "half turns into probabilities. All that it has learned of labels was released with noise. The ε below is that of "
    "this run's own release; what else was released of the same labels adds to it, and is in the label party's ledger."
)
_ABOUT_TOP = (
    "The label party's half of a split network: it turns the embeddings of all feature parties, and records of its "
    "own where it has features, into probabilities. All that it has learned of labels was released with noise. This "
    "card has test metrics, which depend on true labels: keep it at the label party."
)
_ABOUT_LOCAL_HEAD = (
    "The label party's local head, trained on TRUE labels. It is not differentially private: whoever gets it, or its "
    "scores, gets something of every training label. Keep it, its scores and everything computed from it at the label "
    "party. The ε below is of what has crossed the border in training, not of this head."
)

Head = Literal["private", "local"]


@dataclass(frozen=True)
class Exported:
    """Where a half was written, and its card."""

    folder: Path
    card: Card


@dataclass(frozen=True)
class _Half:
    """What is exported: a graph, an example of its inputs, and the facts of its card."""

    graph: nn.Module
    inputs: Mapping[str, Tensor]
    encoder: EncoderState | None
    output: str
    facts: Card


def export_half(path: Path, party: str, out: Path, *, head: Head = "private", own: OwnParts | None = None) -> Exported:
    """Write a party's half of a finished run, or of a committee, into a new folder.

    The run folder need hold no other party's half. The label party's local head goes into a folder of its own in it,
    `NOT-PRIVATE`. `own` are the party's parts, if they were objects. A half that PyTorch cannot export is written as
    weights, and the card says why.
    """
    require_onnx()
    model = TrainedModel.open(path)
    for run in model.runs():
        run.refuse_scratch()
    known = (*feature_party_names(model.run.job().data), LABEL_PARTY)
    if party not in known:
        raise ExportError(f"{path}: there is no party {party!r} in the job; the parties are {', '.join(known)}")
    if head == "local" and party != LABEL_PARTY:
        raise ExportError(f"a local head is trained on true labels and stays with the label party: {party} has none")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ExportError(f"{out}: is there already, and is not an empty folder; choose another --out")
    half = _label_half(model, head, own) if party == LABEL_PARTY else _feature_half(model, party, own)
    folder = out / NOT_PRIVATE if head == "local" else out
    make_private_folder(folder)
    return Exported(folder, _write(half, folder))


def _feature_half(model: TrainedModel, party: str, own: OwnParts | None) -> _Half:
    about = {"title": f"Model card: the half of {party}", "half": "bottom", "summary": _ABOUT_BOTTOM}
    facts = feature_facts(model, party)
    graph = BottomGraph(model.embedder(party, own))
    return _Half(graph.eval(), *_reads(model.run, party, own), "embeddings", about | facts)


def _label_half(model: TrainedModel, head: Head, own: OwnParts | None) -> _Half:
    about = {"title": "Model card: the label party's half", "half": "top", "summary": _ABOUT_TOP}
    facts = label_facts(model)
    predictor = model.predictor(local_head=head == "local", own=own)
    if head == "local":
        about = {"title": "NOT PRIVATE: the local head", "half": "local head", "summary": _ABOUT_LOCAL_HEAD}
        facts = local_head_facts(model)
    has_own = has_label_features(model.run)
    bottom = model.embedder(LABEL_PARTY, own) if has_own else None
    inputs, encoder = _reads(model.run, LABEL_PARTY, own) if has_own else ({}, None)
    widths = {party: width for party, width in predictor.widths.items() if party != LABEL_PARTY}
    shares = {f"share_{party}": torch.zeros(_EXAMPLES, width) for party, width in widths.items()}
    return _Half(TopGraph(predictor, bottom).eval(), shares | inputs, encoder, "probabilities", about | facts)


def _reads(run: RunFolder, party: str, own: OwnParts | None) -> tuple[dict[str, Tensor], EncoderState | None]:
    """Return an example of what a party's bottom half reads, and how its table is encoded, if it has one."""
    like = inputs_like_those_of_training(run, party, own or run.own_parts(party))
    if isinstance(like, Features):
        encoder = run.encoder(party)
        categorical = torch.zeros(_EXAMPLES, len(encoder.categories), dtype=torch.int32)
        return {"categorical": categorical, "numeric": torch.zeros(_EXAMPLES, len(encoder.numeric_fields))}, encoder
    batch = Batches(like).batch(np.arange(_EXAMPLES) % len(like))
    return {f"input_{number}": array for number, array in enumerate(batch)}, None


def _write(half: _Half, out: Path) -> Card:
    missing = write_formats(half.graph, half.inputs, half.output, out)
    shipped = {"predict.py": _source(predict_script)}
    if half.encoder is not None:
        shipped |= {"encode.py": _source(row_encoder), "spelling.py": _source(spelling)}
        shipped["encoder.json"] = json.dumps(half.encoder.plain(), ensure_ascii=False)
    for name, text in shipped.items():
        write_atomically(out / name, text.encode())
    with torch.no_grad():
        example = half.graph(*half.inputs.values())
    files = [PT2, ONNX, WEIGHTS, *sorted(shipped)]
    card = half.facts | {
        "inputs": [_described(name, tensor) for name, tensor in half.inputs.items()],
        "output": _described(half.output, example),
        "columns": dict(half.encoder.columns) if half.encoder is not None else {},
        "files": {name: f"not written: {missing[name]}" if name in missing else "written" for name in files},
    }
    write_atomically(out / "MODEL_CARD.md", as_markdown(card))
    write_atomically(out / "card.json", as_json(card))
    return card


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
