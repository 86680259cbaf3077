"""New records that the parties know under the alignment of their files."""

from pathlib import Path
from typing import Any

import pyarrow.csv
import pytest

from tpsl.alignment.parties import align_all
from tpsl.model.records import predict_records, read_records, require_same_records
from tpsl.model.trained import TrainedModel
from tpsl.run.job import Job, make_job
from tpsl.run.local import LocalError, own_data
from tpsl.run.observer import UNWATCHED
from tpsl.run.one_process import train
from tpsl.run.run_folder import RunFolder
from tpsl.tables import DataError


def aligned_job(shops: Any, folder: Path, mode: str) -> Job:
    found = shops.tables(200, seed=1)
    paths = shops.write(folder, {"shop": found["shop"], "label": found["label"].take(list(range(150)))})
    content = shops.table_job(paths, label_features=False).model_dump(mode="json")
    content["data"]["alignment"] = {"mode": mode}
    content["data"]["features"][0]["alignment"] = str(folder / "aligned-shop")
    content["data"]["label"]["alignment"] = str(folder / "aligned-label")
    job = make_job(content, {}, "test")
    align_all(job, UNWATCHED)
    return job


@pytest.mark.parametrize("mode", ["label-only", "both"])
def test_each_party_finds_the_scores_under_its_own_ids(mode: str, shops: Any, tmp_path: Path) -> None:
    job = aligned_job(shops, tmp_path, mode)
    train(job, tmp_path / "run")
    found = shops.tables(30, seed=2, first=5000)
    new = tmp_path / "new"
    paths = shops.write(new, {"shop": found["shop"].take(list(range(20))), "label": found["label"].take([29, 3, 11])})
    moved = own_data(job, "shop", paths["shop"], new / "aligned-shop")
    align_all(own_data(moved, "label", paths["label"], new / "aligned-label"), UNWATCHED)
    run = RunFolder(tmp_path / "run")
    records = {party: read_records(run, party, str(paths[party]), new / f"aligned-{party}") for party in paths}
    require_same_records(records)
    scores = {}
    for party, held in records.items():
        predict_records(TrainedModel.open(run.path).halves(), {"shop": records["shop"]}, ("0", "1")).write(
            new / "scores.csv", held
        )
        table = pyarrow.csv.read_csv(new / "scores.csv")
        scores[party] = dict(zip(table["id"].to_pylist(), table["score"].to_pylist(), strict=True))
    count = 20 if mode == "label-only" else 2
    assert len(scores["shop"]) == len(scores["label"]) == count
    assert scores["shop"].keys() <= set(found["shop"]["customer"].to_pylist())
    assert list(scores["label"])[:2] == ["c05003", "c05011"]
    assert [scores["label"][name] == scores["shop"][name] for name in ("c05003", "c05011")] == [True, True]
    plain = read_records(run, "shop", str(paths["shop"]))
    network = TrainedModel.open(run.path).halves()
    alone = network.probabilities({"shop": plain.inputs}) if plain.inputs is not None else None
    assert alone is not None
    by_id = dict(zip(plain.ids.to_pylist(), alone.tolist(), strict=True))
    assert {name: by_id[name] for name in scores["shop"]} == pytest.approx(scores["shop"], abs=1e-6)


def test_an_alignment_of_another_file_or_of_a_job_without_one_is_refused(
    shops: Any, tmp_path: Path, three_parties: Path
) -> None:
    train(aligned_job(shops, tmp_path, "both"), tmp_path / "run")
    other = shops.write(tmp_path / "other", {"shop": shops.tables(20, seed=3)["shop"]})["shop"]
    with pytest.raises(DataError, match=r"has other keys or rows than when .* align again"):
        read_records(RunFolder(tmp_path / "run"), "shop", str(other), tmp_path / "aligned-shop")
    with pytest.raises(LocalError, match=r"the job has no data\.alignment"):
        read_records(RunFolder(three_parties), "shop", str(other), tmp_path / "aligned-shop")
