"""What a feature party reads off the transcript with nothing but the agreement in its hands."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tpsl.attacks.evidence import Evidence
from tpsl.attacks.white_box import WhiteBox
from tpsl.data.dataset import load
from tpsl.data.true_labels import reveal
from tpsl.run.job import make_job
from tpsl.run.one_process import train
from tpsl.run.run_folder import RunFolder
from tpsl.run.transcript import Transcript
from tpsl.vault import Vault


@pytest.mark.parametrize("model", [{}, {"members": 2, "bottom": [32], "top": [32]}], ids=["one network", "members"])
def test_the_job_and_the_first_step_show_every_noisy_label(model: dict[str, int], tmp_path: Path) -> None:
    """The job's seed fixes the label party's initial weights: nothing of the other side has to be known or guessed."""
    content = {
        "data": {"source": "synthetic", "rows": 3000, "numeric_fields": 4, "categorical_fields": 2},
        "privacy": {"mechanism": "discrete", "epsilon": 1.0},
        "model": model,
        "training": {"batch_size": 1000, "epochs": 1},
    }
    vault_path = tmp_path / "vault"
    train(make_job(content, {}, "test"), tmp_path / "run", record_steps=1, vault=vault_path)

    # What the feature party has: the agreement, and what it saw itself.
    job, transcript = RunFolder(tmp_path / "run").job(), Transcript(tmp_path / "run" / "feature" / "transcript")
    first = next(iter(transcript))
    mechanism = job.privacy.build(2)
    white_box = WhiteBox(job, ["feature"], 2)
    found = Evidence(white_box, mechanism, job.privacy.estimator).read(first)
    assert found.readable.all()

    data = load(job.data)
    with Vault.open(vault_path) as vault:
        noisy = vault.noisy_labels(mechanism, data.ids.take(pa.array(first.rows)))
    assert ((found.evidence > 0) == (noisy.draws[0] == 1)).all()
    assert 0.2 < np.mean(noisy.draws[0] != reveal(data.labels)[first.rows]) < 0.34  # flipped with probability 0.269


def test_later_weights_do_not_follow_from_the_job(tmp_path: Path) -> None:
    content = {
        "data": {"source": "synthetic", "rows": 400, "numeric_fields": 2, "categorical_fields": 1},
        "privacy": {"epsilon": 1.0},
        "model": {"bottom": [4], "top": []},
        "training": {"batch_size": 100, "epochs": 1},
    }
    job = make_job(content, {}, "test")
    train(job, tmp_path / "run", record_steps=2)
    transcript = Transcript(tmp_path / "run" / "feature" / "transcript")
    _, second = transcript
    with pytest.raises(ValueError, match="not those before step 1"):
        WhiteBox(job, ["feature"], 2).read(second)
