"""`tpsl export`: a party's half of a run as files that need nothing of tpsl."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from tpsl.cli.console import JsonFlag, ModelArgument, Report, answer, notice, warn


def export(
    run: ModelArgument,
    party: Annotated[str, typer.Option(help="Whose half: a feature party's name, or label.")],
    out: Annotated[Path, typer.Option(help="A new folder for it.")],
    head: Annotated[
        Literal["private", "local"],
        typer.Option(help="The label party's head: 'local' was trained on true labels, and is NOT PRIVATE."),
    ] = "private",
    json: JsonFlag = False,
) -> None:
    """Write a party's trained half for its owner: for PyTorch, as ONNX, as safetensors, with encoder and model card.

    The run folder need hold no other party's half. The folder has a script, predict.py, that goes from raw records to
    embeddings or probabilities without tpsl. Needs `pip install 'tpsl[export]'`.

    Example: tpsl export runs/flights --party label --out exported/label
    """
    from tpsl.export.half import export_half
    from tpsl.learners.learning import require_no_learner
    from tpsl.training.run_folder import RunFolder

    require_no_learner(RunFolder(run), "there is no half to export, and `tpsl predict` scores with it")
    notice(f"exporting the half of {party}")
    exported = export_half(run, party, out, head=head)
    folder, card = exported.folder, exported.card
    if head == "local":
        warn("a local head is trained on true labels and is NOT PRIVATE: keep it, and its scores, at the label party")
    for file, state in card["files"].items():
        if state != "written":
            warn(f"{folder / file}: {state}")
    written = ", ".join(file for file, state in card["files"].items() if state == "written")
    steps = {"try it": f"python {folder / 'predict.py'} --help"} if "predict.py" in written else {}
    report = Report(f"Exported the half of {party}", {"folder": folder, "files": written}, steps)
    answer(json, {"folder": str(folder), "card": card}, report)
