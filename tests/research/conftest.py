"""Invented click logs, and a cache for each test."""

import pytest
from tests import click_logs
from tests.cli.conftest import small_job, table_job, tpsl
from tests.click_logs import Lines

__all__ = ["small_job", "table_job", "tpsl"]


@pytest.fixture
def criteo_lines() -> Lines:
    """Return a function of (rows, seed) that invents lines of Criteo's `train.txt`."""
    return click_logs.criteo_lines


@pytest.fixture
def avazu_lines() -> Lines:
    """Return a function of (rows, seed) that invents lines of Avazu's `train.csv`, the header first."""
    return click_logs.avazu_lines


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has a cache of its own: none finds what another has kept."""
    monkeypatch.setenv("TPSL_CACHE", str(tmp_path_factory.mktemp("cache")))
