"""Commands are run through `main()`, as the installed script does, but in this process: a new one costs seconds."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tpsl.cli.main import main


@dataclass(frozen=True)
class Outcome:
    """What a command left behind in the shell."""

    status: int
    stdout: str
    stderr: str

    def json(self) -> dict[str, Any]:
        """All of stdout as one JSON object, of a command that succeeded."""
        assert self.status == 0, self.stderr
        content = json.loads(self.stdout)
        assert isinstance(content, dict)
        return content

    def error(self, status: int = 1) -> str:
        """The one sentence of a command that failed."""
        assert self.status == status, self.stdout + self.stderr
        assert self.stdout == ""
        assert "Traceback" not in self.stderr
        (sentence,) = [line for line in self.stderr.splitlines() if line.startswith("error: ")]
        assert self.stderr.rstrip().endswith(sentence)
        return sentence


Tpsl = Callable[..., Outcome]


@pytest.fixture
def tpsl(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tpsl:
    """Run the command `tpsl` with these arguments."""

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["tpsl", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        captured = capsys.readouterr()
        return Outcome(end.value.code or 0, captured.out, captured.err)

    return run


SMALL_JOB: dict[str, Any] = {
    "data": {
        "source": "synthetic",
        "rows": 400,
        "numeric_fields": 3,
        "categorical_fields": 2,
        "largest_vocabulary": 8,
    },
    "privacy": {"mechanism": "laplace", "epsilon": 2.0, "estimator": "linear"},
    "model": {"embedding_dim": 4, "bottom": [8], "top": [8]},
    "training": {"batch_size": 50, "epochs": 1},
}


@pytest.fixture
def small_job(tmp_path: Path) -> Path:
    """A job file that trains in a moment."""
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(SMALL_JOB))
    return path
