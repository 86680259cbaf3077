"""The place of the label party's vaults: one folder that a user can see, move and back up, `vaults` beside `runs`."""

import os
from pathlib import Path

VARIABLE = "TPSL_VAULTS"
"""The environment variable that names another place."""


def default_place() -> Path:
    """The folder of the label party's vaults: `vaults` in the current folder, unless the environment names another."""
    return Path(os.environ.get(VARIABLE) or "vaults")
