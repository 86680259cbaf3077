"""`tpsl vault` from a CSV file to a verified ledger."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.vault_labels import true_labels

from tpsl.mechanisms import DiscreteGaussian, laplace, randomized_response
from tpsl.report.words import rounded_up
from tpsl.vault import StatisticPlan, Vault, the_vault

RECORDS = 60


def write_csv(path: Path, labels: list[int], first: int = 0) -> Path:
    lines = [f"r{first + row},{label},user{(first + row) // 4}" for row, label in enumerate(labels)]
    path.write_text("\n".join(["record,clicked,user", *lines]) + "\n")
    return path


@pytest.fixture
def vault(tpsl: Any, tmp_path: Path) -> Path:
    """A vault that was created on the command line, with four records of each user."""
    table = write_csv(tmp_path / "labels.csv", [row % 2 for row in range(RECORDS)])
    made = tpsl("vault", "add", "--new", tmp_path / "vault", table, *COLUMNS, "--json").json()
    assert made == {"vault": str(tmp_path / "vault"), "records": RECORDS, "classes": 2}
    return tmp_path / "vault"


COLUMNS = ("--id", "record", "--label", "clicked", "--unit", "user")
DISCRETE = ("--set=privacy.mechanism=discrete", "--epsilon", 1)


def noisy(vault: Path) -> np.ndarray:
    with Vault.open(vault) as opened:
        ids = [f"r{row}" for row in range(RECORDS)]
        return opened.noisy_labels(randomized_response(1.0), ids).draws[0]


def test_a_release_happens_once(tpsl: Any, vault: Path) -> None:
    first = tpsl("vault", "release", vault, *DISCRETE, "--json").json()
    assert first == {
        "vault": str(vault),
        "mechanism": "discrete",
        "draws": 1,
        "epsilon": randomized_response(1.0).epsilon,
        "delta": 0.0,
        "private": True,
        "released": RECORDS,
        "already_released": 0,
        "composed": 0,
        "epsilon_per_record": randomized_response(1.0).epsilon,
    }
    before = noisy(vault)
    again = tpsl(
        "vault", "release", vault, "--set=privacy.mechanism=randomized_response", "--epsilon", 1, "--json"
    ).json()
    assert (again["mechanism"], again["released"], again["already_released"]) == ("discrete", 0, RECORDS)
    assert np.array_equal(noisy(vault), before)
    verified = tpsl("vault", "verify", vault, "--json").json()
    assert "one in a hundred" in verified.pop("cannot_see")[0]
    assert verified == {"vault": str(vault), "sound": True, "problems": []}


def test_another_release_is_refused_with_the_count_unless_composed(tpsl: Any, vault: Path) -> None:
    tpsl("vault", "release", vault, *DISCRETE)
    sentence = tpsl("vault", "release", vault, "--set=privacy.mechanism=laplace", "--epsilon", 0.5).error()
    assert str(RECORDS) in sentence
    assert "compose" in sentence
    composed = tpsl(
        "vault",
        "release",
        vault,
        "--set=privacy.mechanism=laplace",
        "--epsilon",
        0.5,
        "--set=local.compose=true",
        "--json",
    ).json()
    total = randomized_response(1.0).epsilon + laplace(0.5).epsilon
    assert composed["composed"] == RECORDS
    assert composed["epsilon_per_record"] == pytest.approx(total, rel=1e-15)
    ledger = tpsl("vault", "ledger", vault, "--json").json()
    assert [entry["kind"] for entry in ledger["entries"]] == ["created", "added", "released", "released"]
    assert ledger["epsilon_per_record"] == composed["epsilon_per_record"]
    assert ledger["largest_unit"]["records"] == 4
    assert ledger["largest_unit"]["epsilon"] == pytest.approx(4 * total, rel=1e-15)
    assert ledger["private"] is True


def test_the_ledger_for_people(tpsl: Any, vault: Path) -> None:
    tpsl("vault", "release", vault, "--set=privacy.mechanism=laplace", "--epsilon", 0.5, "--set=privacy.draws=2")
    shown = tpsl("vault", "ledger", vault)
    assert shown.status == 0
    assert shown.stdout.splitlines()[0] == f"Ledger of {vault}: 1 release"
    facts = shown.facts()
    assert facts["largest ε of any record"] == "1"
    assert facts["largest ε of any unit"] == "4 (a unit with 4 records)"
    assert facts["check all of it"] == f"tpsl vault verify {vault}"
    assert "NOT PRIVATE" not in shown.stdout


def test_the_ledger_shows_a_statistic_and_one_record_of_a_unit(tpsl: Any, tmp_path: Path) -> None:
    plan = StatisticPlan(DiscreteGaussian(10**8, 1e-6), 100, 3)
    with Vault.create(tmp_path / "vault", batches=[(range(50), [0, 1] * 25, range(50))]) as opened:
        opened.release_statistic(plan, range(50), [np.ones((50, 3), np.int64)])
    shown = tpsl("vault", "ledger", tmp_path / "vault")
    assert "statistic" in shown.stdout
    assert shown.facts()["largest ε of any record"] == rounded_up(plan.cost(2).epsilon, 6)
    assert "(a unit with 1 record)\n" in shown.stdout
    told = tpsl("vault", "ledger", tmp_path / "vault", "--json").json()
    assert (told["delta_per_record"], told["released_records"]) == (1e-6, 50)
    assert told["entries"][-1]["rho"] == "1/20000"
    verified = tpsl("vault", "verify", tmp_path / "vault")
    assert (verified.status, verified.stdout.splitlines()[0]) == (0, f"{tmp_path / 'vault'}: sound")
    assert "the noise of statistics was not tested" in verified.stderr


@pytest.mark.parametrize(
    ("options", "private"),
    [
        (("--set=privacy.mechanism=none", "--set=local.not_private=true"), False),
        (
            (
                "--set=privacy.mechanism=discrete",
                "--epsilon",
                1,
                "--set=privacy.noise_seed=7",
                "--set=local.not_private=true",
            ),
            False,
        ),
        (("--set=privacy.mechanism=gaussian", "--set=privacy.sigma=2", "--set=privacy.delta=1e-5"), True),
        (("--set=privacy.mechanism=laplace", "--epsilon", 1, "--set=privacy.draws=2"), True),
    ],
)
def test_private_or_not_is_said_everywhere(tpsl: Any, vault: Path, options: tuple[object, ...], private: bool) -> None:
    released = tpsl("vault", "release", vault, *options, "--json")
    assert released.json()["private"] is private
    assert ("NOT PRIVATE" in released.stderr) == ("--set=privacy.noise_seed=7" in options)
    assert tpsl("vault", "ledger", vault, "--json").json()["private"] is private
    assert ("NOT PRIVATE" in tpsl("vault", "ledger", vault).stdout) != private
    assert tpsl("vault", "verify", vault).status == 0


@pytest.mark.parametrize(
    ("options", "permission"),
    [
        (("--set=privacy.mechanism=none",), ("--set=local.not_private=true",)),
        (
            ("--set=privacy.mechanism=discrete", "--epsilon", 1, "--set=privacy.noise_seed=7"),
            ("--set=local.not_private=true",),
        ),
        (("--set=privacy.mechanism=laplace", "--epsilon", 11), ("--set=local.max_epsilon=11",)),
        (("--set=privacy.mechanism=laplace", "--epsilon", 6, "--set=privacy.draws=2"), ("--set=local.max_epsilon=12",)),
    ],
)
def test_a_release_that_was_not_permitted_is_refused(
    tpsl: Any, vault: Path, options: tuple[object, ...], permission: tuple[object, ...]
) -> None:
    assert str(permission[0]).split("=")[1] in tpsl("vault", "release", vault, *options).error()
    assert tpsl("vault", "ledger", vault, "--json").json()["released_records"] == 0
    assert tpsl("vault", "release", vault, *options, *permission).status == 0


def test_the_same_seed_gives_the_same_noise(tpsl: Any, tmp_path: Path) -> None:
    table = write_csv(tmp_path / "labels.csv", [row % 2 for row in range(RECORDS)])
    drawn = []
    for name in ("a", "b"):
        tpsl("vault", "add", "--new", tmp_path / name, table, *COLUMNS, "--apart", "a try")
        tpsl(
            "vault", "release", tmp_path / name, *DISCRETE, "--set=privacy.noise_seed=7", "--set=local.not_private=true"
        )
        with Vault.open(tmp_path / name) as opened:
            ids = [f"r{row}" for row in range(RECORDS)]
            drawn.append(opened.noisy_labels(randomized_response(1.0), ids, seed=7).draws[0])
    assert np.array_equal(*drawn)


def test_records_that_arrive_later_are_released_alone_and_changed_labels_are_a_warning(
    tpsl: Any, vault: Path, tmp_path: Path
) -> None:
    tpsl("vault", "release", vault, *DISCRETE)
    before = noisy(vault)
    changed = [1 - row % 2 if row < 5 else row % 2 for row in range(RECORDS)]
    more = write_csv(tmp_path / "more.csv", [*changed, 1, 0, 1])
    added = tpsl("vault", "add", vault, more, *COLUMNS, "--json")
    counts = {"new": 3, "unchanged": RECORDS - 5, "changed": 5, "changed_after_release": 5}
    assert added.json() == {"vault": str(vault), **counts}
    assert "warning: 5 records have another label now than when they were released" in added.stderr
    again = tpsl("vault", "add", vault, more, *COLUMNS, "--json")
    assert again.json() == {"vault": str(vault), **dict.fromkeys(counts, 0), "unchanged": RECORDS + 3}
    assert "warning" not in again.stderr
    released = tpsl("vault", "release", vault, *DISCRETE, "--json").json()
    assert (released["released"], released["already_released"]) == (3, RECORDS)
    assert np.array_equal(noisy(vault), before)


def test_tampering_is_found_and_the_exit_status_says_so(tpsl: Any, vault: Path) -> None:
    tpsl("vault", "release", vault, *DISCRETE)
    connection = sqlite3.connect(vault / "vault.sqlite")
    (body,) = connection.execute("SELECT body FROM ledger WHERE sequence = 3").fetchone()
    connection.execute("DROP TRIGGER ledger_fixed")
    connection.execute("UPDATE ledger SET body = ? WHERE sequence = 3", (body.replace('"draws":1', '"draws":2'),))
    connection.commit()
    connection.close()
    found = tpsl("vault", "verify", vault, "--json")
    assert found.status == 1
    content = json.loads(found.stdout)
    assert content["sound"] is False
    assert any("ledger entry 3 was changed" in problem for problem in content["problems"])
    shown = tpsl("vault", "verify", vault)
    assert shown.status == 1
    assert shown.stdout == ""
    assert [line for line in shown.stderr.splitlines() if line] == content["problems"]


def test_a_hash_that_was_noted_shows_whether_the_ledger_was_cut(tpsl: Any, vault: Path, tmp_path: Path) -> None:
    shutil.copytree(vault, tmp_path / "old copy")
    first = tpsl("vault", "ledger", vault, "--json").json()["head"]
    assert tpsl("vault", "ledger", vault).facts()["newest hash"] == first
    tpsl("vault", "release", vault, *DISCRETE)
    second = tpsl("vault", "ledger", vault, "--json").json()["head"]
    newest = tpsl("vault", "verify", vault, "--hash", second)
    assert newest.stdout.splitlines()[0] == f"{vault}: sound"
    assert newest.facts()["hash"] == "is known; entries since: 0"
    earlier = tpsl("vault", "verify", vault, "--hash", f" {first.upper()}")
    assert earlier.stdout.splitlines()[0] == f"{vault}: sound"
    assert earlier.facts()["hash"] == "is known; entries since: 1"
    assert tpsl("vault", "verify", vault, "--hash", first, "--json").json()["entries_since_head"] == 1
    for other in (tmp_path / "old copy", vault):
        found = tpsl("vault", "verify", other, "--hash", second if other != vault else "0" * 64)
        assert (found.status, found.stdout) == (1, "")
        assert "the ledger was cut or replaced: no entry of it has the hash" in found.stderr
    assert "64 hexadecimal digits" in tpsl("vault", "verify", vault, "--hash", second[:12]).error()


@pytest.mark.parametrize(
    ("options", "culprit"),
    [
        (("--set=privacy.mechanism=laplace",), "mechanism 'laplace' needs epsilon"),
        ((), "mechanism 'auto' needs epsilon"),
        (("--set=privacy.mechanism=gaussian", "--set=privacy.sigma=1"), "mechanism 'gaussian' needs delta"),
        (("--set=privacy.mechanism=none", "--epsilon", 1), "mechanism 'none' does not take epsilon"),
        (
            ("--set=privacy.mechanism=laplace", "--epsilon", 1, "--set=privacy.sigma=1"),
            "mechanism 'laplace' does not take sigma",
        ),
        (("--epsilon", 0), "0"),
        (("--epsilon", -1), "-1"),
        (("--epsilon", "nan"), "nan"),
        (("--set=privacy.mechanism=gaussian", "--set=privacy.sigma=0", "--set=privacy.delta=1e-5"), "sigma"),
    ],
)
def test_a_release_needs_its_parameters(tpsl: Any, vault: Path, options: tuple[object, ...], culprit: str) -> None:
    assert culprit in tpsl("vault", "release", vault, *options).error()
    assert tpsl("vault", "ledger", vault, "--json").json()["released_records"] == 0


def test_text_labels_with_units(tpsl: Any, tmp_path: Path) -> None:
    vault, table = tmp_path / "vault", tmp_path / "labels.csv"
    texts = ["no", "yes, later", " yes "]
    columns = ("--id", "record", "--label", "clicked", "--unit", "user")
    names = [part for text in ("no", "yes", "yes, later") for part in ("--classes", text)]
    lines = [f'r{row},"{texts[row % 3]}",user{row // 4}' for row in range(12)]
    table.write_text("\n".join(["record,clicked,user", *lines]))
    sentence = tpsl("vault", "add", "--new", vault, table, *columns, *names[:4]).error()
    assert f"{table}: column 'clicked', row 2: 'yes, later' is not a label; labels are no, yes" in sentence
    assert not Vault.exists(vault)
    made = tpsl("vault", "add", "--new", vault, table, *columns, *names, "--json").json()
    assert (made["records"], made["classes"]) == (12, 3)
    table.write_text('record,clicked,user\nlate,"yes, later",user9\n')
    assert "3 classes need" in tpsl("vault", "add", vault, table, *columns, *names[:4]).error()
    assert tpsl("vault", "add", vault, table, *columns, *names, "--json").json()["new"] == 1
    with Vault.open(vault) as opened:
        assert true_labels(opened, ["r0", "r1", "r2", "late"]).tolist() == [0, 2, 1, 2]
    tpsl("vault", "release", vault, *DISCRETE)
    assert tpsl("vault", "ledger", vault, "--json").json()["largest_unit"]["records"] == 4


def test_records_without_a_unit_are_refused_where_others_have_one(tpsl: Any, vault: Path, tmp_path: Path) -> None:
    more = write_csv(tmp_path / "more.csv", [1, 0], first=RECORDS)
    sentence = tpsl("vault", "add", vault, more, *COLUMNS[:4]).error()
    assert f"{more}, row 1: the record 'r{RECORDS}' is new and has no unit" in sentence
    bare = tmp_path / "bare"
    tpsl("vault", "add", "--new", bare, more, *COLUMNS[:4], "--apart", "a try")
    sentence = tpsl("vault", "add", bare, write_csv(tmp_path / "new.csv", [1]), *COLUMNS).error()
    assert "row 1: it comes with units, but the records before it have none" in sentence


def test_an_import_warns_of_near_duplicate_ids_and_nothing_is_refused(tpsl: Any, tmp_path: Path) -> None:
    vault, table = tmp_path / "vault", tmp_path / "labels.csv"
    table.write_text("id,label\n7,1\n007,1\nx,0\n")
    made = tpsl("vault", "add", "--new", vault, table, "--json")
    assert made.json()["records"] == 3
    assert "warning: 1 id is a near-duplicate of an earlier one, for example '007' of '7'" in made.stderr
    table.write_text("id,label\n X,1\n7.0,1\n")
    added = tpsl("vault", "add", vault, table, "--json")
    assert added.json()["new"] == 2
    assert "warning: 2 ids are near-duplicates of an earlier one, for example ' X' of 'x'" in added.stderr
    released = tpsl("vault", "release", vault, *DISCRETE, "--json")
    assert released.json()["released"] == 5 and "near-duplicate" not in released.stderr


def test_a_large_delta_is_refused_unless_it_is_asked_for(tpsl: Any, vault: Path) -> None:
    half = ("--set=privacy.mechanism=gaussian", "--set=privacy.sigma=1", "--set=privacy.delta=0.5")
    sentence = tpsl("vault", "release", vault, *half).error()
    assert "a record would have δ = 0.5 in all, more than 1/records = 0.0167 for 60 records" in sentence
    assert "--set local.max_delta=" in sentence
    assert "more than 0.4" in tpsl("vault", "release", vault, *half, "--set=local.max_delta=0.4").error()
    assert tpsl("vault", "ledger", vault, "--json").json()["released_records"] == 0
    assert tpsl("vault", "release", vault, *half, "--set=local.max_delta=0.5", "--json").json()["delta"] == 0.5


def test_a_faulty_table_leaves_no_vault(tpsl: Any, tmp_path: Path) -> None:
    vault, table = tmp_path / "vault", tmp_path / "labels.csv"
    assert str(table) in tpsl("vault", "add", "--new", vault, table).error()
    write_csv(table, [0, 1, 2])
    assert "clicks" in tpsl("vault", "add", "--new", vault, table, "--id", "record", "--label", "clicks").error()
    assert f"{table}: column 'clicked', row 3" in tpsl("vault", "add", "--new", vault, table, *COLUMNS).error()
    assert not Vault.exists(vault)
    assert tpsl("vault", "add", "--new", vault, table, *COLUMNS, "--classes", 3).status == 0
    assert str(vault) in tpsl("vault", "add", "--new", vault, table, *COLUMNS, "--classes", 3).error()


@pytest.mark.parametrize("command", ["release", "ledger", "verify"])
def test_a_path_that_is_no_vault_is_named(tpsl: Any, tmp_path: Path, command: str) -> None:
    options = ("--epsilon", 1) if command == "release" else ()
    assert str(tmp_path) in tpsl("vault", command, tmp_path, *options).error()
    (tmp_path / "vault.sqlite").write_text("no database at all " * 100)
    assert str(tmp_path) in tpsl("vault", command, tmp_path, *options).error()


def test_files_go_in_together_and_an_older_copy_does_not_have_the_noted_hash(
    tpsl: Any, vault: Path, tmp_path: Path
) -> None:
    for number in range(3):
        write_csv(tmp_path / f"late-{number}.csv", [1, 0], first=RECORDS + 2 * number)
    found = tpsl("vault", "add", vault, tmp_path / "late-*.csv", *COLUMNS, "--json").json()
    assert (found["new"], found["unchanged"]) == (6, 0)
    copied = tpsl("vault", "backup", vault, "--out", tmp_path / "copy", "--json").json()["head"]
    tpsl("vault", "release", vault, "--epsilon", 1)
    noted = tpsl("vault", "ledger", vault, "--json").json()["head"]
    older = json.loads(tpsl("vault", "verify", tmp_path / "copy", "--hash", noted, "--json").stdout)
    assert (older["sound"], older["entries_since_head"]) == (False, None)
    newest = tpsl("vault", "verify", vault, "--hash", copied, "--json").json()
    assert (newest["sound"], newest["entries_since_head"]) == (True, 1)


def test_a_name_is_a_label_of_the_vault_unless_a_vault_here_has_it(
    tpsl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = write_csv(tmp_path / "labels.csv", [row % 2 for row in range(RECORDS)])
    other = write_csv(tmp_path / "other.csv", [row // 2 % 2 for row in range(RECORDS)])
    assert str(the_vault()) in tpsl("vault", "ledger").error()
    (tmp_path / "loans").mkdir()  # a folder, and no vault
    for name, file in (("loans", table), ("clicks", other)):
        tpsl("vault", "add", "--new", name, file, *COLUMNS, "--json").json()
    assert tpsl("vault", "release", "loans", *DISCRETE, "--json").json()["vault"] == str(the_vault() / "loans")
    listed = tpsl("vault", "ledger", "--json").json()
    assert listed["vault"] == str(the_vault())
    found = [(each["label"], each["released_records"], each["epsilon_per_record"]) for each in listed["labels"]]
    assert found == [("loans", RECORDS, 1.0), ("clicks", 0, 0.0)]
    shown = [line.split() for line in tpsl("vault", "ledger").stdout.splitlines()]
    assert ["loans", f"{RECORDS:,}", f"{RECORDS:,}", "ε", "=", "1", "ε", "=", "1"] in shown
    assert tpsl("vault", "ledger", "clicks").facts()["over all labels"] == "1"
    assert "'nowhere'; its labels are: loans, clicks" in tpsl("vault", "ledger", "nowhere").error()
    apart = ("--apart", "patients of another country")
    assert tpsl("vault", "add", "--new", "far", table, *COLUMNS, *apart, "--json").json()["vault"] == "far"
    assert tpsl("vault", "ledger", "far", "--json").json()["vault"] == "far"
    assert "apart" in tpsl("vault", "add", "--new", the_vault() / "third", table, *COLUMNS, *apart).error()
    assert [each["label"] for each in tpsl("vault", "ledger", "--json").json()["labels"]] == ["loans", "clicks"]


def test_the_whole_vault_is_verified_copied_and_moved(tpsl: Any, tmp_path: Path) -> None:
    table = write_csv(tmp_path / "labels.csv", [row % 2 for row in range(RECORDS)])
    other = write_csv(tmp_path / "other.csv", [row // 2 % 2 for row in range(RECORDS)])
    for name, file in (("loans", table), ("clicks", other)):
        tpsl("vault", "add", "--new", name, file, *COLUMNS, "--json").json()
        tpsl("vault", "release", name, *DISCRETE, "--json").json()
    copied = tpsl("vault", "backup", "--out", tmp_path / "copy", "--json").json()
    assert (copied["vault"], copied["labels"]) == (str(the_vault()), 2)
    for vault in ((), ("clicks",), (tmp_path / "copy",), (tmp_path / "copy" / "loans",)):
        assert tpsl("vault", "verify", *vault, "--hash", copied["head"], "--json").json()["entries_since_head"] == 0
    again = ("vault", "release", tmp_path / "copy" / "loans", "--epsilon", 2, "--set=local.compose=true")
    assert str(the_vault()) in tpsl(*again).error()
    moved = tpsl("vault", "move", tmp_path / "moved", "--json").json()
    assert moved["vault"] == str(the_vault()) == str(tmp_path / "moved")
    assert tpsl("vault", "ledger", "clicks", "--json").json()["epsilon_per_record"] == 1.0
    assert tpsl("vault", "move", tmp_path / "copy").error()  # there would be two
    (tmp_path / "moved").rename(tmp_path / "by hand")
    assert tpsl("vault", "ledger", "clicks").status == 1
    assert tpsl("vault", "move", tmp_path / "by hand").status == 0
    assert tpsl("vault", "ledger", "clicks").status == 0
