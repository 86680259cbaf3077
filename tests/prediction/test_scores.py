"""Files of scores: what was written is read again, and those of a local head are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tpsl.prediction.records import NewRecords
from tpsl.prediction.scores import Scores, place_of_scores, read_scores

IDS = pa.array(["b", "a", "007"])
TWO, THREE = ("no", "yes"), ("none", "few", "many")


def written(path: Path, class_names: tuple[str, ...] = TWO, *, local_head: bool = False) -> np.ndarray:
    rng = np.random.default_rng(1)
    found = rng.random(3) if class_names == TWO else rng.dirichlet([1, 1, 1], 3)
    scores = Scores(class_names)
    scores.add(found.astype(np.float32))
    rows = np.arange(3, dtype=np.int64)
    scores.write(place_of_scores(path, local_head=local_head), NewRecords("new.csv", IDS, None, rows, IDS))
    return found.astype(np.float32)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("class_names", [TWO, THREE])
def test_what_was_written_is_read_again(tmp_path: Path, ending: str, class_names: tuple[str, ...]) -> None:
    expected = written(tmp_path / f"scores.{ending}", class_names)
    ids, found = read_scores(tmp_path / f"scores.{ending}", class_names)
    assert ids.to_pylist() == IDS.to_pylist()
    assert found.dtype == np.float32
    assert (found == expected).all()


def test_scores_of_a_local_head_are_refused_whatever_the_file_is_called(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    for ending in ("csv", "parquet"):
        written(tmp_path / f"scores.{ending}", local_head=True)
        with pytest.raises(ValueError, match="has scores of a local head, NOT PRIVATE"):
            read_scores(tmp_path / f"NOT-PRIVATE-scores.{ending}", TWO)
    (tmp_path / "NOT-PRIVATE-scores.parquet").rename(tmp_path / "scores.parquet")
    with pytest.raises(ValueError, match="has scores of a local head, NOT PRIVATE"):
        read_scores(tmp_path / "scores.parquet", TWO)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("id,score\na,0.5\nb,1.5\n", r"scores.csv: the scores of 'b' are \[1\.5\], no probabilities$"),
        ("id,score\na,0.5\nb,\n", "scores.csv: column 'score', row 2: '' is not a number"),
        ("id,score\na,0.5\na,0.6\n", "scores.csv: id 'a' stands in"),
        ("id,score\na,high\n", "scores.csv: column 'score', .*'high'"),
        ("id,points\na,0.5\n", "scores.csv: .*score"),
    ],
)
def test_what_is_no_score_is_an_error_that_names_it(tmp_path: Path, content: str, sentence: str) -> None:
    (tmp_path / "scores.csv").write_text(content)
    with pytest.raises(ValueError, match=sentence):
        read_scores(tmp_path / "scores.csv", TWO)
