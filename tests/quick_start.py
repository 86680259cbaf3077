"""Programs that need not import torch: each runs in a fork of a process that has.

`serve` is that process, already with everything imported. CLIENT is what stands in a program's place: it hands over its
arguments, folder, environment and streams, passes signals on, and ends as the fork ends. A client that is killed takes
its fork with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from pathlib import Path

CLIENT = """#!{python} -IS
import json, os, signal, socket, sys

with socket.socket(socket.AF_UNIX) as connection:
    connection.connect({address!r})
    asked = {{"command": {command!r} + sys.argv[1:], "folder": os.getcwd(), "environment": dict(os.environ)}}
    socket.send_fds(connection, [b" "], [0, 1, 2])
    connection.sendall(json.dumps(asked).encode() + b"\\n")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: connection.send(bytes([number])))
    status = connection.recv(1)
sys.exit(status[0] if status else 1)
"""


def write_client(path: Path, address: Path, command: list[str]) -> None:
    """Make `path ARGUMENTS` mean `python COMMAND ARGUMENTS`."""
    path.write_text(CLIENT.format(python=sys.executable, address=str(address), command=command), encoding="utf-8")
    path.chmod(0o755)


def serve(address: str) -> None:
    """Run what clients ask for, until this process is killed; must be called before it has threads."""
    door = socket.socket(socket.AF_UNIX)
    door.bind(f"{address}.new")
    door.listen()
    Path(f"{address}.new").rename(address)  # Who sees the name can connect.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = door.accept()
        if not os.fork():
            door.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return keep(connection)
        connection.close()


def keep(connection: socket.socket) -> None:
    """Run one program and stay between it and its client; in the program's own process, return at its end."""
    request, streams, _, _ = socket.recv_fds(connection, 1, 3)
    while not request.endswith(b"\n"):
        request += connection.recv(1 << 16) or b"\n"
    ended, lives = os.pipe()  # The end of the program closes the other end.
    program = os.fork()
    if not program:
        connection.close(), os.close(ended)
        return become(streams, **json.loads(request))
    for stream in (*streams, lives):
        os.close(stream)
    while ended not in (ready := select.select([ended, connection], [], [])[0]):
        said = connection.recv(1) if connection in ready else b""
        os.kill(program, said[0] if said else signal.SIGKILL)
        if not said:
            break
    status = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    with contextlib.suppress(OSError):  # The client may be gone.
        connection.send(bytes([status if status >= 0 else 128 - status]))
    os._exit(0)


def become(streams: list[int], command: list[str], folder: str, environment: dict[str, str]) -> None:
    """Be `python COMMAND` in this folder, with these streams."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout = open(0, encoding="utf-8"), open(1, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8")  # noqa: SIM115
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = command
    sys.path[:0] = [str(Path(command[0]).parent), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    runpy.run_path(command[0], run_name="__main__")
