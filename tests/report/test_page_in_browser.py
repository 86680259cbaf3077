"""The page as a reader meets it, in a real browser."""

import base64
import json
import shutil
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tpsl.report.page import page as page_of
from tpsl.report.page import write_page
from tpsl.report.run_reading import read_feature_run, read_run
from tpsl.report.run_table import summary
from tpsl.report.run_view import RunView
from tpsl.report.verdicts import first_shown
from tpsl.report.words import bound_text
from tpsl.run.job import make_job
from tpsl.run.one_process import train
from tpsl.run.run_folder import RunFolder
from tpsl.run.vaults import VaultChoice
from tpsl.vault import ReleasePolicy, Vault

SMALL: dict[str, Any] = {
    "data": {"source": "synthetic", "rows": 200, "numeric_fields": 3, "categorical_fields": 2},
    "model": {"embedding_dim": 4, "bottom": [8], "top": [8]},
    "training": {"batch_size": 80, "epochs": 1},
}

CONTRAST = """
const channel = c => { c /= 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const parse = colour => colour.match(/[\\d.]+/g).map(Number);
const behind = element => {
  for (let e = element; e; e = e.parentElement) {
    const colour = parse(getComputedStyle(e).backgroundColor);
    if (colour.length === 3 || colour[3] > 0.9) return colour;
  }
  throw new Error("no background");
};
const failures = [];
for (const element of document.body.querySelectorAll("*")) {
  if (["SCRIPT", "STYLE", "OPTION", "title", "desc"].includes(element.tagName)) continue;
  if (element.closest("[hidden], .bar, details:not([open]) table")) continue;
  if (![...element.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
  const style = getComputedStyle(element);
  const text = luminance(parse(element instanceof SVGElement ? style.fill : style.color));
  const paper = luminance(behind(element));
  const ratio = (Math.max(text, paper) + 0.05) / (Math.min(text, paper) + 0.05);
  if (ratio < 4.5) failures.push(`${element.tagName} ${element.textContent.slice(0, 30)} ${ratio}`);
}
return failures;
"""
OPENED = "document.querySelectorAll('details').forEach(e => { e.open = true });"
TEXT = f"{OPENED} return document.body.innerText"


def test_every_number_in_the_table_of_runs_is_that_of_the_run(browser: Any, page: Path, views: list[RunView]) -> None:
    browser.open(page)
    rows = browser.run(
        "return [...document.querySelectorAll('#glance tbody tr')].map(row => [row.querySelector('a').textContent,"
        "Object.fromEntries([...row.querySelectorAll('td')].map(e => [e.dataset.head,"
        "[e.dataset.value ?? null, e.querySelector('span').childNodes[0].textContent]]))])"
    )
    assert [name for name, _ in rows] == [view.name for view in views]
    fields = {"ε": "total_epsilon", "Test AUC": "test_auc", "Attack AUC": "attack_auc", "Bound": "bound"}
    for view, (_, cells) in zip(views, rows, strict=True):
        numbers = summary(view)
        for head, name in {**fields, "Records/s": "samples_per_second"}.items():
            value, text = cells[head]
            assert (None if value is None else float(value)) == numbers[name]
            if "AUC" in head:
                assert text == ("–" if numbers[name] is None else f"{numbers[name]:.4f}")
        assert cells["Bound"][1] == bound_text(*(numbers[f"bound{end}"] for end in ("", "_low", "_high")))
        assert cells["ε"][1] == view.promise.total_epsilon_text
        assert cells["Mechanism"][1] == view.promise.mechanism
    assert float(rows[1][1]["Audited ε ≥"][0]) == views[1].audited_epsilon
    difference = summary(views[0])["test_auc"] - summary(views[1])["test_auc"]
    assert float(rows[1][1]["Cost in AUC"][0]) == pytest.approx(difference, abs=1e-12)


HERO = """
const facts = [...document.querySelector('.hero').querySelectorAll('[data-claim]')];
return Object.fromEntries(facts.map(e => [e.dataset.claim, [e.dataset.value, e.textContent]]));
"""


def test_the_claims_of_the_first_screen_are_the_numbers_of_the_run(
    browser: Any, page: Path, runs: Path, views: list[RunView]
) -> None:
    browser.open(page)
    run = RunFolder(runs / views[first_shown(views)].name)
    result, plain = (json.loads((path / "result.json").read_text()) for path in (run.path, runs / "non-private"))
    attacks = json.loads((run.label / "attacks.json").read_text())["attacks"]
    attack = max((one for one in attacks.values() if one["scored_by"] != "features"), key=lambda one: one["auc"])
    without = attacks["no_transcript"]["auc"]
    with Vault.open(run.vault()) as vault:
        spent = vault.ledger().epsilon_per_record
    lost, share = plain["test_auc"] - result["test_auc"], (result["test_auc"] - 0.5) / (plain["test_auc"] - 0.5)
    expected = {
        "total_epsilon": (spent, f"ε = {spent:g}"),
        "test_auc": (result["test_auc"], f"{result['test_auc']:.3f}"),
        "auc_lost": (lost, f"{lost:.3f}".replace("-", "−")),
        "share_kept": (max(0.0, share), f"keeps {100 * max(0.0, share):.0f}\u00a0% of the AUC above chance"),
        "attack_auc": (attack["auc"], f"{attack['auc']:.3f}"),
        "without_auc": (without, f"{without:.3f}"),
        "advantage": (attack["auc"] - without, f"{attack['auc'] - without:+.3f}".replace("-", "−")),
    }
    shown = {claim: (float(value), text) for claim, (value, text) in browser.run(HERO).items()}
    assert {claim: shown[claim] for claim in expected} == expected
    assert shown["bound"][0] == attack["ceiling"] and f"≈ {attack['ceiling']:.3f} ±" in shown["bound"][1]
    # The bars end where the numbers are, on a scale from 0.5 to 1; the run's own part begins where features end.
    ends = browser.run(
        "const scales = [...document.querySelector('.hero').querySelectorAll('.scale')];"
        "return scales.map(e => [...e.querySelectorAll('.track')].map(t => {"
        "const r = t.getBoundingClientRect(), at = x => (x - r.left) / r.width / 2 + 0.5;"
        "const end = s => { const f = t.querySelector(s)?.getBoundingClientRect(); return f ? at(f.right) : null };"
        "return [end('.fill:not(.own)'), end('.own'), end('.bound')] }))"
    )

    def near(area: float | None) -> Any:
        return None if area is None else pytest.approx(max(0.5, area), abs=2e-3)

    bound_without = attacks["no_transcript"]["ceiling"]
    assert ends[0] == [
        [near(without), None, near(bound_without)],
        [near(min(without, attack["auc"])), near(attack["auc"]), near(attack["ceiling"])],
        [None, near(1.0), None],
    ]
    assert ends[1] == [[None, near(plain["test_auc"]), None], [None, near(result["test_auc"]), None]]


def test_the_first_screen_needs_no_scrolling(browser: Any, page: Path) -> None:
    colours = []
    for width, height, scheme in ((1400, 900, "light"), (390, 844, "dark")):
        browser.open(page, width=width, height=height, scheme=scheme)
        parts = browser.run(
            "const hero = document.querySelector('.hero');"
            "return ['.headline', '.scale', '.stat:last-child'].map("
            "e => hero.querySelector(e).getBoundingClientRect().bottom)"
        )
        assert min(parts) > 0 and max(parts) <= height
        # One colour, one meaning: the model's, the attacker's and the limit's are three, in both themes.
        colours += browser.run(
            "const of = e => getComputedStyle(document.querySelector(e)).backgroundColor;"
            "return ['.scale.attack .own', '.scale.utility .fill', '.scale .bound'].map(of)"
        )
        assert browser.run(f"{OPENED} {CONTRAST}") == []
    assert len(set(colours)) == 6
    assert browser.console() == []


def test_without_scripts_the_page_says_the_same(browser: Any, page: Path) -> None:
    browser.open(page)
    said = browser.run(TEXT)
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.go(page.as_uri())
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
    assert browser.run(TEXT) == said
    assert browser.run("return [...document.querySelectorAll('svg')].every(e => e.clientHeight > 100)")


def test_one_point_is_a_sentence_and_no_chart(browser: Any, views: list[RunView], tmp_path: Path) -> None:
    short = replace(views[1], curves=views[1].curves[:1])
    write_page(tmp_path / "page.html", [short], title="One run, one epoch")
    browser.open(tmp_path / "page.html")
    area, after_one = summary(short)["test_auc"], short.curves[0]["test_auc"]
    text = browser.run(TEXT)
    assert f"test AUC {area:.4f} (" in text
    assert f"Test AUC after the one epoch that was measured: laplace {after_one:.4f}" in text
    assert browser.run("return document.querySelector('[data-chart=curves-test_auc] svg')") is None
    # Plain split learning was not attacked here: a number from theory, and no bar.
    plain = browser.run("return [...document.querySelectorAll('.attack li')].at(-1).innerText")
    assert "in theory" in plain and "1.000" in plain
    assert browser.run("return [...document.querySelectorAll('.attack li')].at(-1).querySelector('.track')") is None
    assert browser.run("return document.querySelector('#trade-off, #glance, script')") is None
    # Two runs of one ε are no trade-off either, whatever their attacks reach.
    write_page(tmp_path / "page.html", [short, replace(short, name="twin")], title="One ε")
    browser.open(tmp_path / "page.html")
    assert browser.run("return document.getElementById('trade-off')") is None
    assert browser.console() == []


def test_the_first_number_is_what_was_spent_in_all(browser: Any, tmp_path: Path) -> None:
    """Train at ε = 2 and lose the vault; train at ε = 5, compose ε = 1, train at 1."""
    vault, job = tmp_path / "vault", {**SMALL, "privacy": {"mechanism": "discrete", "epsilon": 2.0}}
    train(make_job(job, {}, "test"), tmp_path / "two", vault=vault)
    shutil.rmtree(vault)
    train(make_job(job, {"privacy": {"epsilon": 5.0}}, "test"), tmp_path / "five", vault=vault)
    composing = VaultChoice(vault, policy=ReleasePolicy(compose=True))
    train(make_job(job, {"privacy": {"epsilon": 1.0}}, "test"), tmp_path / "one", vault=composing)
    write_page(tmp_path / "report.html", [read_run(tmp_path / "one")], title="Composed")
    browser.open(tmp_path / "report.html")
    hero = browser.run("return document.querySelector('.hero').innerText")
    for words in ("by this run (ε = 1) and by others", "ε = 8", "1 vault that runs name is gone", "this run: 1"):
        assert words in hero
    ledger = browser.run("return document.querySelector('article').innerText")
    assert all(words in ledger for words in ("discrete (ε = 5)", "discrete (ε = 1)", "Largest ε of any record"))
    assert browser.console() == []


def test_every_chart_has_a_title_a_description_and_a_table_with_the_same_numbers(
    browser: Any, page: Path, views: list[RunView]
) -> None:
    browser.open(page)
    charts = browser.run(
        "return [...document.querySelectorAll('svg')].map(e => ["
        "document.getElementById(e.getAttribute('aria-labelledby')).textContent,"
        "document.getElementById(e.getAttribute('aria-describedby')).textContent,"
        "e.parentElement.querySelectorAll('details tbody tr').length])"
    )
    assert len(charts) > 10 and all(title and about and rows for title, about, rows in charts)
    ids = browser.run("return [...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    cells = browser.run(
        "return [...document.querySelector('article').querySelectorAll('[data-chart=attacks] tbody tr')]"
        ".map(e => Number(e.children[2].dataset.value))"
    )
    attacks = views[first_shown(views)].attacks
    assert attacks and cells == [attack.auc.value for attack in attacks.made]
    # A pointer on a point says what it is.
    told = browser.run(
        "return [...document.querySelector('article').querySelectorAll('[data-chart=attacks] .attack .point title')]"
        ".map(e => e.textContent)"
    )
    for text, attack in zip(told, attacks.made, strict=True):
        assert f"AUC {attack.auc.value:.4f}" in text


def test_one_run_is_open_and_the_table_leads_to_the_others(browser: Any, page: Path, views: list[RunView]) -> None:
    browser.open(page)
    names = "return [...document.querySelectorAll('details.run[open] > summary h2')].map(e => e.textContent)"
    assert browser.run(names) == [views[first_shown(views)].name]
    browser.run("document.querySelectorAll('#glance tbody a')[4].click(); await new Promise(requestAnimationFrame)")
    assert browser.run(names) == [views[first_shown(views)].name, views[4].name]
    verdict = "return document.querySelector('#run-4 .verdict').textContent"
    assert browser.run(verdict) == "Not finished: epoch 1 of 3."
    assert browser.console() == []


def test_tables_are_sorted_by_number_and_what_is_unknown_comes_last(browser: Any, page: Path) -> None:
    browser.open(page)
    values = (
        "document.querySelector('#glance thead th:nth-child(3)').click();"
        "return [...document.querySelectorAll('#glance tbody tr')].map(e => e.cells[2].dataset.value ?? null)"
    )
    for down in (False, True):
        found = browser.run(values)
        known = [float(value) for value in found if value is not None]
        assert found[len(known) :] == [None] and known == sorted(known, reverse=down)


def test_nothing_is_fetched_and_nothing_complains(browser: Any, page: Path) -> None:
    browser.open(page)
    names = browser.run(
        "return [...document.querySelectorAll('[tabindex=\"0\"], button, select')].map(e => { e.focus();"
        "return e.getAttribute('aria-label') || e.textContent })"
    )
    assert len(names) > 20 and all(names)
    assert browser.run("return [...document.querySelectorAll('table')].every(e => e.caption.textContent)")
    assert browser.console() == []
    assert browser.requests() == [page.as_uri()]
    assert browser.run("return performance.getEntriesByType('resource').length") == 0
    assert browser.run("return document.title").endswith("<script>alert(1)</script>\"'&[bold]$title<b>")
    assert browser.run("return document.querySelectorAll('a[href]:not([href^=\"#\"])').length") == 0


def test_the_policy_of_the_page_stops_what_it_does_not_contain(browser: Any, page: Path) -> None:
    browser.open(page)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        browser.run(
            "const script = document.createElement('script'); script.textContent = 'window.broken = 1';"
            "document.head.append(script); const image = new Image();"
            "const failed = new Promise(done => { image.onerror = () => fetch(arguments[0]).catch(done); });"
            "image.src = arguments[0]; await failed;",
            f"http://127.0.0.1:{server.getsockname()[1]}/leak",
        )
        with pytest.raises(BlockingIOError):
            server.accept()
    assert browser.run("return window.broken ?? null") is None
    complaints = browser.console()
    for directive in ("script-src", "img-src", "default-src"):
        assert any(directive in complaint for complaint in complaints)


@pytest.mark.parametrize("width", [320, 390, 700, 1000, 1400])
def test_no_width_needs_sideways_scrolling(
    browser: Any, page: Path, tmp_path: Path, views: list[RunView], width: int
) -> None:
    write_page(
        tmp_path / "long.html", [*views, replace(views[1], name="unbreakable" * 20)], title="T" * 90, about="A" * 200
    )
    for path in (tmp_path / "long.html", page):
        browser.open(path, width=width)
        # Nothing but a table that can be scrolled lies beyond the edge; up to 60rem every cell is on the screen.
        outside = browser.run(
            f"{OPENED} return [...document.querySelectorAll('main *')].filter(e => {{"
            "const r = e.getBoundingClientRect();"
            "return r.width && !e.closest('.unseen') && !(innerWidth > 960 && e.closest('.scroll'))"
            "&& (r.left < -1 || r.right > innerWidth + 1) }).map(e => e.outerHTML.slice(0, 80))"
        )
        assert outside == []
        assert browser.run("return document.documentElement.scrollWidth") == width


def test_it_prints_dark_on_light_on_few_pages(browser: Any, views: list[RunView], tmp_path: Path) -> None:
    write_page(tmp_path / "one.html", [views[1]], title="One run")
    browser.open(tmp_path / "one.html", scheme="dark")
    pdf = base64.b64decode(browser.call("Page.printToPDF", preferCSSPageSize=True)["data"])
    assert pdf.startswith(b"%PDF")
    assert 2 <= pdf.count(b"/Type /Page\n") <= 4
    browser.call("Emulation.setEmulatedMedia", media="print")
    style = "const e = getComputedStyle(document.querySelector(arguments[0])); return e[arguments[1]]"
    assert browser.run(style, "body", "color") == "rgb(28, 31, 36)"
    assert browser.run(style, "svg .row", "fill") == "rgb(28, 31, 36)"
    for coloured in (".hero .fill", ".hero .track", ".strip dl"):
        assert browser.run(style, coloured, "printColorAdjust") == "exact"
    assert browser.run(style, "footer", "display") == "none"
    browser.call("Emulation.setEmulatedMedia", media="")


def test_the_page_of_a_feature_party_shows_what_that_party_may_know(browser: Any, runs: Path, tmp_path: Path) -> None:
    parts = [read_feature_run(runs / name, "feature") for name in ("laplace", "discrete")]
    write_page(tmp_path / "page.html", parts, title="A page")
    browser.open(tmp_path / "page.html")
    text = browser.run(TEXT)
    assert "For the feature party feature. Nothing here depends on true labels." in text
    headings = browser.run("return [...document.querySelectorAll('article section h2')].map(e => e.textContent)")
    first = ["What was promised", "What an attacker can get", "Speed", "The agreement"]
    assert headings == first * 2
    assert browser.run("return document.querySelector('figure')") is None
    assert f"{parts[0].promise.closed_form:.4f} by the formula" in text
    card = browser.run("return document.querySelector('#run-0-promise .card').textContent")
    promise = parts[0].promise
    assert parts[0].features_words in card
    assert "clean ones" in promise.worth_words and promise.worth_words in card
    for label_dependent in ("Test AUC", "Attack AUC", "Audited", "Cost in AUC", "Test records"):
        assert label_dependent not in text
    assert browser.console() == []


def test_a_large_delta_is_not_called_private(views: list[RunView]) -> None:
    promise = replace(views[1].promise, large_delta=True, total_delta=0.5, total_delta_text="0.5")
    said = page_of([replace(views[1], promise=promise), views[2]], title="Runs")
    assert "only up to δ = 0.5" in said and "expect the promise to fail for at least one record" in said
