"""The engine `spu`: RR22 of the library spu finds the common records of two parties, faster than `ecdh`.

S. Raghuraman and P. Rindal: *Blazing Fast PSI from Improved OKVS and Subfield VOLE*, CCS 2022; semi-honest. Both
parties learn the intersection, so only the mode `both` can have it. The feature party computes it and tells the label
party. What the feature party says of its records afterwards, salted hashes as in the engine `plain`, is then about
records that it knows to be on the label party's list; the label party sends no hash of its own.

spu lives in an environment of its own and runs as a process that can reach nothing but one folder (`spu_process`); it
talks to its peer through the channel of the parties (`tunnel`).
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from tpsl.alignment import spu_process
from tpsl.alignment.aligning_party import AligningParty
from tpsl.alignment.errors import AlignmentError
from tpsl.alignment.group import POINT_BYTES, Bytes32
from tpsl.alignment.key_table import KeyTable
from tpsl.alignment.terms import MOST_RECORDS
from tpsl.alignment.tunnel import Tunnel, started
from tpsl.data.order import Rows
from tpsl.files import make_private_folder, write_atomically
from tpsl.training.local import Local, LocalError
from tpsl.training.receiving import receive
from tpsl.transport.channel import Channel, Meeting, PeerRestarted
from tpsl.transport.checks import BadMessage
from tpsl.transport.messages import Announcement
from tpsl.transport.peers import LABEL_PARTY, described

_FOUND = np.dtype("<i8")
# More than RR22 takes: 0.9 MB, and 41 bytes for each record of the longer list from the feature party, 13 back.
_BYTES, _BYTES_PER_RECORD = 2 << 20, 64


@dataclass(frozen=True)
class SpuEngine:
    """An interpreter that has spu; `version` must be the peer's."""

    python: Path
    version: str

    @classmethod
    def of(cls, local: Local) -> Self:
        """Return the engine of a party, if it works."""
        if local.spu_python is None:
            raise LocalError("the engine spu needs an interpreter that has it: `spu_python` in the local file")
        try:
            command = _command(local.spu_python, "--version")
            said = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/proc/self")  # noqa: S603
        except (OSError, subprocess.CalledProcessError) as error:
            reason = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1]
            raise LocalError(f"spu_python: {local.spu_python} cannot run spu ({reason})") from error
        return cls(local.spu_python, said.stdout.strip())

    async def keep_common(self, side: AligningParty, table: KeyTable, meeting: Meeting) -> None:
        """Give a side those records of a table that both parties have, each with the key by which it was found.

        Done once: where a process was killed before the outcome was kept, the alignment has to begin anew. A peer that
        might ask again could ask for every key there is.
        """
        kept = side.working.path / "common"
        if not kept.exists():
            folder = side.working.path / "spu"
            if folder.exists():
                raise AlignmentError(
                    f"{side.working.folder}: was interrupted while spu compared; remove it at both parties to begin "
                    "anew"
                )
            try:
                (channel,) = (await meeting.gather()).values()
                write_atomically(kept, (await self._found(side, table, channel, folder)).tobytes())
            except PeerRestarted as error:
                raise AlignmentError(
                    f"{described(error.peer)} was restarted while spu compared: remove the folder of the alignment at "
                    "both parties to begin anew"
                ) from error
        side.table = _reduced(table, np.fromfile(kept, _FOUND).reshape(-1, 2))
        if not len(side.table):
            raise AlignmentError("the parties have no record in common")

    async def _found(self, side: AligningParty, table: KeyTable, channel: Channel, folder: Path) -> Rows:
        """Return which records of a table are common, and by which key: [n, 2]; the other side has found the same."""
        theirs = await self._announced(side, len(table), channel)
        free, found = np.ones(len(table), bool), []
        make_private_folder(folder)
        rank, most = int(side.name != LABEL_PARTY), max(len(table), theirs) + 1
        command, in_all = _command(self.python, str(rank), str(most)), _BYTES + _BYTES_PER_RECORD * most
        for key, name in enumerate(side.terms.keys):
            side.watching.progress(key, len(side.terms.keys), f"spu compares by {name}")
            places, work = np.flatnonzero(free), folder / str(key)
            make_private_folder(work)
            _write_keys(work / spu_process.KEYS, table.digests[places, key])
            with started(command, work, rank) as program:
                tunnel = Tunnel(channel, side.watching.observer, key, at_once=side.terms.batch, in_all=in_all)
                await tunnel.carry(program)
            common = places[_read_places(work / spu_process.FOUND, len(places))]
            free[common] = False
            found.append(np.column_stack([common, np.full(len(common), key)]))
        together = np.concatenate(found)
        return together[np.argsort(together[:, 0])].astype(_FOUND)

    async def _announced(self, side: AligningParty, records: int, channel: Channel) -> int:
        """Tell the peer how many records this side has; return how many the peer has."""
        await channel.send(Announcement(self.version.encode(), (records,)))
        said = await receive(channel, side.watching.observer, Announcement)
        peer = described(channel.peer)
        if len(said.records) != 1 or not 0 < said.records[0] <= MOST_RECORDS:
            raise BadMessage(f"{peer} announces {said.records} records")
        if said.identity != self.version.encode():
            raise AlignmentError(f"{peer} has spu {said.identity!r}, this party {self.version}: take the same version")
        side.watching.notice(f"{peer} has {said.records[0]:,} records to align")
        return said.records[0]


def _command(python: Path, *arguments: str) -> list[str]:
    return [str(python), "-I", str(spu_process.__file__), *arguments]


def _write_keys(path: Path, digests: Bytes32) -> None:
    """Write keys and their places for spu, and a random one.

    spu sends its peer a hash of all keys together. With the random one nobody can guess what it is a hash of.
    """
    digests = np.concatenate([digests, np.frombuffer(os.urandom(POINT_BYTES), np.uint8)[None]])
    keys = np.frombuffer(digests.tobytes().hex().encode(), f"S{2 * POINT_BYTES}")
    columns = {"key": pa.array(keys).cast(pa.string()), "place": pa.array(np.arange(len(keys)))}
    pa_csv.write_csv(pa.table(columns), path)


def _read_places(path: Path, count: int) -> Rows:
    """Return the places that spu has found, of `count`, ascending."""
    found: Any = pa_csv.read_csv(path, convert_options=pa_csv.ConvertOptions(include_columns=["place"]))
    places: Rows = np.unique(found["place"].to_numpy().astype(np.int64))
    if len(places) != len(found) or (len(places) and not 0 <= places[0] <= places[-1] < count):
        raise AlignmentError(f"spu has found {len(found)} records that are not all different ones of {count}")
    return places


def _reduced(table: KeyTable, found: Rows) -> KeyTable:
    places, keys = found.T
    digests = np.frombuffer(os.urandom(len(found) * table.digests[0].size), np.uint8)
    digests = digests.reshape(len(found), *table.digests.shape[1:]).copy()
    digests[np.arange(len(found)), keys] = table.digests[places, keys]
    return KeyTable(table.rows[places], digests, table.source)
