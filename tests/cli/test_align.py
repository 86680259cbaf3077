"""`tpsl align` as users run it: in one process, and as two programs that train on what they have found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tpsl.data.aligned import Alignment
from tpsl.net.certificates import create_authority, issue
from tpsl.vault import Vault, the_vault

LOGGED = ("--set=local.log=json", "--set=local.threads=1")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shop and a bank, whose customers 100 to 199 are the same people, written in other ways."""
    monkeypatch.chdir(tmp_path)
    lines = ["mail,phone,size,day", *(f"u{n}@x.org,0151 {1000000 + n},{n % 13},{(7 * n) % 200}" for n in range(200))]
    (tmp_path / "shop.csv").write_text("\n".join([*lines, "u5@x.org,,1,3"]) + "\n")
    lines = [f"c{n},{f' U{n}@X.org' if n % 2 else ''},+49 151 {1000000 + n},{n % 3 == 0:d}" for n in range(100, 250)]
    (tmp_path / "bank.csv").write_text("\n".join(["customer,email,mobile,label", *lines]) + "\n")
    job = {
        "data": {
            "source": "table",
            "features": [
                {
                    "path": "shop.csv",
                    "party": "shop",
                    "numeric": ["size"],
                    "time": "day",
                    "keys": {"email": "mail", "phone": "phone"},
                }
            ],
            "label": {"path": "bank.csv", "id": "customer", "keys": {"email": "email", "phone": "mobile"}},
            "alignment": {"keys": ["email", {"name": "phone", "rule": "phone", "country": 49}]},
        },
        "privacy": {"mechanism": "discrete", "epsilon": 1.0},
        "training": {"batch_size": 32, "epochs": 1},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    return tmp_path


def people(folder: Path) -> dict[str, list[int]]:
    """Whom the records of each party are about; -1: unknown."""
    found = {party: Alignment.load(folder / "alignments" / f"job-{party}") for party in ("shop", "label")}
    assert found["shop"].digest == found["label"].digest
    return {
        "shop": found["shop"].rows.tolist(),
        "label": [row if row < 0 else row + 100 for row in found["label"].rows.tolist()],
    }


def test_one_process_aligns_and_trains(shop: Path, tpsl: Callable[..., Any]) -> None:
    done = tpsl("align", "job.yaml", "--together", "--json")
    label, feature = (done.json()["parties"][party] for party in ("label", "shop"))
    assert (label["records"], label["matched"], label["rows"], label["missing_keys"]) == (
        200,
        100,
        150,
        {"email": 75, "phone": 0},
    )
    assert (feature["records"], feature["matched"], feature["repeated_keys"]) == (200, None, {"email": 1, "phone": 0})
    assert feature["learned"][0] == "you: nothing of the label party's list but its length"
    assert "75 of 150 rows have no email that can be used" in done.stderr
    assert "1 of 201 rows repeat the email of an earlier row" in done.stderr
    found = people(shop)
    assert sorted(found["shop"]) == list(range(200))
    assert found["label"] == [person if person >= 100 else -1 for person in found["shop"]]
    checked = tpsl("check", "job.yaml", "--json").json()
    assert checked["passed"] and checked["classes"] == {"0": 167, "1": 33}
    trained = tpsl("train", "job.yaml", "--out", "run", "--json").json()
    assert trained["train_records"] + trained["test_records"] == 200
    (shop / "shop.yaml").write_text("party: shop\nalignment: alignments/job-shop\n")
    given = ("--records", "shop=shop.csv", "--local", "shop.yaml")
    assert tpsl("predict", "run", *given, "--out", "scores.csv").status == 0
    scored = [line.partition(",")[0] for line in (shop / "scores.csv").read_text().splitlines()[1:]]
    assert scored == [f'"{row:012d}"' for row in range(1, 201)], "rows of the file, which has no column of ids"
    again = tpsl("align", "job.yaml", "--together")
    assert again.status == 0 and "was aligned before" in again.stderr
    assert "100 of them known to the label party" in again.stdout


def test_mode_both_warns_and_size_cannot_train(shop: Path, tpsl: Callable[..., Any]) -> None:
    both = tpsl("align", "job.yaml", "--together", "--set=data.alignment.mode=both", "--json")
    assert both.json()["parties"]["shop"]["matched"] == 100
    assert "membership can be the label" in both.stderr
    found = people(shop)
    assert found["shop"] == found["label"] and sorted(found["shop"]) == list(range(100, 200))
    assert "holds another alignment" in tpsl("align", "job.yaml", "--together").error()
    refused = tpsl("train", "job.yaml", "--set=data.alignment.mode=size").error()
    assert "only the number of common records was found" in refused


def test_records_can_be_in_the_order_of_time(shop: Path, tpsl: Callable[..., Any]) -> None:
    assert tpsl("align", "job.yaml", "--together", "--set=data.alignment.order=time").status == 0
    days = [(7 * person) % 200 for person in people(shop)["shop"]]
    assert days == sorted(days)
    timed = ("--set=data.alignment.order=time", "--set=data.split=chronological")
    assert tpsl("train", "job.yaml", *timed, "--json").json()["test_records"] == 40


def test_what_cannot_be_aligned_is_one_sentence(shop: Path, tpsl: Callable[..., Any]) -> None:
    content = yaml.safe_load((shop / "job.yaml").read_text())
    (shop / "flights.yaml").write_text("data: {source: flights}")
    assert (
        "only tables are aligned, and the job's data are 'flights'"
        in tpsl("align", "flights.yaml", "--together").error()
    )
    del content["data"]["alignment"]
    (shop / "without.yaml").write_text(yaml.safe_dump(content))
    assert "the job has no data.alignment" in tpsl("align", "without.yaml", "--together").error()
    assert "given more than once" in tpsl("align", "job.yaml", "--local", "a", "--local", "b").error(2)
    loopback = ("--set=local.insecure_loopback=true", "--party")
    assert "needs an address to listen at" in tpsl("align", "job.yaml", *loopback, "label").error()
    assert "needs the label party's address" in tpsl("align", "job.yaml", *loopback, "shop").error()


def test_two_programs_align_and_train_over_mutual_tls(shop: Path, programs: Callable[..., Any]) -> None:
    create_authority(shop / "certs" / "authority")
    for party in ("label", "shop"):
        issue(shop / "certs" / "authority", shop / "certs" / party, party)

    def start(party: str, *arguments: str) -> Any:
        return programs(shop, *arguments, "job.yaml", "--certs", f"certs/{party}", *LOGGED, "--json")

    def listening(*arguments: str) -> tuple[Any, str]:
        label = start("label", *arguments, "--listen", "127.0.0.1:0")
        return label, label.wait_for("listening")["address"]

    aligning, address = listening("align")
    feature = start("shop", "align", "--connect", address).result()
    label = aligning.result()
    assert (label["records"], label["matched"], feature["matched"]) == (200, 100, None)
    assert label["bytes_sent"] == feature["bytes_received"] > 0
    found = people(shop)
    assert found["label"] == [person if person >= 100 else -1 for person in found["shop"]]
    serving, address = listening("label", "serve")
    with Vault.open(the_vault()) as vault:
        kinds = [entry.kind for entry in vault.ledger().entries]
    assert kinds[-1] == "released", "before anybody can measure how long it takes"
    joined = start("shop", "feature", "join", "--connect", address).result()
    trained = serving.result()
    assert trained["train_records"] == joined["train_records"] == 160 and trained["total_epsilon"] == 1.0
