import math
from pathlib import Path

import pytest

from tpsl.report import RunSummary, write_page

HOSTILE = "<script>alert(1)</script>\"'&[bold]$title"


@pytest.fixture
def rows() -> list[RunSummary]:
    """The three runs of the demo, one with seeded noise and no attack, one whose texts try to break out."""
    return [
        RunSummary(
            "non-private", "none", "linear", math.inf, 0.0, False,
            0.7702134, 0.76731, 0.77312, 1.0, 1.0, 1.0, 1.0, 1.0,
            3, 212345.6, (0.7512, 0.7655, 0.7702134),
        ),
        RunSummary(
            "Laplace, linear (the paper)", "laplace", "linear", 0.9999871, 0.0, True,
            0.7291007, 0.7261, 0.7321, 0.6959, 0.6938, 0.6980, 0.6967347, 0.7310586,
            3, 208345.1, (0.7291, 0.7280, 0.7291007),
        ),
        RunSummary(
            "Discrete, posterior (ours)", "discrete", "posterior", 0.9999993, 0.0, True,
            0.7371113, 0.7341, 0.7401, 0.7315, 0.7295, 0.7335, 0.7310586, 0.7310586,
            2, 209345.9, (0.7301, 0.7371113),
        ),
        RunSummary(
            "seeded", "gaussian", "unbiased", 2.00004, 1.01e-6, False,
            0.71, math.nan, math.nan, math.nan, math.nan, math.nan, math.nan, 0.8808,
            0, 0.0, (),
        ),
        RunSummary(
            HOSTILE, HOSTILE, HOSTILE, 0.5, 0.0, True,
            0.70, 0.69, 0.71, 0.49, 0.48, 0.62, 0.61, 0.6225,
            1, 1e6, (0.70,),
        ),
    ]  # fmt: skip


@pytest.fixture
def page(tmp_path: Path, rows: list[RunSummary]) -> Path:
    path = tmp_path / "report.html"
    write_page(path, rows, title=f"A report {HOSTILE}", facts={"Data set": "flights", HOSTILE: HOSTILE})
    return path
