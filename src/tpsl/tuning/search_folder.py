"""What a search leaves in its folder beside its runs.

OUT/tune.json      the candidates; at the label party with their weights, what judged them and the committee
OUT/best.yaml      the job of the best candidate; label party
OUT/release.json   a digest of the noisy labels that all runs share; label party
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tpsl.files import read_plain, write_atomically
from tpsl.model.trained import TUNE
from tpsl.tuning.candidates import Trial, TuneResult
from tpsl.vault import NoisyLabels

_HEAD = "# Chosen by noisy labels alone. On those of {vault} this job gives the weights of the best candidate again.\n"


def check_release(out: Path, noisy: NoisyLabels) -> None:
    """Refuse a folder with runs on other noisy labels: their candidates would be judged by labels they saw."""
    digest = hashlib.sha256(noisy.mechanism.digest.encode())
    for draw in noisy.draws:
        digest.update(np.ascontiguousarray(draw).tobytes())
    path, found = out / "release.json", {"sha256": digest.hexdigest()}
    if path.exists() and json.loads(path.read_text(encoding="utf-8")) != found:
        raise ValueError(f"{out}: holds runs on another release; choose another --out")
    write_atomically(path, json.dumps(found).encode())


def write_result(out: Path, result: TuneResult) -> None:
    """Write what the label party has found: the committee can predict, and the best job be trained again."""
    write_atomically(out / "best.yaml", (_HEAD.format(vault=result.vault) + result.job.to_yaml()).encode())
    write_atomically(out / TUNE, json.dumps(result.as_dict(), indent=1).encode())


def read_result(out: Path) -> TuneResult:
    """Return what the label party has found."""
    try:
        return TuneResult.from_dict(json.loads(read_plain(out / TUNE)))
    except KeyError as error:
        raise ValueError(f"{out / TUNE}: is no label party's result of a search, it has no {error}") from None
    except (OSError, TypeError) as error:
        raise ValueError(f"{out / TUNE}: cannot be read ({error})") from error


def write_members(out: Path, party: str, trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Write what a feature party knows of the committee: its members, every epoch that was kept, and no weights."""
    members = [
        {"number": number, "configuration": trial.name, "epoch": epoch, "run": trial.run.path.name}
        for number, trial in enumerate(trials)
        if not trial.has_diverged
        for epoch in trial.run.kept_epochs(party)
    ]
    write_atomically(out / TUNE, json.dumps({"party": party, "candidates": members}, indent=1).encode())
    return members
