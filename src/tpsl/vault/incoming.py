"""Files on their way into a vault: each is read once, by whichever process, and then all of them enter together.

What was read lies in the folder `incoming` of the vault, a file for each, until the vault has it. So a command that was
killed goes on with the files that were not read yet, and the vault has all of them or none: one transaction, one entry
of the ledger. What lies there is as secret as the vault.
"""

import fcntl
import hashlib
import json
import multiprocessing
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa

from tpsl.files import (
    DiskFull,
    make_private_folder,
    naming_what_does_not_fit,
    open_private,
    remove_drafts,
    sync_folder,
)
from tpsl.processes import end_with_parent
from tpsl.progress import Progress, no_progress
from tpsl.tables import DataError
from tpsl.tables.locations import Location, StoredFile, Url, files_of
from tpsl.vault.blocks import Block
from tpsl.vault.errors import VaultBusy, VaultError, VaultFull, disk_full
from tpsl.vault.portions import Portion, Stretch, portions_of
from tpsl.vault.storage import INCOMING
from tpsl.vault.tables import Batch, LabelTable
from tpsl.vault.texts import Texts

_COLUMNS = pa.schema([("ids", pa.large_binary()), ("labels", pa.large_binary()), ("units", pa.large_binary())])
"""What a row of a part has: the columns of some records, as bytes; `units` is null where there are none."""
_PART = re.compile(r"[0-9a-f]{64}\.arrow|\.[0-9a-f]{64}\.arrow\.[0-9]+\.new")
"""Names of parts and of their drafts."""
_NAMED_FAULTS = 8
"""How many faults of files an error tells; of more it says how many there are."""
Reading = tuple[LabelTable, Callable[[], None]]
"""A file, and what ends when it is read."""


class Incoming:
    """The files of some tables, and what was read of them; one process at a time holds those of a vault.

    A file that has changed since it was read, in size or time, is another file. What is left of other files, by a
    command that was given up, is removed.
    """

    def __init__(
        self, vault: Path, classes: int, tables: Sequence[LabelTable], progress: Progress = no_progress
    ) -> None:
        self._vault, self._folder, self._classes = vault, vault / INCOMING, classes
        self._progress = progress
        self.goes_on = self._folder.exists()
        """Whether a command that was killed has left what it had read."""
        self._files: dict[Location, tuple[LabelTable, Path]] = {}
        self._sizes: dict[Location, int] = {}
        for table in tables:
            table.check_class_values(classes)
            files = _files(table)
            for file in files:
                path = _location(table.path, file)
                if path in self._files:
                    raise VaultError(f"{path}: the file is given twice")
                single = replace(table, path=path, may_be_empty=len(files) > 1)
                self._files[path] = single, self._folder / f"{_digest(single, file, classes)}.arrow"
                self._sizes[path] = file.size
        self._size = sum(self._sizes.values())

    def __enter__(self) -> Self:
        self._is_new = not self._vault.exists()
        try:
            make_private_folder(self._folder)
            self._lock = _locked(self._folder)
        except (BlockingIOError, FileNotFoundError):  # the latter if another command has just removed the folder
            raise VaultBusy(f"another command is reading files for the vault {self._vault}") from None
        except OSError as error:
            raise VaultError(f"nothing can be stored at {self._folder}: {error.strerror}") from error
        remove_drafts(self._folder)
        wanted = {part for _, part in self._files.values()}
        for part in set(self._folder.iterdir()) - wanted:
            part.unlink()
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):  # what was read stays for the next time
            if _is_at(self._folder, self._lock):  # it may be another command's by now
                remove_drafts(self._folder)
                self._folder.rmdir()
            if self._is_new:
                self._vault.rmdir()
        os.close(self._lock)

    def missing(self) -> list[LabelTable]:
        """A table for each file that was not read yet, in order."""
        return [table for table, part in self._files.values() if not part.exists()]

    def read(self, processes: int = 0) -> None:
        """Read all files that are missing, several at a time; what is wrong with any of them is one `VaultError`.

        What was read stays. `processes` is how many read at a time; 0: one for each core.
        """
        missing = self.missing()
        processes = min(processes or os.cpu_count() or 1, len(missing))
        self.read_by(self._side_by_side(missing, processes) if processes > 1 else self._in_turn(missing))

    def read_by(self, readings: Iterable[Reading]) -> None:
        """Have the files that are missing read by these; what is wrong with any of them is one `VaultError`."""
        done, faults = self._bytes_read(), list[VaultError]()
        for table, read in readings:
            try:
                read()
            except VaultFull:
                raise
            except VaultError as fault:
                faults.append(fault)
            except BrokenProcessPool as error:
                raise VaultError("a process that read files was killed; give the same command again") from error
            done += self._sizes[table.path]
            self._tell(done, 0, 0, f"reading {table.path.name}")
        if faults:
            raise _one_error(faults)

    def _bytes_read(self) -> int:
        return self._size - sum(self._sizes[table.path] for table in self.missing())

    def _tell(self, before: int, read: int, _: int, note: str) -> None:
        """Tell that bytes of a file were read, and all of the files before it."""
        self._progress(before + read, self._size, note)

    def _in_turn(self, missing: list[LabelTable]) -> Iterator[Reading]:
        done = self._bytes_read()
        for table in missing:
            yield table, partial(self.put, table, replace(table, progress=partial(self._tell, done)))
            done += self._sizes[table.path]

    def _side_by_side(self, missing: list[LabelTable], processes: int) -> Iterator[Reading]:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_start_reading)
        try:
            tasks = {
                pool.submit(_write_part, self._part(table), table, table, self._classes): table for table in missing
            }
            for task in as_completed(tasks):
                yield tasks[task], task.result
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def put(self, table: LabelTable, batches: Iterable[Batch]) -> None:
        """Keep what a file holds, durably and whole or not at all; one that is there already stays as it is.

        `table` is one of those that are missing, and `batches` are its records: the table itself, or what somebody else
        has read from it. What cannot be read is a `VaultError` that names the file and the row.
        """
        if not self._part(table).exists():
            _write_part(self._part(table), table, batches, self._classes)

    def require_classes(self, classes: int) -> None:
        """Raise a `VaultError` unless labels were read as those of this number of classes."""
        if classes != self._classes:
            raise VaultError(f"labels of {self._classes} classes were read for a vault of {classes}")

    def digest(self) -> str:
        """Tells these files, as they are and as they are read, from any others."""
        names = [part.name for _, part in self._files.values()]
        return hashlib.sha256(json.dumps(names).encode()).hexdigest()

    def portions(self) -> Iterator[Portion]:
        """All records, file by file in the order in which they were given."""
        missing = self.missing()
        if missing:
            raise VaultError(f"{missing[0].path}: the file was not read yet")
        done, has_records = 0, False
        for table, part in self._files.values():
            row = 1
            for records in _read_part(part):
                yield Portion(records, (Stretch(str(table.path), row, len(records)),))
                row, has_records = row + len(records), True
            done += self._sizes[table.path]
            self._tell(done, 0, 0, "storing labels")
        if not has_records:
            raise VaultError(f"{next(iter(self._files))}: this file and the others with it have no records")

    def _part(self, table: LabelTable) -> Path:
        return self._files[table.path][1]

    def clear(self) -> None:
        """Remove what was read: the vault has it."""
        shutil.rmtree(self._folder)


def _locked(folder: Path) -> int:
    """Lock the folder of a vault's parts and make it its owner's only; return what is closed to unlock it.

    A folder that holds anything else, or is only a link to one, is not ours: that is a `VaultError` or an `OSError`,
    and nothing in it is touched. One that another process has, or has just removed, is a `BlockingIOError`.
    """
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_at(folder, lock):
            raise BlockingIOError
        for path in folder.iterdir():
            if not _PART.fullmatch(path.name):
                raise VaultError(f"{path}: is in the way, the vault keeps files there that it removes; move it away")
        os.fchmod(lock, 0o700)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _is_at(folder: Path, lock: int) -> bool:
    """Whether the folder that is locked is the one that has this name."""
    return folder.exists() and os.path.samestat(os.fstat(lock), folder.stat())


def _one_error(faults: Sequence[VaultError]) -> VaultError:
    told = sorted(str(fault) for fault in faults)
    more = [f"and {len(told) - _NAMED_FAULTS:,} more files"] if len(told) > _NAMED_FAULTS else []
    return VaultError("; ".join([*told[:_NAMED_FAULTS], *more]))


def _start_reading() -> None:
    pa.set_cpu_count(1)
    end_with_parent()


def _write_part(part: Path, table: LabelTable, batches: Iterable[Batch], classes: int) -> None:
    """Write the records of a file, checked and in canonical form; a part is there whole or not at all.

    A file that was changed meanwhile is a `VaultError`: what was read may be of neither state.
    """
    draft = part.with_name(f".{part.name}.{os.getpid()}.new")
    try:
        with naming_what_does_not_fit(part), open_private(draft, "wb") as file:
            with pa.ipc.new_stream(file, _COLUMNS) as stream:
                for portion in portions_of(batches, classes, str(table.path)):
                    stream.write_batch(_row_of(portion.records))
            file.flush()
            os.fsync(file.fileno())
        if part.stem != _digest(table, _files(table)[0], classes):
            raise VaultError(f"{table.path}: the file was changed while it was read; give the same command again")
        draft.replace(part)
        sync_folder(part.parent)
    except DiskFull as error:
        raise disk_full(part.parent.parent) from error
    finally:
        draft.unlink(missing_ok=True)


def _read_part(part: Path) -> Iterator[Block]:
    try:
        with pa.OSFile(str(part)) as file, pa.ipc.open_stream(file) as stream:
            yield from map(_records_in, stream)
    except (pa.ArrowException, OSError) as error:
        raise VaultError(f"{part}: it cannot be read ({error}); remove it and give the same command again") from error


def _row_of(records: Block) -> pa.RecordBatch:
    """Some records as a row of a part."""
    ids, labels = records.ids.to_bytes(), records.labels.astype("<u2").tobytes()
    units = None if records.units is None else records.units.to_bytes()
    return pa.record_batch([pa.array([content], pa.large_binary()) for content in (ids, labels, units)], _COLUMNS)


def _records_in(row: pa.RecordBatch) -> Block:
    ids, labels, units = (row.column(name)[0].as_py() for name in _COLUMNS.names)
    return Block(
        Texts.from_bytes(ids),
        np.frombuffer(labels, "<u2").astype(np.int64),
        None if units is None else Texts.from_bytes(units),
    )


def _files(table: LabelTable) -> list[StoredFile]:
    try:
        return files_of(table.path)
    except DataError as error:
        raise VaultError(str(error)) from error


def _location(table: Location, file: StoredFile) -> Location:
    """Where a file of a table lies, with the parameters that the table's URL has."""
    if not isinstance(table, Url):
        return Path(file.name)
    _, mark, parameters = table.text.partition("?")
    return Url(file.name + mark + parameters)


def _digest(table: LabelTable, file: StoredFile, classes: int) -> str:
    """A name for what is read of a file: another one if the file changes, or what is asked of it."""
    values = None if table.class_values is None else list(table.class_values)
    name = str(Path(file.name).absolute()) if file.is_local else file.name
    told = [name, file.size, file.modified, table.id, table.label, table.unit, values, classes]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()
