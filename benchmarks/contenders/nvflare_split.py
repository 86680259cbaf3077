"""Split learning with NVFlare's simulator, without privacy. Install: `pip install nvflare==2.9.0 torch`."""

from __future__ import annotations

import sys
from pathlib import Path

from nvflare.collab import CollabRecipe
from nvflare.recipe import SimEnv

from contenders.nvflare_sites import CALL_SECONDS, FEATURE, LABEL, Coordinator, Site


def main() -> None:
    """Run both sites until this process ends."""
    recipe = CollabRecipe(
        job_name="split", server=Coordinator(), client=Site(), min_clients=2, sync_task_timeout=CALL_SECONDS
    )
    recipe.set_client_prop("task", sys.argv[1])
    recipe.execute(SimEnv(clients=[FEATURE, LABEL], workspace_root=str(Path.cwd()), log_config="ERROR"))


if __name__ == "__main__":
    main()
