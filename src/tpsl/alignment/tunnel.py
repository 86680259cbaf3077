"""A program of this side and its like at the other side, talking through the channel of the parties.

The program knows nothing of networks: it listens at one Unix socket and finds its peer at another, both in its own
private folder. What it says crosses as messages of the channel, under the certificates of the parties, and a network
that breaks for a while is nothing that it notices.
"""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import numpy as np
import torch

from tpsl.alignment.errors import AlignmentError
from tpsl.alignment.terms import TUNNEL
from tpsl.files import open_private
from tpsl.training.observer import Observer
from tpsl.training.receiving import receive
from tpsl.transport.channel import Channel, run_alone
from tpsl.transport.checks import BadMessage
from tpsl.transport.messages import Stop, TensorMessage

OWN_SOCKET, PEER_SOCKET = "own", "peer"
"""In the folder of a program: where it listens, and where it finds its peer."""

_POLL_SECONDS = 0.1


class Program(NamedTuple):
    """A program that has begun to talk; what it prints is in its log."""

    log: Path
    process: subprocess.Popen[bytes]
    connections: tuple[socket.socket, socket.socket]
    """That which the program of the first party has made, and that which the other's has made."""


@contextmanager
def started(command: Sequence[str], folder: Path, rank: int) -> Iterator[Program]:
    """Run a program in a folder until the block ends: that of the first party (rank 0), or of the other."""
    # Names of sockets are short, those of folders need not be: one that is open has a short one.
    descriptor = os.open(folder, os.O_PATH)
    at = Path(f"/proc/self/fd/{descriptor}")
    path = folder / "log"
    with open_private(path, "wb") as log, socket.socket(socket.AF_UNIX) as door:
        door.bind(str(at / PEER_SOCKET))
        door.listen(1)
        door.settimeout(_POLL_SECONDS)
        # Commands that it gives a shell hold the name of its folder for temporary files: one that needs no quotes.
        environment = {"PATH": "/usr/bin:/bin", "TMPDIR": "."}
        process = subprocess.Popen(  # noqa: S603
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            with _accepted(door, process, path) as made, socket.socket(socket.AF_UNIX) as taken:
                taken.connect(str(at / OWN_SOCKET))
                yield Program(path, process, (made, taken) if rank == 0 else (taken, made))
        finally:
            process.kill()
            process.wait()
            os.close(descriptor)


class Tunnel:
    """Carries what a program says to its peer, and what the peer says to it.

    A message holds bytes [n, 1] that a program has sent on the connection `part`; none at all: it has ended, and well.
    """

    def __init__(self, channel: Channel, observer: Observer, step: int, *, at_once: int, in_all: int) -> None:
        """`at_once`: the most bytes of a message; `in_all`: the most that the peer may send."""
        self._channel, self._observer, self._step = channel, observer, step
        self._at_once, self._in_all = at_once, in_all

    async def carry(self, program: Program) -> None:
        """Carry on until both programs have ended well; raise if either has failed, or the channel does."""
        sending = Thread(target=self._send_all, args=(program,), name="tpsl tunnel")
        sending.start()
        try:
            await self._deliver(program)
            for connection in program.connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_WR)
        except BaseException as error:
            if program.process.poll() and not isinstance(error, BadMessage):
                raise AlignmentError(_failure(program.process, program.log)) from error
            program.process.kill()
            raise
        finally:
            sending.join()
        if program.process.returncode:
            raise AlignmentError(_failure(program.process, program.log))

    async def _deliver(self, program: Program) -> None:
        left = self._in_all
        while True:
            message = await receive(self._channel, self._observer, TensorMessage, topics=(TUNNEL,))
            if message.step != self._step or message.part > 1 or message.tensor.shape[1] != 1:
                raise BadMessage(f"{self._channel.peer} sent bytes of another program, or of a third connection")
            if not len(message.tensor):
                return
            left -= len(message.tensor)
            if left < 0:
                raise BadMessage(f"{self._channel.peer} sent more than the {self._in_all} bytes that its records take")
            with suppress(OSError):  # a program that has ended does not listen
                program.connections[message.part].sendall(message.tensor.numpy().data)

    def _send_all(self, program: Program) -> None:
        try:
            run_alone(self._send(program))
        except Exception:  # it is the channel's, and the thread that receives raises it
            program.process.kill()

    async def _send(self, program: Program) -> None:
        with selectors.DefaultSelector() as talking:
            for part, connection in enumerate(program.connections):
                talking.register(connection, selectors.EVENT_READ, part)
            while talking.get_map():
                for ready, _ in talking.select():
                    said = _read(program.connections[ready.data], self._at_once)
                    if said:
                        await self._channel.send(self._message(ready.data, said))
                    else:
                        talking.unregister(ready.fileobj)
        failed = program.process.wait() != 0
        stop = Stop("the program that compares has failed there")
        await self._channel.send(stop if failed else self._message(0, b""))

    def _message(self, part: int, said: bytes) -> TensorMessage:
        return TensorMessage(TUNNEL, self._step, part, torch.from_numpy(np.frombuffer(said, np.uint8)[:, None].copy()))


def _accepted(door: socket.socket, process: subprocess.Popen[bytes], log: Path) -> socket.socket:
    """Return the connection that the program makes."""
    while process.poll() is None:
        with suppress(TimeoutError):
            connection, _ = door.accept()
            connection.setblocking(True)
            return connection
    raise AlignmentError(_failure(process, log))


def _read(connection: socket.socket, most: int) -> bytes:
    with suppress(OSError):
        return connection.recv(most)
    return b""


def _failure(process: subprocess.Popen[bytes], log: Path) -> str:
    return f"the program that compares has failed (status {process.returncode}); what it printed is in {log}"
