"""From overlapping customer lists to scores without tpsl, as users do it: a program for each party, over mutual TLS."""

from __future__ import annotations

import contextlib
import csv
import re
import runpy
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpsl.data.aligned import Alignment
from tpsl_research.example_data import write_flights

EXAMPLE = Path(__file__).parents[2] / "examples" / "life-cycle"
SHORT = ("--set=training.epochs=1", "--set=local.threads=1")
RECORDED = ("job.yaml", *SHORT, "--set=local.record_transcript=true")

# An exported script, run as its owner does; whoever imports tpsl there fails.
WITHOUT_TPSL = """
import runpy, sys

sys.modules["tpsl"] = None
sys.path.insert(0, "exported")
sys.argv = ["predict.py", *arguments]
runpy.run_path("exported/predict.py", run_name="__main__")
"""

COMPANIES = {"label": "airline", "airport": "airport", "agency": "agency"}

Rows = list[dict[str, str]]


def read(path: Path) -> Rows:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write(path: Path, rows: Rows) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def people(path: Path) -> set[str]:
    """Return whom a list is about: the last digits of the telephone number, which all spell alike."""
    (phone,) = {"phone", "telephone", "mobile"} & set(read(path)[0])
    return {row[phone][-4:] for row in read(path)}


def assert_another_shape(old: Path, new: Path) -> None:
    """New records have unseen categories, missing values, another order of columns, and one more column."""
    before, after = read(old), read(new)
    assert not {row["month"] for row in after} <= {row["month"] for row in before}
    assert any(row["pressure"] == "" for row in after)
    assert [name for name in after[0] if name in before[0]] != list(before[0])
    assert "terminal" in after[0]


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lists that `examples/life-cycle/customers.py` makes."""
    folder = tmp_path_factory.mktemp("lists")
    write_flights(folder / "flights", "all", rows=4000)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        runpy.run_path(str(EXAMPLE / "customers.py"))
    return folder


class Companies:
    """A folder for each party of a job, with its lists and its certificate, and the programs that run there."""

    def __init__(
        self, programs: Callable[..., Any], fork: Callable[..., Any], here: Callable[..., Any], folder: Path
    ) -> None:
        self._programs, self._fork, self._here, self.folder = programs, fork, here, folder

    def found(self, job: str, lists: dict[str, tuple[Path, ...]]) -> None:
        """Make the folders of the parties, the label party's first."""
        self.parties = list(lists)
        shutil.copy(EXAMPLE / job, self.folder / "job.yaml")
        self._programs(self.folder, "certs", "job.yaml", "--json").result()
        for party, files in lists.items():
            shutil.copytree(self.folder / "certs" / party, self.folder / party / "certs")
            for file in (EXAMPLE / job, *files):
                shutil.copy(file, self.folder / party / ("job.yaml" if file.suffix == ".yaml" else file.name))

    def tpsl(self, party: str, *arguments: object) -> Any:
        return self._programs(self.folder / party, *arguments, "--json")

    def together(self, command: Callable[[str], tuple[object, ...]]) -> dict[str, dict[str, Any]]:
        """Run a command at each party at the same time, and return what each has printed."""
        label = self.tpsl("label", *command("label"), "--certs", "certs", "--listen", "127.0.0.1:0")
        until = time.monotonic() + 60
        while not (listening := re.search(r"listening.* (127\.0\.0\.1:\d+)", label.log())) and time.monotonic() < until:
            assert label.is_running(), label.log()
            time.sleep(0.02)
        assert listening
        started = {"label": label}
        for party in self.parties[1:]:
            started[party] = self.tpsl(party, *command(party), "--certs", "certs", "--connect", listening[1])
        results = {party: program.result() for party, program in started.items()}
        assert "lost: the connection ended" not in label.log()
        return results

    def train(self) -> dict[str, dict[str, Any]]:
        return self.together(
            lambda party: (
                *(("label", "serve") if party == "label" else ("feature", "join")),
                *RECORDED,
                "--out",
                "run",
            )
        )

    def hand_over(self, *names: str) -> None:
        """Give the label party what it needs of the others to attack and to audit."""
        for party in self.parties[1:]:
            for name in names:
                here, there = (self.folder / each / name.format(party) for each in (party, "label"))
                (shutil.copytree if here.is_dir() else shutil.copy2)(here, there)

    def send(self, party: str, name: str, new_name: str) -> None:
        """Give the label party a file."""
        shutil.copy(self.folder / party / name, self.folder / "label" / new_name)

    def export(self) -> dict[str, dict[str, Any]]:
        """Let every party export its half, in this process, which gets the exporter ready once; return their cards."""
        cards = {}
        for party in self.parties:
            with contextlib.chdir(self.folder / party):
                exported = self._here("export", "run", "--party", party, "--out", "exported", "--json")
            cards[party] = exported.json()["card"]
        assert {state for card in cards.values() for state in card["files"].values()} == {"written"}
        return cards

    def use_export(self, party: str, engine: str, out: str, *options: str) -> Any:
        """Run the exported script of a party; return the array that it has written."""
        script = self.script(party, *options, "--engine", engine, "--out", out)
        assert script.status(60) == 0, script.stderr.read_text()
        return np.load(self.folder / party / out)

    def script(self, party: str, *arguments: str) -> Any:
        return self._fork(WITHOUT_TPSL, self.folder / party, arguments=arguments)

    def scores(self, party: str) -> dict[str, float]:
        return {row["id"]: float(row["score"]) for row in read(self.folder / party / "scores.csv")}


@pytest.fixture
def companies(
    programs: Callable[..., Any], fork: Callable[..., Any], tpsl: Callable[..., Any], tmp_path: Path
) -> Companies:
    return Companies(programs, fork, tpsl, tmp_path)


def align_and_train(companies: Companies, own: Path, claims: Path) -> None:
    aligned = companies.together(lambda party: ("align", "job.yaml"))
    common = people(own) & people(claims)
    assert 0 < len(common) < len(people(claims))
    assert (aligned["label"]["records"], aligned["label"]["matched"]) == (len(read(own)), len(common))
    assert aligned["airport"]["matched"] is None
    assert aligned["label"]["digest"] == aligned["airport"]["digest"]
    trained = companies.train()
    assert trained["label"]["train_records"] == trained["airport"]["train_records"]
    assert trained["label"]["total_epsilon"] == 2.0


def attack_and_audit(companies: Companies) -> None:
    companies.hand_over("run/{}")
    found = companies.tpsl("label", "attack", "run").result()
    best = found["attacks"]["likelihood"]
    assert abs(best["auc"] - best["closed_form"]) < 2.5 * (best["auc_high"] - best["auc_low"]) / 2  # α = 1e-6
    assert "airport.csv: there is no such file" in found["not_run"]["completion"]
    companies.hand_over("{}.csv", "alignments/job-{}")
    found = companies.tpsl("label", "attack", "run", "--only", "completion").result()
    assert set(found["attacks"]) == {"completion"}
    audited = companies.tpsl(
        "label", "audit", "run", "--only", "canaries", "--only", "replay", "--only", "vault"
    ).result()
    assert audited["passed"]
    assert audited["canaries"]["lower_bound"] > 1.0
    assert audited["replay"]["flipped"] > 500


def assert_that_a_missing_column_is_one_sentence(companies: Companies, new: Path) -> None:
    lacking = [{name: value for name, value in row.items() if name != "visib"} for row in read(new)]
    write(companies.folder / "airport" / "lacking.csv", lacking)
    joint = ("predict", "run", "--records", "lacking.csv", "--out", "scores.csv", "--connect", "127.0.0.1:1")
    refused = companies.tpsl("airport", *joint).error()
    assert "lacking.csv: there is no column 'visib'; the columns are 'pressure'" in refused
    script = companies.script("airport", "--records", "lacking.csv", "--out", "share.npy")
    assert script.status(60) == 2
    sentence = "error: lacking.csv: record 1: there is no column 'visib', which the encoder has learned from\n"
    assert script.stderr.read_text().endswith(sentence)


@pytest.mark.long
def test_an_airport_and_an_airline_that_keeps_its_claims_to_itself(companies: Companies, lists: Path) -> None:
    own, claims, new = (lists / name for name in ("airport.csv", "claims.csv", "new-airport.csv"))
    companies.found("job.yaml", {"label": (claims,), "airport": (own, new)})
    align_and_train(companies, own, claims)
    attack_and_audit(companies)

    assert_another_shape(own, new)
    at_airport = ("predict", "run", "--records", "new-airport.csv", "--numbered", "--out", "scores.csv")
    at_label = ("predict", "run", "--out", "scores.csv")
    companies.together(lambda party: at_label if party == "label" else at_airport)
    expected = list(companies.scores("label").values())
    assert np.std(expected) > 1e-3  # or anything would do
    returned = companies.scores("airport")
    assert list(returned) == [row["mail"] for row in read(new)]
    np.testing.assert_allclose(list(returned.values()), expected, atol=0.00501)

    cards = companies.export()
    assert cards["label"]["versions"] == cards["airport"]["versions"]
    for engine in ("torch", "onnx"):
        companies.use_export("airport", engine, "share.npy", "--records", "new-airport.csv")
        companies.send("airport", "share.npy", "airport.npy")
        found = companies.use_export("label", engine, "scores.npy", "--share", "airport=airport.npy")
        np.testing.assert_allclose(found, expected, atol=1e-5)
    assert_that_a_missing_column_is_one_sentence(companies, new)


@pytest.mark.long
def test_three_companies_whose_common_customers_are_no_secret(companies: Companies, lists: Path) -> None:
    files = {party: (lists / f"{name}.csv", lists / f"new-{name}.csv") for party, name in COMPANIES.items()}
    companies.found("three.yaml", files)
    folder = companies.folder

    aligned = companies.together(lambda party: ("align", "job.yaml"))
    common = set.intersection(*(people(old) for old, _ in files.values()))
    assert [found["records"] for found in aligned.values()] == [len(common)] * 3
    trained = companies.train()
    assert {result["train_records"] for result in trained.values()} == {round(0.8 * len(common))}
    companies.hand_over("run/{}")
    assert {"norm", "direction"} <= set(companies.tpsl("label", "attack", "run").result()["attacks"])
    assert companies.tpsl("label", "audit", "run", "--only", "vault").result()["passed"]

    new = {party: f"new-{name}.csv" for party, name in COMPANIES.items()}
    companies.together(lambda party: ("align", "job.yaml", f"--set=local.data={new[party]}", "--out", "aligned"))
    companies.together(
        lambda party: (
            *("predict", "run", "--records", new[party], "--set=local.alignment=aligned"),
            *(("--out", "scores.csv") if party == "label" else ()),
        )
    )
    # Exported halves read raw rows; to be in the same order is their users' business.
    ordered: dict[str, Rows] = {}
    for party in COMPANIES:
        rows = read(folder / party / new[party])
        ordered[party] = [rows[row] for row in Alignment.load(folder / party / "aligned").rows]
        write(folder / party / "ordered.csv", ordered[party])
    companies.export()
    scores = companies.scores("label")
    expected = [scores[row["customer"]] for row in ordered["label"]]
    assert len(expected) == len(scores) and np.std(expected) > 1e-3
    for engine in ("torch", "onnx"):
        shares = []
        for party in ("airport", "agency"):
            companies.use_export(party, engine, "share.npy", "--records", "ordered.csv")
            companies.send(party, "share.npy", f"{party}.npy")
            shares += ["--share", f"{party}={party}.npy"]
        found = companies.use_export("label", engine, "scores.npy", "--records", "ordered.csv", *shares)
        np.testing.assert_allclose(found, expected, atol=1e-5)
