from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from tpsl.on_ray.cluster import Surroundings


def test_ray_has_nothing_to_show_of_the_keys_that_processes_get(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    metadata = pytest.importorskip("ray.data._internal.metadata_exporter")
    settings = pytest.importorskip("ray.train.v2._internal.state.schema")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    here = Surroundings.of_this_process()
    shown = [metadata.sanitize_for_struct({"here": here}), settings._to_json_serializable_value({"here": here})]
    assert "Surroundings" in str(shown) and "hidden" not in f"{shown} {here} {here!r}"
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.chdir("/")
    pickle.loads(pickle.dumps(here)).enter()
    assert (Path.cwd(), os.environ["AWS_SECRET_ACCESS_KEY"]) == (tmp_path, "hidden")
