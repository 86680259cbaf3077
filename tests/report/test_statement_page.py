"""The page of a statement: everything that was signed, on paper too, and nothing that runs or is fetched."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import pytest

from tpsl.handover.signing import sign
from tpsl.mechanisms import gaussian, laplace, randomized_response
from tpsl.net.certificates import create_authority, issue
from tpsl.report.statement_page import MEANING, statement_page
from tpsl.report.words import spent_text
from tpsl.vault import Vault

HOSTILE = "<script>alert(1)</script>\"'&$title"


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("statement")
    create_authority(folder / "authority")
    issue(folder / "authority", folder / "label", "label")
    units = [f"u{row // 3}" for row in range(3000)]
    with Vault.create(folder / "vault", batches=[(range(3000), [0, 1, 1] * 1000, units)]) as vault:
        vault.release(laplace(1.0))
        vault.release(gaussian(2.0, 1e-6), draws=2, compose=True)
        vault.release(randomized_response(0.5), ids=range(100), compose=True)
        return sign({**vault.statement(), "program": "tpsl 1.2.3"}, folder / "label")


def test_the_page_says_all_that_was_signed(document: dict[str, Any], browser: Any, tmp_path: Path) -> None:
    content = document["content"]
    (tmp_path / "page.html").write_text(statement_page(document, "statement.json"), encoding="utf-8")
    browser.open(tmp_path / "page.html")
    text = re.sub(r"\s+", " ", browser.run("return document.body.innerText"))
    assert "3,000 of 3,000 labels were released as noisy labels" in text
    for part in (content["ids_digest"], content["ledger_head"], content["signer"]["certificate"], content["time"]):
        assert part in text
    assert text.count(spent_text(content["epsilon_per_record"], content["delta_per_record"])) == 2
    assert spent_text(content["largest_unit"]["epsilon"], content["largest_unit"]["delta"]) + " (3 records)" in text
    for release in content["releases"]:
        assert release["mechanism"] in text
        assert release["table_digest"] in text
    assert all(sentence in text for sentence in MEANING)
    assert document["signature"] in text.replace(" ", "")
    assert "statement --check statement.json" in text
    assert browser.console() == []
    assert browser.requests() == [(tmp_path / "page.html").as_uri()]
    browser.open(tmp_path / "page.html", width=380)
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")


def test_the_page_says_in_which_ways_labels_were_released(document: dict[str, Any]) -> None:
    labels, statistic = document["content"]["releases"][0], {"noise": "laplace", "scale": 9, "bound": 7, "width": 3}
    for releases, words in (
        ([{**labels, "spec": statistic}], "labels were released in noisy statistics,"),
        ([labels, {**labels, "spec": statistic}], "labels were released as noisy labels or in noisy statistics,"),
        ([], "labels were released as noisy labels,"),
    ):
        content = {**document["content"], "releases": releases}
        assert words in statement_page({**document, "content": content}, "statement.json")


def test_a_total_of_units_that_is_not_stated_is_explained(document: dict[str, Any]) -> None:
    content = {**document["content"], "largest_unit": None}
    page = statement_page({**document, "content": content}, "statement.json")
    assert "not stated: no units are kept, or they would tell whom the label party knows" in page


def test_it_prints_on_two_sheets_at_most(document: dict[str, Any], browser: Any, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(statement_page(document, "statement.json"), encoding="utf-8")
    browser.open(tmp_path / "page.html")
    printed = browser.call("Page.printToPDF", preferCSSPageSize=True)
    pages = len(re.findall(rb"/Type\s*/Page\b", base64.b64decode(printed["data"])))
    assert 1 <= pages <= 2


def test_what_a_certificate_or_a_mechanism_is_called_stays_text(document: dict[str, Any]) -> None:
    content = {**document["content"], "program": HOSTILE, "private": False}
    content["signer"] = {**content["signer"], "subject": HOSTILE}
    content["releases"] = [{**content["releases"][0], "mechanism": HOSTILE, "noise": "seeded"}]
    page = statement_page({**document, "content": content}, HOSTILE)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") == 5
    assert "NOT PRIVATE: at least one release had no noise" in page
    assert "(seeded noise, NOT PRIVATE)" in page
    assert "Nothing was released." in statement_page({**document, "content": {**content, "releases": []}}, "x")
