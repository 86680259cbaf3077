"""The page of real runs, and copies of runs to change."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .live_service import Service
from .many_runs import make_runs

if TYPE_CHECKING:
    from tpsl.report.run_view import RunView


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory, views: list[RunView]) -> Path:
    from tpsl.report.page import write_page

    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(path, views, title=f"A report {views[-1].name}", about="About the runs.")
    return path


@pytest.fixture
def copied(runs: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Copy a run, to change it."""

    def copy(name: str) -> Path:
        shutil.copytree(runs / name, tmp_path / name)
        return tmp_path / name

    return copy


@pytest.fixture(scope="session")
def many_runs(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 300 runs of three data sets, for tests that only read."""
    place = tmp_path_factory.mktemp("many") / "runs"
    make_runs(runs / "laplace", place)
    return place


@pytest.fixture
def serve() -> Iterator[Callable[..., Service]]:
    """Start `tpsl ui` for a folder, as one party; it ends with the test."""
    started: list[Service] = []

    def start(folder: Path, party: str = "label") -> Service:
        started.append(Service(folder, party))
        return started[-1]

    yield start
    for service in started:
        service.stop()
