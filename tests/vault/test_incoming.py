"""Many files into a vault: all or none, each read once, whatever is killed on the way."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tpsl.mechanisms import laplace
from tpsl.tables.locations import location_of
from tpsl.vault import Incoming, LabelTable, Vault, VaultBusy, VaultError, VaultFull
from tpsl.vault import incoming as incoming_module

FILES, ROWS = 6, 40


def rows_of(number: int) -> dict[str, list[Any]]:
    ids = range(number * ROWS, (number + 1) * ROWS)
    return {"id": [f"r{id}" for id in ids], "y": [id * 7 % 3 % 2 for id in ids], "user": [f"u{id // 5}" for id in ids]}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder of Parquet files with consecutive records."""
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(FILES):
        pq.write_table(pa.table(rows_of(number)), folder / f"part-{number}.parquet")
    return folder


def table(path: Any, **columns: Any) -> LabelTable:
    return LabelTable(path=location_of(path), **{"id": "id", "label": "y", "unit": "user"} | columns)


def create(folder: Path, *paths: Any, processes: int = 1) -> Vault:
    with Incoming(folder, 2, [table(path) for path in paths]) as incoming:
        incoming.read(processes)
        return Vault.create(folder, batches=incoming)


def check_whole(vault: Vault) -> None:
    """Every record is in once, in the order of the files, in one addition."""
    ids = [id for number in range(FILES) for id in rows_of(number)["id"]]
    assert vault.positions(ids).tolist() == list(range(FILES * ROWS))
    assert vault.true_labels_for_evaluation(ids).tolist() == [y for n in range(FILES) for y in rows_of(n)["y"]]
    vault.require_units(ids, [user for number in range(FILES) for user in rows_of(number)["user"]])
    assert [entry.kind for entry in vault.ledger().entries] == ["created", "added"]
    assert vault.verify() == []
    assert [path.name for path in vault.path.iterdir()] == ["vault.sqlite"]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that this process reads from now on."""
    names: list[str] = []
    iterate = LabelTable.__iter__

    def noting(table: LabelTable) -> Any:
        names.append(table.path.name)
        return iterate(table)

    monkeypatch.setattr(LabelTable, "__iter__", noting)
    return names


@pytest.mark.parametrize("processes", [1, 2])
def test_a_folder_enters_as_one_in_the_order_of_its_files(
    folder: Path, files: Path, forks: object, processes: int
) -> None:
    with create(folder, files, processes=processes) as vault:
        check_whole(vault)
        given = vault.ledger().entries[1].details
    alone = folder.with_name("alone")
    with Vault.create(alone, batches=table(files)) as other:
        assert other.ledger().entries[1].details == given


def test_files_patterns_and_object_storage_enter_together(folder: Path, files: Path, object_storage: Any) -> None:
    lines = ["id\ty\tuser", *("\t".join(map(str, row)) for row in zip(*rows_of(5).values(), strict=True))]
    stored = {f"part-{number}.parquet": (files / f"part-{number}.parquet").read_bytes() for number in (2, 3, 4)}
    bucket = object_storage.put(stored)
    (files / "last.tsv").write_text("\n".join(lines) + "\n")
    with create(folder, files / "part-[01].parquet", f"{bucket}/part-*.parquet", files / "last.tsv") as vault:
        check_whole(vault)
    (files / "more.csv").write_text("id,y,user\nr1,1,u0\nlate,0,u0\n")
    with Vault.open(folder) as vault, Incoming(folder, 2, [table(files / "more.csv")]) as incoming:
        incoming.read()
        added = vault.add(incoming)
        assert (added.new, added.unchanged, added.changed) == (1, 1, 0)


# The process kills itself when it has read some files, or while what it has read enters.
KILLED = """
import os, signal
from pathlib import Path
from tpsl.vault import Incoming, LabelTable, Vault

put, portions, left = Incoming.put, Incoming.portions, after

def count():
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)

def putting(incoming, table, batches):
    count()
    put(incoming, table, batches)

def entering(incoming):
    for portion in portions(incoming):
        count()
        yield portion

Incoming.put, Incoming.portions = putting, entering
tables = [LabelTable(path=Path(files), id="id", label="y", unit="user")]
with Incoming(Path(place), 2, tables) as incoming:
    incoming.read(1)
    Vault.create(place, batches=incoming)
"""


@pytest.mark.parametrize("after", [0, 3, 2 * FILES - 1])
def test_a_kill_leaves_what_was_read_and_the_same_command_reads_the_rest(
    folder: Path, files: Path, tmp_path: Path, fork: Callable[..., Any], read: list[str], after: int
) -> None:
    worker = fork(KILLED, tmp_path, place=str(folder), files=str(files), after=after)
    assert worker.status(60) == -signal.SIGKILL
    assert not Vault.exists(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    parts = [path.read_bytes() for path in (folder / "incoming").iterdir()]
    assert any(b"r0\0r1\0r2" in part and b"u0\0u0\0u0" in part for part in parts) == (after > 0)
    with create(folder, files) as vault:
        check_whole(vault)
    assert read == [f"part-{number}.parquet" for number in range(min(after, FILES), FILES)]


# The process kills itself when all is in the vault, and removed is what was read of some files.
KILLED_WHEN_DONE = """
import os, signal
from pathlib import Path
from tpsl.vault import Incoming, LabelTable, Vault

def clear(incoming):
    for part in sorted(incoming._folder.iterdir())[:cleared]:
        part.unlink()
    os.kill(os.getpid(), signal.SIGKILL)

Incoming.clear = clear
tables = [LabelTable(path=Path(files), id="id", label="y", unit="user")]
with Incoming(Path(place), 2, tables) as incoming:
    incoming.read(1)
    if Vault.exists(place):
        Vault.open(place).add(incoming)
    else:
        Vault.create(place, batches=incoming)
"""


@pytest.mark.parametrize("cleared", [0, 4])
def test_a_command_that_was_killed_when_it_was_done_is_told_so(
    folder: Path, files: Path, tmp_path: Path, fork: Callable[..., Any], cleared: int
) -> None:
    def killed() -> None:
        worker = fork(KILLED_WHEN_DONE, tmp_path, place=str(folder), files=str(files), cleared=cleared)
        assert worker.status(60) == -signal.SIGKILL, worker.stderr.read_text()

    killed()
    with create(folder, files) as vault:
        check_whole(vault)
    with pytest.raises(VaultError, match="already holds a vault"):
        create(folder, files)
    (files / "more.csv").write_text("id,y,user\nlate,0,u0\n")
    killed()
    with pytest.raises(VaultError, match="already holds a vault"):
        create(folder, files / "part-1.parquet")
    for told, additions in (((1, FILES * ROWS, 0), 2), ((0, FILES * ROWS + 1, 0), 3)):
        with Vault.open(folder) as vault, Incoming(folder, 2, [table(files)]) as incoming:
            incoming.read(1)
            added = vault.add(incoming)
            assert (added.new, added.unchanged, added.changed) == told, "what was done, and then that nothing is left"
            assert [entry.kind for entry in vault.ledger().entries] == ["created", *["added"] * additions]


def test_what_has_entered_is_not_taken_for_the_same_when_anything_has_happened_since(
    folder: Path, files: Path, tmp_path: Path, fork: Callable[..., Any]
) -> None:
    worker = fork(KILLED_WHEN_DONE, tmp_path, place=str(folder), files=str(files), cleared=0)
    assert worker.status(60) == -signal.SIGKILL, worker.stderr.read_text()
    with Vault.open(folder) as vault:
        vault.release(laplace(1.0))
    with pytest.raises(VaultError, match="already holds a vault"):
        create(folder, files)


# The process kills itself when all is in the vault, and all that was read is removed: nobody was told.
KILLED_BEFORE_THE_REPORT = """
import os, signal
from pathlib import Path
from tpsl.vault import Incoming, LabelTable, Vault

tables = [LabelTable(path=Path(files), id="id", label="y", unit="user")]
with Incoming(Path(place), 2, tables) as incoming:
    incoming.read(1)
    Vault.create(place, batches=incoming)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_vault_that_holds_just_the_records_of_these_files_is_said_to(
    folder: Path, files: Path, tmp_path: Path, fork: Callable[..., Any]
) -> None:
    worker = fork(KILLED_BEFORE_THE_REPORT, tmp_path, place=str(folder), files=str(files))
    assert worker.status(60) == -signal.SIGKILL, worker.stderr.read_text()
    just_these = r"already holds a vault, with just the records of these files: nothing is left to do$"
    with pytest.raises(VaultError, match=just_these):
        create(folder, files)
    with pytest.raises(VaultError, match=r"already holds a vault$"):
        create(folder, files / "part-1.parquet")
    more = tmp_path / "more.csv"
    more.write_text("id,y,user\nlate,0,u0\n")
    with Vault.open(folder) as vault, Incoming(folder, 2, [table(more)]) as incoming:
        incoming.read(1)
        vault.add(incoming)
    for given in (files, more):  # neither is all that the vault holds
        with pytest.raises(VaultError, match=r"already holds a vault$"):
            create(folder, given)


def test_a_vault_with_other_records_too_is_not_taken_for_one_of_the_files_that_were_added_last(
    folder: Path, files: Path, tmp_path: Path, fork: Callable[..., Any]
) -> None:
    create(folder, files / "part-0.parquet").close()
    added = str(files / "part-1.parquet")
    worker = fork(KILLED_WHEN_DONE, tmp_path, place=str(folder), files=added, cleared=0)
    assert worker.status(60) == -signal.SIGKILL, worker.stderr.read_text()
    with pytest.raises(VaultError, match=r"already holds a vault$"):
        create(folder, added)


def test_a_reading_process_that_is_killed_is_told_and_what_was_read_stays(
    folder: Path, tmp_path: Path, forks: object
) -> None:
    for number in range(80):
        (tmp_path / f"{number}.csv").write_text(f"id,y,user\n{number},1,u\n")

    others = set(multiprocessing.active_children())

    def kill_the_readers(done: int, total: int, note: str) -> None:
        for process in set(multiprocessing.active_children()) - others:
            process.kill()

    with Incoming(folder, 2, [table(tmp_path / "*.csv")], kill_the_readers) as incoming:
        with pytest.raises(VaultError, match="a process that read files was killed; give the same command again"):
            incoming.read(2)
        left = len(incoming.missing())
        assert 0 < left < 80
    with create(folder, tmp_path / "*.csv") as vault:
        assert (len(vault), vault.verify()) == (80, [])


def test_a_faulty_file_leaves_no_vault_and_costs_no_second_reading_of_the_others(
    folder: Path, files: Path, read: list[str]
) -> None:
    pq.write_table(pa.table({"id": ["x"], "y": [7], "user": ["u"]}), files / "part-4.parquet")
    with pytest.raises(VaultError, match=r"part-4\.parquet, row 1: the label 7 cannot be read"):
        create(folder, files)
    assert not Vault.exists(folder)
    pq.write_table(pa.table(rows_of(4)), files / "part-4.parquet")
    read.clear()
    with create(folder, files) as vault:
        check_whole(vault)
    assert read == ["part-4.parquet"]


@pytest.mark.parametrize("processes", [1, 2])
def test_the_faults_of_all_files_are_named_at_once(folder: Path, tmp_path: Path, processes: int, forks: object) -> None:
    for number in range(12):
        (tmp_path / f"{number:02}.csv").write_text(f"id,y,user\n{number},{2 * (number > 0)},u\n")
    (tmp_path / "01.csv").write_text("id,user\n1,u\n")
    with pytest.raises(VaultError) as refused:
        create(folder, tmp_path / "*.csv", processes=processes)
    told = str(refused.value)
    assert "01.csv: there is no column 'y'" in told and "02.csv, row 1: the label '2' cannot be read" in told
    assert "08.csv" in told and "09.csv" not in told and told.endswith("; and 3 more files")


def test_one_file_of_many_may_be_empty_and_not_all(folder: Path, files: Path, tmp_path: Path) -> None:
    empty = pa.schema([("id", pa.string()), ("y", pa.int64()), ("user", pa.string())]).empty_table()
    pq.write_table(empty, files / "part-9.parquet")
    with create(folder, files) as vault:
        check_whole(vault)
    with pytest.raises(VaultError, match=r"part-9\.parquet: the file has no records"):
        create(tmp_path / "alone", files / "part-9.parquet")
    (tmp_path / "none").mkdir()
    for number in range(2):
        pq.write_table(empty, tmp_path / "none" / f"{number}.parquet")
    with pytest.raises(VaultError, match=r"0\.parquet: this file and the others with it have no records"):
        create(tmp_path / "of none", tmp_path / "none")


def test_a_file_that_changed_is_read_again_and_what_was_given_up_is_removed(
    folder: Path, files: Path, read: list[str]
) -> None:
    with Incoming(folder, 2, [table(files / "part-*.parquet")]) as incoming:
        incoming.read(1)
    pq.write_table(pa.table({name: values[:5] for name, values in rows_of(2).items()}), files / "part-2.parquet")
    (files / "part-0.parquet").unlink()
    read.clear()
    with create(folder, files / "part-*.parquet") as vault:
        assert len(vault) == (FILES - 2) * ROWS + 5
        assert vault.release(laplace(1.0)).released == len(vault)
    assert read == ["part-2.parquet"]
    (files / "other.csv").write_text("id,y,user\na,1,u\n")
    with Incoming(folder, 2, [table(files / "other.csv")]) as incoming:
        incoming.read()
    with Vault.open(folder) as vault, Incoming(folder, 2, [table(files / "part-1.parquet")]) as incoming:
        assert not list((folder / "incoming").iterdir())
        incoming.read()
        assert vault.add(incoming).unchanged == ROWS


def test_a_file_that_changes_while_it_is_read_is_not_taken(folder: Path, files: Path) -> None:
    def changing(table: LabelTable) -> Any:
        yield from table
        pq.write_table(pa.table(rows_of(1)), files / "part-0.parquet", compression="none")

    with Incoming(folder, 2, [table(files)]) as incoming:
        first = incoming.missing()[0]
        with pytest.raises(VaultError, match=r"part-0\.parquet: the file was changed while it was read"):
            incoming.put(first, changing(first))
        assert len(incoming.missing()) == FILES
    assert not folder.exists()


def test_batches_that_others_have_read_are_kept_once(folder: Path, files: Path) -> None:
    with Incoming(folder, 2, [table(files)]) as incoming:
        for number, missing in enumerate(incoming.missing()):
            ids, labels, users = rows_of(number).values()
            parts = [(ids[:7], labels[:7], users[:7]), (pa.array(ids[7:]), pa.array(labels[7:]), pa.array(users[7:]))]
            incoming.put(missing, parts)
            incoming.put(missing, [(["again"], [0], ["u"])])  # a task that was done twice
        assert incoming.missing() == []
        with Vault.create(folder, batches=incoming) as vault:
            check_whole(vault)


def test_what_two_files_have_in_common_is_named_with_both(folder: Path, files: Path) -> None:
    (files / "a.csv").write_text("id,y,user\nx,1,u\nsame,1,u\n")
    (files / "b.csv").write_text("id,y,user\nsame,1,u\n")
    with pytest.raises(VaultError, match=r"b\.csv, row 1: the id 'same' occurred before, in .*a\.csv, row 2"):
        create(folder, files / "a.csv", files / "b.csv")
    with pytest.raises(VaultError, match=r"a\.csv: the file is given twice"):
        create(folder, files / "a.csv", files / "*.csv")


def test_labels_that_were_read_as_those_of_more_classes_do_not_enter(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("id,y,user\na,2,u\n")
    with Incoming(folder, 3, [table(tmp_path / "labels.csv")]) as incoming:
        incoming.read(1)
        with pytest.raises(VaultError, match="labels of 3 classes were read for a vault of 2"):
            Vault.create(folder, classes=2, batches=incoming)
        assert not Vault.exists(folder)


def test_one_command_at_a_time_reads_for_a_vault(folder: Path, files: Path) -> None:
    with ExitStack() as held:
        incoming = held.enter_context(Incoming(folder, 2, [table(files)]))
        with pytest.raises(VaultError, match=r"part-0\.parquet: the file was not read yet"):
            Vault.create(folder, batches=incoming)
        with pytest.raises(VaultBusy, match="another command is reading files for the vault"):
            create(folder, files)
    assert not folder.exists()


def test_a_folder_of_that_name_that_somebody_else_has_filled_is_left_alone(folder: Path, files: Path) -> None:
    folder.mkdir()
    files.rename(folder / "incoming")
    given = sorted(path.name for path in (folder / "incoming").iterdir())
    with pytest.raises(VaultError, match=r"incoming/part-\d\.parquet: is in the way, .*; move it away"):
        create(folder, folder / "incoming")
    assert sorted(path.name for path in (folder / "incoming").iterdir()) == given


def test_a_link_is_not_followed_to_what_would_be_removed(folder: Path, files: Path, tmp_path: Path) -> None:
    others = tmp_path / "others"
    others.mkdir()
    (others / f"{'0' * 64}.arrow").write_text("another vault's")
    folder.mkdir()
    (folder / "incoming").symlink_to(others)
    with pytest.raises(VaultError, match=r"nothing can be stored at .*incoming"):
        create(folder, files)
    assert len(list(others.iterdir())) == 1


def test_a_command_that_ends_leaves_the_folder_of_the_next_one_alone(folder: Path, files: Path) -> None:
    with ExitStack() as held:
        with Incoming(folder, 2, [table(files)]) as incoming:
            incoming.read(1)
            Vault.create(folder, batches=incoming).close()
            held.enter_context(Incoming(folder, 2, [table(files)]))
        with pytest.raises(VaultBusy):
            create(folder, files)
    (folder / "incoming").mkdir(mode=0o755)
    with Incoming(folder, 2, [table(files)]):
        assert (folder / "incoming").stat().st_mode & 0o777 == 0o700


def test_a_file_of_the_same_name_in_another_folder_is_another_one(
    folder: Path, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day, label in (("monday", 0), ("tuesday", 1)):
        place = tmp_path / day / "labels.csv"
        place.parent.mkdir()
        place.write_text(f"id,y,user\na,{label},u\n")
        os.utime(place, (0, 0))  # as archives have it
        monkeypatch.chdir(place.parent)
        with Incoming(folder, 2, [table("labels.csv")]) as incoming:
            assert len(incoming.missing()) == 1
            incoming.read(1)


def test_a_disk_that_is_full_leaves_nothing_half_read(
    folder: Path, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Incoming(folder, 2, [table(files)]) as incoming:
        with monkeypatch.context() as patch:
            patch.setattr(incoming_module, "open_private", lambda path, mode: Path("/dev/full").open(mode))  # noqa: SIM115
            with pytest.raises(VaultFull, match="the disk is full; nothing was changed"):
                incoming.read(1)
        assert not list((folder / "incoming").iterdir())
        incoming.read(1)
        Vault.create(folder, batches=incoming).close()
