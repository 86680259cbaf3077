from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tpsl.on_ray.cluster import RayError, Surroundings, require_answer


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


def test_an_address_where_nobody_answers_is_one_sentence() -> None:
    for nobody in ("", "auto", "local"):
        require_answer(nobody)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        require_answer(f"127.0.0.1:{port}")
        require_answer(f"ray://127.0.0.1:{port}")
    for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}", "127.0.0.1:99999"):
        with pytest.raises(RayError, match=f"^no Ray cluster answers at {address}, which RAY_ADDRESS names: "):
            require_answer(address)


# In a process of its own: a cluster of this one is that of the other tests.
ALONE = """
import os
from tpsl.on_ray.cluster import connected

os.umask(0o022)
with connected() as ray:
    session = ray._private.worker._global_node.get_session_dir_path()
    of_workers = ray.get(ray.remote(lambda: oct(os.umask(0o077))).remote())
print(session, of_workers)
print(oct(os.umask(0)))
"""


@pytest.mark.long
def test_what_a_cluster_that_is_made_for_a_command_writes_is_its_owners_only() -> None:
    pytest.importorskip("ray")
    with tempfile.TemporaryDirectory(prefix="r") as folder:
        variables = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        environment = {**variables, "RAY_TMPDIR": folder, "RAY_AUTH_MODE": "disabled"}
        ran = subprocess.run([sys.executable, "-c", ALONE], env=environment, capture_output=True, text=True, check=True)
    session, of_workers, of_the_command = ran.stdout.split()
    assert session.startswith(folder) and (of_workers, of_the_command) == ("0o77", "0o22")
