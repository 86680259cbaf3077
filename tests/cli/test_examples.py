"""The worked examples, from the very files in `examples/`: own images, own text, own networks."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
EPOCHS = {"digits": 4, "text": 2}


class Example:
    """A folder with the files of one example, and the programs that run in it; a run takes a moment."""

    def __init__(self, programs: Callable[..., Any], folder: Path, name: str) -> None:
        self.programs, self.folder = programs, folder
        shutil.copytree(EXAMPLES / name, folder)
        self.parties = sorted(file.stem for file in folder.glob("*.yaml") if file.stem not in ("job", "label"))
        keys = {"training.epochs": EPOCHS[name], "training.checkpoint_every": 5, "local.threads": 1, "local.silence": 3}
        self.short = [f"--set={key}={value}" for key, value in keys.items()]

    def tpsl(self, *arguments: object) -> Any:
        return self.programs(self.folder, *arguments, "--json")

    def train(self, run: str) -> dict[str, Any]:
        """Train in one process, with the local files of all parties."""
        files = [word for party in (*self.parties, "label") for word in ("--local", f"{party}.yaml")]
        result: dict[str, Any] = self.tpsl(
            "train", "job.yaml", *files, *self.short, "--out", run, "--set=local.record_transcript=true"
        ).result()
        return result

    def serve(self) -> tuple[Any, str]:
        """Start the label party; return it and where it listens."""
        serving = ("label", "serve", "job.yaml", "--local", "label.yaml", "--listen", "127.0.0.1:0")
        label = self.tpsl(*serving, "--set=local.log=json", *self.short)
        return label, label.wait_for("listening")["address"]

    def join(self, party: str, address: str) -> Any:
        joining = ("feature", "join", "job.yaml", "--local", f"{party}.yaml", "--connect", address)
        return self.tpsl(*joining, "--set=local.log=json", *self.short)

    def weights(self, *runs: str) -> dict[str, bytes]:
        roots = [self.folder / run for run in runs]
        return {
            str(file.relative_to(root)): file.read_bytes() for root in roots for file in root.glob("*/*.safetensors")
        }


@pytest.fixture(params=["digits", pytest.param("text", marks=pytest.mark.long)])
def example(request: pytest.FixtureRequest, programs: Callable[..., Any], tmp_path: Path) -> Example:
    return Example(programs, tmp_path / request.param, request.param)


def over_a_network(example: Example) -> list[dict[str, Any]]:
    """Train over mutual TLS, a process for each party, one of which is killed and started again; return all results."""
    example.tpsl("certs", "job.yaml").result()
    label, address = example.serve()
    features = {party: example.join(party, address) for party in example.parties}
    killed = example.parties[-1]
    features[killed].wait_for("checkpoint")
    features[killed].signal(signal.SIGKILL)
    label.wait_for("lost", peer=killed)
    features[killed] = example.join(killed, address)
    features[killed].wait_for("resumed")
    results = [label.result(), *(feature.result() for feature in features.values())]
    evaluated = example.tpsl("label", "evaluate", "runs/job-label", "--local", "label.yaml").result()
    return [evaluated, *results[1:]]


def test_an_example_is_trained_killed_resumed_attacked_and_audited(example: Example) -> None:
    label, *features = over_a_network(example)
    one = example.train("one")
    assert label["test_auc"] == one["test_auc"] > 0.6
    assert {result["steps"] for result in (label, *features)} == {one["steps"]}
    weights = example.weights("one")
    assert set(weights) == {"label/top.safetensors", *(f"{party}/bottom.safetensors" for party in example.parties)}
    assert example.weights(*(f"runs/job-{party}" for party in ("label", *example.parties))) == weights

    found = example.tpsl("attack", "one").result()
    best = found["attacks"]["likelihood"]
    assert abs(best["auc"] - best["closed_form"]) < 2.5 * (best["auc_high"] - best["auc_low"]) / 2  # α = 1e-6
    assert {"noisy_label_with_features", "completion", "no_transcript"} <= set(found["attacks"])

    audited = example.tpsl("audit", "one", "--only", "canaries", "--only", "replay", "--only", "vault").result()
    assert audited["passed"]
    assert audited["canaries"]["lower_bound"] > 1.0
    assert audited["replay"]["flipped"] > 500
