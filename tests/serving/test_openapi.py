"""The OpenAPI document is what the running services do: schemathesis asks them for all of it, and finds nothing."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tpsl.serving.http_server import HttpAccess

TOKEN = "a secret of 27 characters.."
SETTINGS = """
[checks.not_a_server_error] # that a service is busy, or another party silent, is no error of the service
expected-statuses = ["2xx", "3xx", "4xx", 502, 503, 504]
[checks.negative_data_rejection] # too many records are refused as such
expected-statuses = [400, 401, 403, 404, 405, 413]
"""


@pytest.mark.parametrize("party", ["shop", "label"])
def test_schemathesis_finds_nothing(served_runs: Path, serve: Callable[..., Any], tmp_path: Path, party: str) -> None:
    """Whether a text is a number or a date the encoder knows, and no schema: so some records that fit are refused."""
    (tmp_path / "schemathesis.toml").write_text(SETTINGS)

    async def main() -> None:
        http = HttpAccess("127.0.0.1:0", TOKEN)
        async with serve(served_runs / "alone", "shop", deadline=0.2, http=http) as served:
            service = served.label if party == "label" else served.features[party]
            words = ["--config-file", str(tmp_path / "schemathesis.toml"), "run", f"{service.url}/openapi.json"]
            words += ["--header", f"Authorization: Bearer {TOKEN}", "--exclude-checks", "positive_data_acceptance"]
            words += ["--max-examples", os.environ.get("TPSL_SCHEMATHESIS", "15"), "--seed", "1", "--no-color"]
            program = Path(sys.executable).parent / "schemathesis"
            found = await asyncio.to_thread(
                subprocess.run, [program, *words], cwd=tmp_path, capture_output=True, text=True, check=False
            )
            assert found.returncode == 0, found.stdout + found.stderr
            assert not served.notices, "no handler has failed"

    asyncio.run(main())
