"""What the label party computes from true labels when a search has ended: the test metrics of all candidates.

As for one run (`tpsl.run.after_training`), the label party of a search over a network does it in a process of its
own (`tpsl label evaluate OUT`), and one process at once.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path

from tpsl.data.sides import LabelSide
from tpsl.data.true_labels import reveal
from tpsl.model.predictors import mixture
from tpsl.model.trained import TrainedModel
from tpsl.progress import no_progress
from tpsl.run.after_training import evaluate_run, load_true_labels
from tpsl.run.evaluation import TEST_METRICS, evaluate
from tpsl.run.local import Local
from tpsl.run.observer import Watching
from tpsl.run.run_folder import RunFolder
from tpsl.select.candidates import NOT_EVALUATED, Candidate, TuneResult, read_result, write_result


def evaluate_search(
    out: Path, local: Local, watched: Callable[[RunFolder], AbstractContextManager[Watching]]
) -> TuneResult:
    """Add to the label party's finished search what is computed from true labels, and return the whole result.

    Nothing is released and nothing is sent. `watched` shows what is done with each run.
    """
    result, model = read_result(out), TrainedModel.open(out)
    side = load_true_labels(model.run, local, no_progress)
    for run in model.runs():
        with watched(run) as watching:
            evaluate_run(run, local, watching, side)
    result = with_test_metrics(result, out, side)
    write_result(out, result)
    return result


def with_test_metrics(result: TuneResult, out: Path, side: LabelSide) -> TuneResult:
    """Return the result with the test metrics of its candidates, whose runs are evaluated, and of their ensemble."""
    runs = {candidate.run: RunFolder(out / "runs" / candidate.run) for candidate in result.candidates}
    epochs = {name: {entry["epoch"]: entry for entry in run.metrics()} for name, run in runs.items()}

    def tested(candidate: Candidate) -> Candidate:
        entry = NOT_EVALUATED | epochs[candidate.run][candidate.epoch]
        return replace(candidate, **{name: entry[name] for name in TEST_METRICS})

    predicted = mixture(
        (candidate.weight, runs[candidate.run].predictions(candidate.epoch)["test"]) for candidate in result.candidates
    )
    return replace(
        result,
        candidates=tuple(map(tested, result.candidates)),
        best=tested(result.best),
        ensemble=replace(result.ensemble, **asdict(evaluate(predicted, reveal(side.labels)[side.records.test]))),
    )
