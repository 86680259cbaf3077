from pathlib import Path

from tpsl.run.job import make_job
from tpsl.run.observer import Watching
from tpsl.run.one_process import train


def test_training_warns_of_a_column_that_is_like_an_id(tmp_path: Path) -> None:
    rows = "".join(f"{i},user{i},{i % 7},{i % 2}\n" for i in range(200))
    (tmp_path / "table.csv").write_text(f"id,user,x,label\n{rows}")
    file = {"path": str(tmp_path / "table.csv"), "categorical": ["user"], "numeric": ["x"]}
    content = {
        "data": {"source": "table", "features": [file], "label": {"path": file["path"]}},
        "model": {"bottom": [4], "top": []},
        "training": {"epochs": 1, "batch_size": 160},
    }
    said: list[str] = []
    train(make_job(content, {}, "test"), tmp_path / "run", watching=Watching(notice=said.append))
    assert [text for text in said if "as an id would" in text] == [
        "the column 'user' of feature hardly repeats a value, as an id would: it teaches nothing, and may tell who a "
        "record is about"
    ]
