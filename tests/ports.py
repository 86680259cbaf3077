"""Ports for servers that a test starts later, and maybe again, at the same place.

A port that was bound and let go may be given to anybody's outgoing connection, or server, before it is bound again.
"""

import itertools
import os
import socket

_OF_A_WORKER, _MOST_IN_A_ROW = 1_500, 10
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_FIRST = 20_000 + _OF_A_WORKER * (_WORKER % 8)
_places = itertools.count(os.getpid())  # tests that are run twice at once begin elsewhere


def free_port(count: int = 1) -> int:
    """Return a port, or the first of several in a row, that this process has not returned before.

    The kernel gives it to nobody who lets it choose, and no other worker of these tests takes it.
    """
    assert count <= _MOST_IN_A_ROW
    while True:
        place, *_ = [next(_places) for _ in range(count)]
        port = _FIRST + place % (_OF_A_WORKER - _MOST_IN_A_ROW)
        if all(map(_is_free, range(port, port + count))):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
