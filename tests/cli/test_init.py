"""`tpsl init`: from tables that nobody prepared to a page, in one process and in two, by the commands it names."""

from __future__ import annotations

import csv
import math
import random
import re
import shutil
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from tpsl.run.job import load_job
from tpsl.run.local import load_local

CUSTOMERS = 5000


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two exports: a bank's customers, as a spreadsheet has saved them, and a lender's loans."""
    draw = random.Random(5)
    folder = tmp_path_factory.mktemp("files")
    loans = []
    with (folder / "customers.csv").open("w", encoding="utf-8-sig", newline="") as file:
        rows = csv.writer(file, delimiter=";", lineterminator="\r\n")
        rows.writerow(
            [
                "Customer ID",
                "Full name",
                "Annual income",
                "Age",
                "Work",
                "Account opened",
                "Postcode",
                "Currency",
                "Notes",
            ]
        )
        for number in range(CUSTOMERS):
            income, age = draw.lognormvariate(10.8, 0.5), draw.randint(19, 80)
            work = draw.choice(["employed", "self-employed", "retired", "student"])
            opened = date(2019, 1, 1) + timedelta(days=draw.randint(0, 1800))
            logit = -1.0 - 2.0 * (income > 50_000) + 2.0 * (work == "student") + 1.5 * (age < 30)
            loans.append((f"C-{number:05}", draw.random() < 1 / (1 + math.exp(-logit))))
            rows.writerow(
                [
                    f"C-{number:05}",
                    f"Person {number}",
                    "n/a" if draw.random() < 0.05 else f"{income:.2f}".replace(".", ","),
                    "" if draw.random() < 0.03 else age,
                    "?" if draw.random() < 0.05 else work,
                    opened.strftime("%d.%m.%Y"),
                    f"{draw.randint(100, 300):04}",
                    "CHF",
                    "",
                ]
            )
    draw.shuffle(loans)
    with (folder / "loans.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["client_no", "amount", "status"]])
        for client, defaulted in loans:
            csv.writer(file).writerow([client, draw.randint(1, 90) * 1000, "defaulted" if defaulted else "repaid"])
    return folder


@pytest.fixture
def folder(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of one's own with both files, in which commands run."""
    for file in files.iterdir():
        shutil.copy(file, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def steps(printed: str) -> dict[str, list[str]]:
    """Return the commands that are said to come next, by what they are for."""
    found = re.findall(r"^ {2}(\S.*?) {2,}tpsl (.*)$", printed.partition("\nNext\n")[2], re.MULTILINE)
    return {name: command.split() for name, command in found}


def test_two_files_nobody_prepared_become_a_page(tpsl: Any, folder: Path) -> None:
    made = tpsl("init", "customers.csv", "loans.csv")
    assert made.status == 0, made.stderr
    job = load_job(folder / "job.yaml")
    assert job.data.features[0].model_dump(exclude_defaults=True) == {  # type: ignore[union-attr]
        "path": folder / "customers.csv",
        "id": "Customer ID",
        "categorical": ("Work", "Postcode"),
        "numeric": ("Annual income", "Age"),
        "dates": ("Account opened",),
        "date_order": "day",
        "missing": ("", "n/a", "?"),
    }
    assert job.data.label.model_dump(exclude_defaults=True) == {  # type: ignore[union-attr]
        "path": folder / "loans.csv",
        "id": "client_no",
        "label": "status",
    }
    assert job.data.class_values == ("repaid", "defaulted")  # type: ignore[union-attr]
    assert job.privacy.epsilon == 1.0
    next_steps = steps(made.stdout)
    trained = tpsl(*next_steps["train, in one process"], "--json")
    assert trained.json()["test_auc"] > 0.65
    assert "400 held-out records" in trained.stderr
    assert tpsl(*next_steps["make the page"]).status == 0
    assert "</html>" in (folder / "report.html").read_text()


def test_the_same_files_train_as_two_programs(tpsl: Any, programs: Any, folder: Path) -> None:
    next_steps = steps(tpsl("init", "customers.csv", "loans.csv").stdout)
    assert tpsl(*next_steps["two parties: first"]).status == 0
    serve = programs(
        folder, *next_steps["label party: train"], "--listen", "127.0.0.1:0", "--set=local.log=json", "--json"
    )
    address = serve.wait_for("listening")["address"]
    join = programs(folder, *next_steps["feature party: train"], "--connect", address, "--set=local.log=json", "--json")
    assert serve.result()["test_auc"] is None  # computed by another command, whose end no peer sees
    assert tpsl(*next_steps["label party: test, afterwards"], "--json").json()["test_auc"] > 0.65
    assert join.result()["train_records"] == 0.8 * CUSTOMERS
    assert tpsl("report", "runs/job-label").status == 0


def test_guesses_are_shown_with_what_is_left_out_and_why(tpsl: Any, folder: Path) -> None:
    made = tpsl("init", "customers.csv", "loans.csv", "--out", "new/jobs")
    for shown in (
        r"customers\.csv \(feature\): 5,000 records, id 'Customer ID'",
        r"Full name +– \(hardly repeats, as ids do\) +0 +5,000",
        r"Annual income +number +2\d\d +4,\d\d\d",
        r"Currency +– \(one value only\) +0 +1",
        r"Notes +– \(no values\) +5,000 +0",
        r"label 'status': repaid \(\d,\d\d\d\), defaulted \(\d,\d\d\d\)",
        r"Wrote new/jobs/job\.yaml, new/jobs/feature\.yaml and new/jobs/label\.yaml",
    ):
        assert re.search(shown, made.stdout), f"{shown}\n{made.stdout}"
    assert "not used of the label party: amount" in made.stderr
    job = load_job(folder / "new/jobs/job.yaml")
    assert job.data.label.path.samefile(folder / "loans.csv")  # type: ignore[union-attr]
    label, feature = load_local(folder / "new/jobs/label.yaml"), load_local(folder / "new/jobs/feature.yaml")
    assert (label.party, label.listen, label.max_epsilon) == ("label", "127.0.0.1:7443", 1.0)
    assert (feature.party, feature.connect) == ("feature", "127.0.0.1:7443")
    assert Path(str(label.data)).samefile(folder / "loans.csv")
    assert Path(str(feature.data)).samefile(folder / "customers.csv")


def test_messy_tables_are_read_as_people_mean_them(tpsl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    incomes = [f"{number}.250,50" for number in range(1, 99)] + ["940,00", "unknown"]
    rows = [
        f"c{number};{income};{'north' if number % 3 else 'south'};{1 + number % 30}.7.{number % 25:02}"
        for number, income in enumerate(incomes)
    ]
    Path("clients.csv").write_text("\n".join(["id;income;region;since", *rows]) + "\n")
    spellings = ["Default", "paid", "DEFAULT ", "Paid", "default"]
    labels = [f"c{number},{spellings[number % 5]}" for number in range(100)]
    Path("loans.csv").write_text("\n".join(["id,result", *labels]) + "\n")
    made = tpsl("init", "clients.csv", "loans.csv")
    assert made.status == 0, made.stderr
    assert "taken for missing values, and named in the job: 'unknown'" in made.stderr
    data = load_job(Path("job.yaml")).data
    assert "since: dates as 1.7.00 are in 1969 to 2068" in made.stderr
    assert data.features[0].numeric == ("income",)  # type: ignore[union-attr]
    assert (data.features[0].dates, data.features[0].date_order) == (("since",), "day")  # type: ignore[union-attr]
    assert data.class_values == ("paid", "default")  # type: ignore[union-attr]
    swapped = tpsl("init", "loans.csv", "clients.csv", "--out", "swapped").stderr
    assert "'result' of loans.csv looks like a label: the table of labels comes last" in swapped
    named = tpsl("train", "--epsilon", -1)
    assert "no job file was named, so job.yaml in this folder is not used" in named.stderr


def test_options_name_ids_label_and_epsilon(tpsl: Any, folder: Path) -> None:
    named = ("--id", "Customer ID", "--id", "client_no", "--label", "status", "--epsilon", 0.5)
    found = tpsl("init", "customers.csv", "loans.csv", *named, "--json").json()
    columns = {table["party"]: table["columns"] for table in found["tables"]}
    assert columns["label"] == {"amount": None}
    assert (columns["feature"]["Postcode"], columns["feature"]["Currency"]) == ("category", None)
    content = yaml.safe_load((folder / "job.yaml").read_text())
    assert content["data"]["class_values"] == ["repaid", "defaulted"]
    assert content["privacy"] == {"epsilon": 0.5}
    assert load_local(folder / "label.yaml").max_epsilon == 0.5
    assert found["findings"] == []


def test_nothing_is_written_over(tpsl: Any, folder: Path) -> None:
    (folder / "label.yaml").write_text("party: label\n")
    sentence = tpsl("init", "customers.csv", "loans.csv", "--json").error()
    assert sentence == "error: label.yaml: is there already; remove it, or choose another --out"
    assert not (folder / "job.yaml").exists()


def test_ids_that_differ_are_to_be_aligned(tpsl: Any, folder: Path) -> None:
    customers = (folder / "customers.csv").read_text().splitlines()
    (folder / "few.csv").write_text("\n".join(customers[:301]))
    loans = sorted((folder / "loans.csv").read_text().splitlines()[1:])
    (folder / "some.csv").write_text("\n".join(["client_no,amount,status", *loans[100:400]]))
    made = tpsl("init", "few.csv", "some.csv")
    assert made.status == 0
    assert yaml.safe_load((folder / "job.yaml").read_text())["data"]["alignment"] == {"mode": "both"}
    aligned = tpsl(*steps(made.stdout)["find common records"], "--json").json()
    assert aligned["parties"]["label"]["records"] == 200


def test_errors_are_told_also_where_ids_differ(tpsl: Any, folder: Path) -> None:
    customers = (folder / "customers.csv").read_text().splitlines()
    lines = [
        customers[0],
        *(re.sub(r";\d+,\d+;", ";inf;", line) if "C-00007" in line else line for line in customers[1:301]),
    ]
    (folder / "few.csv").write_text("\n".join(lines))
    made = tpsl("init", "few.csv", "loans.csv")
    assert made.status == 1, made.stdout
    (error,) = [line for line in made.stdout.splitlines() if line.startswith("error: ")]
    assert re.search(r"few\.csv: column 'Annual income', row \d: ", error)
    assert steps(made.stdout) == {"mend them, then": ["check", "job.yaml"]}


def test_names_of_columns_are_shown_as_they_are(tpsl: Any, folder: Path) -> None:
    (folder / "a.csv").write_text("id,income [chf]\n" + "".join(f"{number},{number % 7}\n" for number in range(50)))
    (folder / "b.csv").write_text("id,paid\n" + "".join(f"{number},{number % 2}\n" for number in range(50)))
    assert re.search(r"income \[chf\] +number", tpsl("init", "a.csv", "b.csv").stdout)
    assert re.search(r"income \[chf\] +number", tpsl("check", "job.yaml").stdout)


def test_ids_of_which_none_is_common_are_refused(tpsl: Any, folder: Path) -> None:
    text = (folder / "loans.csv").read_text().replace("C-0", "")
    (folder / "others.csv").write_text(text)
    sentence = tpsl("init", "customers.csv", "others.csv", "--json").error()
    assert "'Customer ID' of customers.csv (as 'C-00000') and 'client_no' of others.csv (as " in sentence
    assert "have no value in common: ids must be written in the same way" in sentence


def test_each_side_describes_its_own_table_and_one_of_them_the_job(tpsl: Any, folder: Path) -> None:
    assert tpsl("init", "loans.csv", "--party", "label", "--epsilon", 2, "--out", "lender").status == 0
    part = (folder / "lender/labels.part.yaml").read_text()
    assert "repaid" in part
    assert not re.search(r"\d{4}", part), "no counts"
    made = tpsl("init", "customers.csv", "--party", "feature", "--with", "lender/labels.part.yaml", "--out", "bank")
    assert made.status == 0
    job = load_job(folder / "bank/job.yaml")
    assert (job.privacy.epsilon, job.data.class_values) == (2.0, ("repaid", "defaulted"))  # type: ignore[union-attr]
    assert steps(made.stdout)["feature party: train"][:2] == ["feature", "join"]
    assert not (folder / "bank/label.yaml").exists()


def test_a_part_from_the_other_side_says_nothing_of_this_sides_privacy_and_files(tpsl: Any, folder: Path) -> None:
    assert tpsl("init", "customers.csv", "--party", "feature", "--out", "bank").status == 0
    part = yaml.safe_load((folder / "bank/features.part.yaml").read_text())
    part["data"]["features"][0]["path"] = str(folder / "customers.csv")
    part["privacy"] = {"epsilon": 50.0, "noise_seed": 1, "mechanism": "none"}
    (folder / "part.yaml").write_text(yaml.safe_dump(part))
    found = tpsl("init", "loans.csv", "--party", "label", "--with", "part.yaml", "--json").json()
    content = yaml.safe_load((folder / "job.yaml").read_text())
    assert content["privacy"] == {"epsilon": 1.0}
    assert load_local(folder / "label.yaml").max_epsilon == 1.0
    assert content["data"]["features"][0]["path"] == "customers.csv"
    assert [table["party"] for table in found["tables"]] == ["label"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("customers.csv",), "say --party feature or --party label"),
        (("customers.csv", "loans.csv", "--party", "label"), "init takes the table of features and the table of"),
        (("customers.csv", "nowhere.csv"), "nowhere.csv: there is no such file"),
        (("customers.csv", "loans.csv", "--label", "amount"), "'amount' has 90 different numbers, so it is a quantity"),
        (("customers.csv", "loans.csv", "--label", "Agee"), "there is no column 'Agee'; the columns are 'Customer ID'"),
        (
            ("customers.csv", "--party", "feature", "--epsilon", "1"),
            "how private labels are is for the label party to say",
        ),
        (("loans.csv", "--party", "label", "--with", "loans.csv"), "loans.csv: is no part of a job"),
    ],
)
def test_what_cannot_be_is_one_sentence(tpsl: Any, folder: Path, arguments: tuple[str, ...], sentence: str) -> None:
    assert sentence in tpsl("init", *arguments, "--json").error()
    assert not list(folder.glob("*.yaml"))


@pytest.fixture
def rare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with 2,500 customers, 25 of whom are frauds."""
    draw = random.Random(3)
    frauds = set(draw.sample(range(2500), 25))
    with (tmp_path / "shop.csv").open("w") as features, (tmp_path / "bank.csv").open("w") as labels:
        features.write("id,spent,visits\n")
        labels.write("id,fraud\n")
        for number in range(2500):
            features.write(f"c{number},{draw.gauss(number in frauds, 1):.4f},{draw.randint(1, 90)}\n")
            labels.write(f"c{number},{'yes' if number in frauds else 'no'}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_rare_label_is_told_before_anything_is_released(tpsl: Any, rare: Path) -> None:
    drowns = re.compile(r"about (\d+) labels 'yes' drown in the noise at ε = 1, .*use ε ≥ (\d+), (\d+) times")
    made = tpsl("init", "shop.csv", "bank.csv")
    checked = tpsl("check", "job.yaml")
    alone = tpsl("init", "bank.csv", "--party", "label", "--out", "alone")
    here = ("--set=local.insecure_loopback=true", "--listen", "127.0.0.1:0")
    waiting = (*here, "--set=local.wait=0", "--out", "waited")
    served = tpsl("label", "serve", "job.yaml", *waiting)
    trained = tpsl("train", "job.yaml", "--out", "run")
    assert served.status == 1 and trained.status == 0, trained.stderr
    for said in (made.stdout, checked.stdout, alone.stdout, served.stderr, trained.stderr):
        found = drowns.search(said)
        assert found is not None, said
        positives, epsilon, times = map(int, found.groups())
        assert (15 <= positives <= 25, epsilon) == (True, 6) and times > 10
    assert served.stderr.index("drown") < served.stderr.index("listening")
    assert trained.stderr.index("drown") < trained.stderr.index("released")
    for written in rare.rglob("*.yaml"):
        text = written.read_text().replace(str(rare), "").replace("--epsilon", "")
        assert "drown" not in text and "25" not in text
    facts = trained.facts()
    assert facts["hold-out AUC"] == "– (too few noisy labels to estimate it)"
    low = float(facts["test AUC"].split()[4])
    assert facts.get("verdict", "").startswith("no better than guessing") == (low <= 0.5)


def test_a_label_that_is_not_rare_is_not_called_so(tpsl: Any, folder: Path) -> None:
    made = tpsl("init", "customers.csv", "loans.csv")
    assert "clean ones" not in made.stdout
    assert "drown" not in tpsl("check", "job.yaml").stdout


def test_the_limit_that_init_writes_holds_in_its_own_command(tpsl: Any, rare: Path) -> None:
    command = steps(tpsl("init", "shop.csv", "bank.csv").stdout)["train, in one process"]
    first = tpsl(*command)
    assert first.status == 0, first.stderr
    assert "read beside the job, as tpsl init writes them: label.yaml, feature.yaml" in first.stderr
    other = [*command[:2], "--epsilon", 2, "--out", "runs/second"]
    free = tpsl(*other).error()
    assert free.startswith(
        "error: 2,000 records were released before under something else (2,000 under discrete (ε = 1)"
    )
    costs = [
        free.index(way) for way in ("cost nothing", "--scratch", "local.compose=true", "to ε = 3 in all, for good")
    ]
    assert costs == sorted(costs)
    refused = tpsl(*other, "--set=local.compose=true").error()
    assert "to ε = 3 in all, more than the ε = 1 that the label party permits" in refused
    (rare / "elsewhere.yaml").write_text("party: label\nmax_epsilon: 3.0\n")
    assert (
        tpsl(*other, "--set=local.compose=true", "--local", "elsewhere.yaml", "--json").json()["total_epsilon"] == 3.0
    )


def test_other_files_beside_a_job_are_not_read(tpsl: Any, rare: Path) -> None:
    tpsl("init", "shop.csv", "bank.csv")
    (rare / "label.yaml").write_text("party: feature\nmax_epsilon: 0.0\n")
    (rare / "feature.yaml").write_text("- no local file\n")
    trained = tpsl("train", "job.yaml", "--out", "run")
    assert trained.status == 0 and "read beside the job" not in trained.stderr
