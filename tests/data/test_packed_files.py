import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tpsl.data.dataset import Dataset, load
from tpsl.data.true_labels import reveal
from tpsl.tables import DataError, reading
from tpsl_research.clicklog import AvazuData, CriteoData

Lines = Callable[..., list[str]]


def same(one: Dataset, other: Dataset) -> bool:
    mine, theirs = one.feature_parties["feature"], other.feature_parties["feature"]
    encoded = np.array_equal(mine.categorical, theirs.categorical) and np.array_equal(mine.numeric, theirs.numeric)
    return encoded and np.array_equal(reveal(one.labels), reveal(other.labels)) and one.ids.equals(other.ids)


def test_every_form_of_a_file_holds_the_same_records(tmp_path: Path, criteo_lines: Lines) -> None:
    text = "".join(line + "\n" for line in criteo_lines(100)).encode()
    forms = {
        "train.txt": text,
        "train.txt.gz": gzip.compress(text),
        "train.txt.zst": pa.compress(text, codec="zstd", asbytes=True),
        "two members.gz": gzip.compress(text[:5000]) + gzip.compress(text[5000:]),
        "no last line end.txt": text[:-1],
        "of windows.txt": text.replace(b"\n", b"\r\n"),
    }
    for name, content in forms.items():
        (tmp_path / name).write_bytes(content)
    plain = load(CriteoData(path=tmp_path / "train.txt"))
    for name in forms:
        assert same(load(CriteoData(path=tmp_path / name)), plain), name


@pytest.mark.parametrize("size", [1000, 20_000])
def test_where_blocks_end_does_not_matter(
    tmp_path: Path, criteo_lines: Lines, avazu_lines: Lines, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    configs = CriteoData(path=tmp_path / "train.txt"), AvazuData(path=tmp_path / "train.csv")
    for config, lines in zip(configs, (criteo_lines(60), avazu_lines(60)), strict=True):
        config.path.write_text("\n".join(lines))
    whole = [load(config) for config in configs]
    broken = tmp_path / "broken.txt"
    broken.write_text("\n".join([*criteo_lines(59), "2"]))
    monkeypatch.setattr(reading, "BLOCK_BYTES", size)
    assert all(same(load(config), before) for config, before in zip(configs, whole, strict=True))
    with pytest.raises(DataError, match=r"broken\.txt: cannot be read, row 60: 1 columns instead of 40"):
        load(CriteoData(path=broken))


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_a_compressed_file_that_is_cut_off_is_refused(tmp_path: Path, criteo_lines: Lines, ending: str) -> None:
    text = "".join(line + "\n" for line in criteo_lines(4000)).encode()
    path = tmp_path / f"train.{ending}"
    path.write_bytes(gzip.compress(text) if ending == "gz" else pa.compress(text, codec="zstd", asbytes=True))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 9 // 10])
    with pytest.raises(DataError, match=rf"train\.{ending}: cannot be read, it is damaged"):
        load(CriteoData(path=path))


def test_what_is_not_what_its_ending_says_is_named(tmp_path: Path) -> None:
    for ending in ("gz", "zst"):
        (tmp_path / f"train.{ending}").write_bytes(b"0\t1\t2\n" * 100)
        with pytest.raises(DataError, match=rf"train\.{ending}: cannot be read, it is damaged"):
            load(CriteoData(path=tmp_path / f"train.{ending}"))
