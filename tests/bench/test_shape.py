from pathlib import Path

import numpy as np
import pytest

from tpsl.bench.shape import Shape
from tpsl.data.features import table_features

SMALL = Shape(batch=16, steps=3, fields=5, largest_vocabulary=20, embedding_dim=2, bottom=(4, 3), top=(4,))


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    SMALL.write(tmp_path)
    assert Shape.read(tmp_path) == SMALL


def test_what_is_written_is_what_this_package_trains_on(tmp_path: Path) -> None:
    SMALL.write(tmp_path)
    data = SMALL.records()
    (features,) = (table_features(inputs, "a test") for inputs in data.feature_parties.values())
    written = np.load(tmp_path / "categorical.npy")
    assert (written == features.categorical[data.train]).all()
    assert len(np.load(tmp_path / "labels.npy")) == len(written) >= SMALL.steps * SMALL.batch


@pytest.mark.parametrize("parties", [2, 3])
def test_parties_share_the_fields(parties: int) -> None:
    shape = Shape(batch=16, steps=3, fields=5, largest_vocabulary=20, parties=parties)
    whole = Shape(batch=16, steps=3, fields=5, largest_vocabulary=20).records()
    data, job = shape.records(), shape.job()
    shares = [table_features(inputs, "a test") for inputs in data.feature_parties.values()]
    assert list(data.feature_parties) == [file.party for file in job.data.features]  # type: ignore[union-attr]
    (all_fields,) = (table_features(inputs, "a test") for inputs in whole.feature_parties.values())
    assert tuple(name for share in shares for name in share.categorical_fields) == all_fields.categorical_fields
    for share in shares:
        assert share.categorical.min() == 0
        first = all_fields.categorical_fields.index(share.categorical_fields[0])
        columns = all_fields.categorical[:, first : first + len(share.categorical_fields)]
        assert (np.diff(columns) == np.diff(share.categorical)).all()


def test_no_checkpoint_disturbs_a_step() -> None:
    assert SMALL.job().training.checkpoint_every > SMALL.steps
    assert SMALL.job(wire="bfloat16").training.wire == "bfloat16"
