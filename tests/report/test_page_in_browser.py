"""The page as a reader meets it, in a real browser."""

import base64
import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from tpsl.report.label_view import read_run
from tpsl.report.page import write_page
from tpsl.report.run_table import summary
from tpsl.report.run_view import RunView
from tpsl.report.verdicts import first_shown
from tpsl.report.words import bound_text
from tpsl.training.job import make_job
from tpsl.training.one_process import train
from tpsl.training.run_folder import RunFolder
from tpsl.training.vaults import VaultChoice
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
  if (["SCRIPT", "STYLE", "OPTION"].includes(element.tagName) || element.closest("[hidden], .bar")) continue;
  if (![...element.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
  const style = getComputedStyle(element);
  const text = luminance(parse(element instanceof SVGElement ? style.fill : style.color));
  const paper = luminance(behind(element));
  const ratio = (Math.max(text, paper) + 0.05) / (Math.min(text, paper) + 0.05);
  if (ratio < 4.5) failures.push(`${element.tagName} ${element.textContent.slice(0, 30)} ${ratio}`);
}
return failures;
"""
CHARTS = ["cost", "roc", "areas", "audit", "trade-off-0-epsilon", "trade-off-0-attack", "curves", "throughput"]
CELLS = ("test_auc", "attack_auc", "bound", "samples_per_second")
SHOWN = "return document.querySelector('.hoverlayer .hovertext')?.textContent ?? ''"


@pytest.fixture
def opened(browser: Any, page: Path) -> Any:
    """The page in the browser, for tests that only look at it: it is not loaded again for each of them."""
    if not browser.run("return window.onlyLookedAt ?? false"):
        browser.open(page)
        browser.run("window.onlyLookedAt = true")
    return browser


def shown_number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def test_every_number_in_the_table_of_runs_is_that_of_the_run(opened: Any, views: list[RunView]) -> None:
    rows = opened.run(
        "return [...document.querySelectorAll('#numbers tbody tr')].map(row => [row.querySelector('.pick').textContent,"
        "Object.fromEntries([...row.querySelectorAll('[data-field]')].map(e => [e.dataset.field,"
        "[e.dataset.value ?? null, e.querySelector('span').childNodes[0].textContent]]))])"
    )
    assert [name for name, _ in rows] == [view["name"] for view in views]
    for view, (_, cells) in zip(views, rows, strict=True):
        numbers = summary(view)
        for field, name in {**{name: name for name in CELLS}, "epsilon": "total_epsilon"}.items():
            value, text = cells[field]
            assert (None if value is None else float(value)) == numbers[name]
            if "auc" in field:
                assert text == shown_number(numbers[name])
        assert cells["bound"][1] == bound_text(*(numbers[f"bound{end}"] for end in ("", "_low", "_high")))
        assert cells["epsilon"][1] == view["promise"]["total_epsilon_text"]
        assert cells["mechanism"][1] == view["promise"]["mechanism"]
    assert float(rows[1][1]["lower_bound"][0]) == (views[1]["audit"] or {})["lower_bound"]
    difference = summary(views[1])["test_auc"] - summary(views[0])["test_auc"]
    assert float(rows[1][1]["difference"][0]) == pytest.approx(difference, abs=1e-12)


HERO = """
const facts = [...document.querySelectorAll('#hero [data-claim]')];
return Object.fromEntries(facts.map(e => [e.dataset.claim, [e.dataset.value, e.textContent]]));
"""


def test_the_claims_of_the_first_screen_are_the_numbers_of_the_run(opened: Any, runs: Path) -> None:
    run = RunFolder(runs / opened.run("return document.querySelector('[data-part=promise] h3').textContent"))
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
    shown = {claim: (float(value), text) for claim, (value, text) in opened.run(HERO).items()}
    assert {claim: shown[claim] for claim in expected} == expected
    assert shown["bound"][0] == attack["ceiling"] and f"≈ {attack['ceiling']:.3f} ±" in shown["bound"][1]
    # The bars end where the numbers are, on a scale from 0.5 to 1; the run's own part begins where features end.
    ends = opened.run(
        "return [...document.querySelectorAll('.scale')].map(e => [...e.querySelectorAll('.track')].map(t => {"
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
    browser.open(page)
    for width, height in ((1400, 900), (390, 844)):
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        parts = browser.run(
            "return ['.headline', '.scale', '.stat:last-child'].map(e => document.querySelector(`#hero ${e}`)"
            ".getBoundingClientRect().bottom)"
        )
        assert min(parts) > 0 and max(parts) <= height
    # One colour, one meaning: the model's, the attacker's and the limit's are three, in both themes.
    colours = []
    for scheme in ("light", "dark"):
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        colours += browser.run(
            "const of = e => getComputedStyle(document.querySelector(e)).backgroundColor;"
            "return ['.scale.attack .own', '.scale.utility .fill', '.scale .bound'].map(of)"
        )
    assert len(set(colours)) == 6
    assert browser.console() == []


def test_columns_come_on_demand(browser: Any, page: Path) -> None:
    browser.open(page)
    assert "Trained by" in browser.run("return document.getElementById('strip').textContent")
    heads = (
        "return [...document.querySelectorAll('#numbers thead th')].filter(e => e.offsetWidth).map(e => e.textContent)"
    )
    few = ["Run", "ε", "Test AUC", "Attack AUC", "Bound"]
    assert browser.run(heads) == few
    browser.driver.find_element("id", "more-columns").send_keys("\n")
    more = ["Mechanism", "Private", "Cost in AUC", "Audited ε\u00a0≥", "Records/s"]
    assert browser.run(heads) == [*few, *more]
    assert browser.run("return document.activeElement.textContent") == "Fewer columns"
    browser.driver.find_element("id", "next").click()
    assert browser.run(heads) == [*few, *more]  # another run leaves them


def test_one_point_is_a_sentence_and_no_chart(browser: Any, views: list[RunView], tmp_path: Path) -> None:
    short: RunView = {**views[1], "curves": views[1]["curves"][:1]}
    write_page(tmp_path / "page.html", [short], title="One run, one epoch")
    browser.open(tmp_path / "page.html")
    sentences = browser.run(
        "return Object.fromEntries([...document.querySelectorAll('figure:not([hidden])')].map(e =>"
        "[e.id, [e.querySelector('.plot').hidden, e.querySelector('.tools button').hidden,"
        "e.querySelector('p').textContent]]))"
    )
    area, after_one = summary(short)["test_auc"], short["curves"][0]["test_auc"]
    audit = short["audit"] or {}
    for name, words in {
        "cost": f"laplace: test AUC {area:.4f} (",
        "curves": f"Test AUC after the one epoch that was measured: laplace {after_one:.4f}.",
        "throughput": "records in a second, ",
        "audit": f"guessed {audit['right']} of {audit['guessed']} coins right: ε is at least 1.",
    }.items():
        hidden, without_table, sentence = sentences[f"chart-{name}"]
        assert hidden and without_table and words in sentence
    assert browser.run("return document.getElementById('trade-off').hidden")
    assert browser.run("return document.getElementById('lead').hidden")
    # Two runs of one ε are no trade-off either, whatever their attacks reach.
    write_page(tmp_path / "page.html", [short, {**short, "name": "twin"}], title="One ε")
    browser.open(tmp_path / "page.html")
    said = browser.run("return document.getElementById('trade-off').innerText")
    assert f"all private runs have ε = 2, with a test AUC of {area:.4f}. Runs of another ε would show" in said
    assert browser.console() == []


def test_the_first_number_is_what_was_spent_in_all(browser: Any, tmp_path: Path) -> None:
    """Train at ε = 2 and lose the vault; train at ε = 5, compose ε = 1, train at 1."""
    vault, job = tmp_path / "vault", {**SMALL, "privacy": {"mechanism": "discrete", "epsilon": 2.0}}
    train(make_job(job, {}, "test"), tmp_path / "two", vault=vault)
    shutil.rmtree(vault)
    train(make_job(job, {"privacy": {"epsilon": 5.0}}, "test"), tmp_path / "five", vault=vault)
    composing = VaultChoice(vault, policy=ReleasePolicy(compose=True))
    train(make_job(job, {"privacy": {"epsilon": 1.0}}, "test"), tmp_path / "one", vault=composing)
    views = [read_run(tmp_path / name) for name in ("one", "two")]
    write_page(tmp_path / "report.html", views, title="Composed")
    browser.open(tmp_path / "report.html")
    browser.run("document.querySelectorAll('.pick')[0].click()")  # the noise decides which is the more accurate
    card = browser.run("return document.querySelector('[data-part=promise]').innerText")
    assert browser.run("return document.querySelector('.epsilon').textContent") == "ε = 8"
    assert "in all; this run’s release: ε = 1" in card
    assert "by this run (ε = 1) and by others, however it is combined with other knowledge" in card
    assert "at least ε = 8: one vault that runs name is gone" in card
    hero = browser.run("return document.getElementById('hero').innerText")
    for words in ("by this run (ε = 1) and by others", "ε = 8", "one vault that runs name is gone", "this run: 1"):
        assert words in hero
    assert browser.run("return document.querySelector('#numbers [data-field=epsilon]').innerText") == "8\nthis run: 1"
    assert "ε = 8 " in browser.run("return document.getElementById('lead').textContent")
    ledger = browser.run("return document.querySelector('[data-part=ledger]').innerText")
    assert all(words in ledger for words in ("discrete (ε = 5)", "discrete (ε = 1)", "Largest ε of any record"))
    assert browser.console() == []


def test_points_stand_where_the_numbers_are(opened: Any, views: list[RunView]) -> None:
    drawn = opened.run("return document.querySelector('#chart-cost .plot').data[0].x")
    assert drawn == [summary(view)["test_auc"] for view in views[:4]]
    # The chosen run is the one that the text praises.
    attacks = (views[first_shown(views)]["attacks"] or {})["attacks"]
    curves = opened.run(
        "return document.querySelector('#chart-roc .plot').data.map(trace => [trace.name, [...trace.x], [...trace.y]])"
    )
    curve = {name: (x, y) for name, x, y in curves}["likelihood ratio"]
    assert curve == ([0, *attacks["likelihood"]["roc"]["fpr"]], [0, *attacks["likelihood"]["roc"]["tpr"]])
    assert opened.run("return [...document.querySelector('#chart-areas .plot').data[0].x]") == [
        attack["auc"] for attack in attacks.values()
    ]
    # Each attack stands beside the bound of its own kind, and no line crosses rows to which it does not belong.
    areas = opened.run(
        "return document.querySelector('#chart-areas .plot').data.map(t => [t.name, [...t.x], t.error_x?.array])"
    )
    (bounds,) = [(x, above) for name, x, above in areas if name == "bound of its kind of attacker"]
    assert bounds[0] == [attack["ceiling"] for attack in attacks.values()]
    assert len(set(bounds[0])) == 3
    assert bounds[1] == pytest.approx([attack["ceiling_high"] - attack["ceiling"] for attack in attacks.values()])
    shapes = opened.run("return document.querySelector('#chart-areas .plot').layout.shapes.map(s => s.x0)")
    assert shapes == [0.5]
    lines = opened.run("return document.querySelector('#chart-curves .plot').data.map(t => [t.name, [...t.y]])")
    for view in views[:4]:
        assert dict(lines)[view["name"]] == [entry["test_auc"] for entry in view["curves"]]


def test_every_chart_has_a_table_with_the_same_numbers(browser: Any, page: Path, views: list[RunView]) -> None:
    browser.open(page)
    figures = browser.run("return [...document.querySelectorAll('figure:not([hidden])')].map(e => e.id)")
    assert figures == [f"chart-{name}" for name in CHARTS]
    for name in CHARTS:
        browser.run("document.querySelector(`#chart-${arguments[0]} .tools button`).click()", name)
    state = browser.run(
        "return [...document.querySelectorAll('figure')].map(e => [e.querySelector('.plot').hidden,"
        "e.querySelectorAll('tbody tr').length > 0, e.querySelector('.tools button').getAttribute('aria-pressed')])"
    )
    assert state == [[True, True, "true"]] * len(CHARTS)
    cells = browser.run(
        "return [...document.querySelectorAll('#chart-areas tbody tr')].map(e => Number(e.children[2].dataset.value))"
    )
    attacks = (views[first_shown(views)]["attacks"] or {})["attacks"]
    assert cells == [attack["auc"] for attack in attacks.values()]
    browser.run("document.querySelector('#chart-cost .tools button').click()")
    assert browser.run("return document.querySelector('#chart-cost .plot').hidden") is False
    assert browser.console() == []


def test_runs_are_switched_by_the_list_by_buttons_and_by_the_table(
    browser: Any, page: Path, views: list[RunView]
) -> None:
    from selenium.webdriver import Keys
    from selenium.webdriver.support.ui import Select

    browser.open(page)

    def shown() -> tuple[str, str, str]:
        return (
            browser.run("return document.querySelector('[data-part=promise] h3').textContent"),
            browser.run("return document.querySelector('.epsilon').textContent"),
            browser.run("return document.getElementById('head').textContent"),
        )

    def expected(view: RunView) -> tuple[str, str, str]:
        return view["name"], f"ε = {view['promise']['epsilon_text']}", (view["ledger"] or {})["head"]

    assert shown() == expected(views[first_shown(views)])
    Select(browser.driver.find_element("id", "run")).select_by_index(2)
    assert shown() == expected(views[2])
    browser.driver.find_element("id", "next").click()
    assert shown() == expected(views[3])
    assert "was not attacked" in browser.run("return document.querySelector('[data-part=attack-intro]').textContent")
    assert browser.run("return document.querySelector('[data-part=areas]').hidden")
    pick = browser.driver.find_elements("css selector", ".pick")[4]
    pick.send_keys(Keys.ENTER)
    assert shown() == expected(views[4])
    assert browser.run("return document.activeElement === document.querySelectorAll('.pick')[4]")  # not lost
    assert "unfinished: epoch 1 of 3" in browser.run("return document.querySelector('.promise-head').textContent")
    assert browser.run("return document.getElementById('run').selectedIndex") == 4
    browser.driver.find_element("id", "next").click()
    assert shown() == expected(views[0])
    # A click on a point chooses its run too.
    browser.run("document.querySelector('#chart-cost .plot').emit('plotly_click', {points: [{customdata: 1}]})")
    assert shown() == expected(views[1])
    assert browser.console() == []


def test_hovering_and_arrow_keys_say_what_a_point_is(browser: Any, page: Path, views: list[RunView]) -> None:
    from selenium.webdriver import ActionChains, Keys
    from selenium.webdriver.support.ui import WebDriverWait

    browser.open(page)
    wait = WebDriverWait(browser.driver, 5, poll_frequency=0.05)
    numbers = summary(views[1])
    plot = browser.driver.find_element("css selector", "#chart-cost .plot")
    browser.run("arguments[0].scrollIntoView({block: 'center'})", plot)
    point = browser.driver.find_elements("css selector", "#chart-cost .points path.point")[1]
    ActionChains(browser.driver).move_to_element(point).perform()
    wait.until(lambda _: f"test AUC {numbers['test_auc']:.4f}" in browser.run(SHOWN))
    assert "against non-private" in browser.run(SHOWN)
    # With the keyboard alone.
    browser.run("arguments[0].focus()", plot)
    ActionChains(browser.driver).send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT).perform()
    wait.until(lambda _: "laplace" in browser.run(SHOWN))
    said = browser.run("return document.getElementById('announce').textContent")
    assert said.startswith("laplace, ε = 2, test AUC ")
    ActionChains(browser.driver).send_keys(Keys.ARROW_LEFT).perform()
    assert browser.run("return document.getElementById('announce').textContent").startswith("non-private, ")


def test_keys_zoom_in_and_back(browser: Any, page: Path) -> None:
    from selenium.webdriver import ActionChains

    browser.open(page)
    width = "const [a, b] = document.querySelector('#chart-roc .plot')._fullLayout.xaxis.range; return b - a"
    before = browser.run(width)
    browser.run("document.querySelector('#chart-roc .plot').focus()")
    ActionChains(browser.driver).send_keys("++").perform()
    assert browser.run(width) == pytest.approx(before * 0.49)
    browser.run("tpslReport.show(JSON.parse(document.getElementById('data').textContent))")
    assert browser.run(width) == pytest.approx(before * 0.49)  # new data leave the zoom
    browser.run("document.querySelector('#chart-roc .plot').focus()")
    ActionChains(browser.driver).send_keys("0").perform()
    assert browser.run(width) == pytest.approx(before)
    ActionChains(browser.driver).send_keys("+").perform()
    browser.driver.find_element("id", "next").click()
    assert browser.run(width) == pytest.approx(before)  # another run is another chart


def test_the_metric_of_the_curves_can_be_changed(browser: Any, page: Path, views: list[RunView]) -> None:
    from selenium.webdriver.support.ui import Select

    browser.open(page)
    Select(browser.driver.find_element("id", "metric")).select_by_visible_text("Test log loss")
    lines = browser.run("return document.querySelector('#chart-curves .plot').data.map(t => [t.name, [...t.y]])")
    assert dict(lines)["laplace"] == [entry["test_log_loss"] for entry in views[1]["curves"]]


def test_new_data_of_a_live_page_replace_the_old(browser: Any, page: Path, views: list[RunView]) -> None:
    browser.open(page)
    browser.run("document.querySelectorAll('.pick')[2].click()")
    browser.run(
        "const data = JSON.parse(document.getElementById('data').textContent);"
        "data.runs.reverse(); data.runs[2].test.test_auc = 0.625; data.lead = 'New.'; tpslReport.show(data)"
    )
    assert browser.run("return document.getElementById('lead').textContent") == "New."
    assert browser.run("return document.querySelector('[data-part=promise] h3').textContent") == views[2]["name"]
    assert 0.625 in browser.run("return [...document.querySelector('#chart-cost .plot').data[0].x]")
    assert browser.run("return document.querySelectorAll('figure').length") == len(CHARTS)
    # What a run lacks, be it everything, is left out and breaks nothing.
    browser.run(
        "const data = JSON.parse(document.getElementById('data').textContent); const run = data.runs[1];"
        "for (const attack of Object.values(run.attacks.attacks)) attack.auc = attack.auc_low = attack.roc = null;"
        "for (const key of Object.keys(run.test)) run.test[key] = null; run.curves = [{epoch: 1}];"
        "run.ledger = run.audit = run.samples_per_second = null; data.runs = [run]; tpslReport.show(data)"
    )
    figures = browser.run("return [...document.querySelectorAll('figure')].filter(e => e.offsetParent).map(e => e.id)")
    assert figures == ["chart-roc", "chart-areas"]
    assert browser.console() == []


def test_what_the_audit_found_is_said(browser: Any, page: Path) -> None:
    browser.open(page)
    show = (
        "const data = JSON.parse(document.getElementById('data').textContent); data.runs = [data.runs[1]];"
        "data.runs[0].examination = %s; tpslReport.show(data);"
        "return document.querySelector('[data-part=replay]').textContent"
    )
    passed = '{"passed": true, "accusations": [], "parts": ["canaries", "vault"]}'
    assert browser.run(show % passed) == "The audit looked at canaries, vault and found nothing."
    failed = '{"passed": false, "accusations": ["vault: noise <b>repeats</b>"], "parts": ["vault"]}'
    assert browser.run(show % failed) == "The audit FAILED. vault: noise <b>repeats</b>."
    assert browser.console() == []


def test_nothing_is_fetched_nothing_complains_and_nothing_can_be_uploaded(browser: Any, page: Path) -> None:
    browser.open(page)
    browser.run(
        "document.querySelectorAll('[tabindex]').forEach(e => e.focus()); document.getElementById('theme').click()"
    )
    assert browser.console() == []
    assert browser.requests() == [page.as_uri()]
    assert browser.run("return performance.getEntriesByType('resource').length") == 0
    assert browser.run("return document.title").endswith("<script>alert(1)</script>\"'&[bold]$title<b>")
    buttons = browser.run("return [...document.querySelectorAll('.modebar-btn')].map(e => e.dataset.title)")
    assert set(buttons) == {"Zoom", "Pan", "Zoom in", "Zoom out", "Reset axes"}
    assert browser.run("return document.querySelectorAll('a[href]:not([href^=\"#\"])').length") == 0


def test_the_policy_of_the_page_stops_what_it_does_not_contain(browser: Any, page: Path) -> None:
    browser.open(page)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        browser.driver.execute_async_script(
            "const [address, done] = arguments;"
            "const script = document.createElement('script'); script.textContent = 'window.broken = 1';"
            "document.head.append(script);"
            "const image = new Image(); image.onerror = () => fetch(address).catch(() => done()); image.src = address;",
            f"http://127.0.0.1:{server.getsockname()[1]}/leak",
        )
        with pytest.raises(BlockingIOError):
            server.accept()
    assert browser.run("return window.broken ?? null") is None
    complaints = browser.console()
    for directive in ("script-src", "img-src", "default-src"):
        assert any(directive in complaint for complaint in complaints)


def test_what_can_be_focused_has_a_name(opened: Any) -> None:
    names = opened.run(
        "return [...document.querySelectorAll('[tabindex=\"0\"], button, select')].map(e => "
        "e.getAttribute('aria-label') || e.labels?.[0]?.textContent || e.textContent)"
    )
    assert len(names) > 20 and all(names)
    labels = opened.run("return [...document.querySelectorAll('.plot')].map(e => e.getAttribute('aria-label'))")
    assert all("Chart: " in label and "Arrow keys" in label for label in labels)
    assert opened.run("return [...document.querySelectorAll('table')].every(e => e.caption.textContent)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_until_the_button_is_used(browser: Any, page: Path, scheme: str) -> None:
    other = {"light": "dark", "dark": "light"}[scheme]
    is_dark = "return getComputedStyle(document.body).backgroundColor === 'rgb(21, 24, 27)'"
    text = "return document.querySelector('#chart-cost .ytick text').style.fill"
    browser.open(page, scheme=scheme)
    assert browser.run(is_dark) == (scheme == "dark")
    assert browser.run(CONTRAST) == []
    before = browser.run(text)
    button = browser.driver.find_element("id", "theme")
    assert button.get_attribute("aria-label").lower() == f"{other} theme"
    button.click()
    assert browser.run(is_dark) == (other == "dark")
    assert browser.run(text) != before
    assert button.get_attribute("aria-label").lower() == f"{scheme} theme"
    if scheme == "light":
        browser.driver.refresh()
        assert browser.run(is_dark)  # remembered


def test_no_width_needs_sideways_scrolling(browser: Any, tmp_path: Path, views: list[RunView]) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    long: RunView = {**views[1], "name": "unbreakable" * 20}
    write_page(tmp_path / "long.html", [*views, long], title="T" * 90, about="A" * 200)
    browser.open(tmp_path / "long.html", width=320)
    browser.run("document.querySelectorAll('.pick')[5].click(); document.getElementById('more-columns').click()")
    for width in (320, 390, 768, 1280):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        # The charts follow: each is as wide as its place.
        WebDriverWait(browser.driver, 10, poll_frequency=0.05).until(
            lambda _: browser.run(
                "return [...document.querySelectorAll('figure:not([hidden])')].every("
                "e => e.querySelector('.plot')._fullLayout.width === e.clientWidth)"
            )
        )
        assert browser.run("return document.documentElement.scrollWidth") == width
        # Every number of the table of runs is on the screen.
        assert browser.run(
            "return [...document.querySelectorAll('#numbers [data-field]')].every(e => {"
            "const r = e.getBoundingClientRect(); return r.left >= 0 && r.right <= innerWidth + 1})"
        )


def test_it_prints_dark_on_light_on_few_pages(browser: Any, page: Path) -> None:
    browser.open(page, scheme="dark")
    printed = browser.driver.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})
    pdf = base64.b64decode(printed["data"])
    assert pdf.startswith(b"%PDF")
    assert 2 <= pdf.count(b"/Type /Page\n") <= 8
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    browser.run("dispatchEvent(new Event('beforeprint'))")
    ink = "rgb(28, 31, 36)"
    assert browser.run("return document.querySelector('#chart-cost .ytick text').style.fill") == ink
    assert browser.run("return getComputedStyle(document.body).color") == ink
    assert not browser.driver.find_element("id", "theme").is_displayed()
    widths = browser.run("return [...document.querySelectorAll('.main-svg')].map(e => e.getBoundingClientRect().width)")
    assert max(widths) <= 680  # A4 less its margins
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    browser.run("dispatchEvent(new Event('afterprint'))")
    assert browser.run("return document.documentElement.dataset.theme ?? null") is None


def test_one_run_prints_on_three_pages(browser: Any, views: list[RunView], tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", [views[1]], title="One run")
    browser.open(tmp_path / "page.html", scheme="dark")
    printed = browser.driver.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})
    pdf = base64.b64decode(printed["data"])
    assert 2 <= pdf.count(b"/Type /Page\n") <= 3
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    kept = "const e = getComputedStyle(document.querySelector(arguments[0])); return [e.printColorAdjust, e.display]"
    for coloured in ("#hero .fill", "#hero .track", "#strip dl"):
        assert browser.run(kept, coloured)[0] == "exact"
    for screen_only in ("nav", ".bar", "#more-columns"):
        assert browser.run(kept, screen_only)[1] == "none"
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_the_page_of_a_feature_party_shows_what_that_party_may_know(browser: Any, runs: Path, tmp_path: Path) -> None:
    from tpsl.report.feature_view import read_feature_run

    parts = [read_feature_run(runs / name, "feature") for name in ("laplace", "discrete")]
    write_page(tmp_path / "page.html", parts, title="A page")
    browser.open(tmp_path / "page.html")
    text = browser.run("return document.body.innerText")
    assert "For the feature party feature. Nothing here depends on true labels." in text
    headings = browser.run("return [...document.querySelectorAll('section:not([hidden]) h2')].map(e => e.textContent)")
    assert headings == ["At a glance", "What was promised", "What an attacker can get", "Speed", "The agreement"]
    figures = browser.run("return [...document.querySelectorAll('figure:not([hidden])')].map(e => e.id)")
    assert figures == ["chart-roc", "chart-throughput"]
    promise = browser.run("return document.querySelector('[data-part=promise]').innerText")
    assert parts[0]["promise"]["words"] in promise and parts[0]["features_words"] in promise
    assert "clean ones" in parts[0]["promise"]["worth_words"] and parts[0]["promise"]["worth_words"] in promise
    for label_dependent in ("Test AUC", "Attack AUC", "Audited", "Cost in AUC", "Test records"):
        assert label_dependent not in text
    assert browser.console() == []


def test_curves_that_differ_by_rounding_alone_are_drawn(browser: Any, views: list[RunView], tmp_path: Path) -> None:
    """Two runs of one ranking: the same AUC, summed up in another order."""
    parts: list[RunView] = []
    for view, area in zip(views[1:3], (0.2569444444444445, 0.2569444444444444), strict=True):
        parts.append({**view, "curves": [{"epoch": epoch, "test_auc": area} for epoch in (1, 2)]})
    write_page(tmp_path / "page.html", parts, title="A page")
    browser.open(tmp_path / "page.html")
    low, high = browser.run("return document.querySelector('#chart-curves .plot')._fullLayout.yaxis.range")
    assert low < 0.25 < 0.26 < high
    assert browser.console() == []


def test_metrics_that_every_party_may_know_are_said_beside_the_cost(browser: Any, runs: Path, tmp_path: Path) -> None:
    from tpsl.report.feature_view import read_feature_run

    view: RunView = {**read_feature_run(runs / "laplace", "feature"), "shared_words": "AUC <b>0.7</b>"}
    write_page(tmp_path / "page.html", [view], title="A page")
    browser.open(tmp_path / "page.html")
    said = "return document.querySelector('section#cost:not([hidden]) #shared').textContent"
    assert browser.run(said) == "laplace: AUC <b>0.7</b>"
    assert browser.console() == []


def test_a_large_delta_does_not_wear_the_badge_of_a_private_run(
    browser: Any, views: list[RunView], tmp_path: Path
) -> None:
    promise = {**views[1]["promise"], "large_delta": True, "total_delta": 0.5, "total_delta_text": "0.5"}
    view: RunView = {**views[1], "promise": promise}  # type: ignore[typeddict-item]
    write_page(tmp_path / "page.html", [view], title="A run")
    browser.open(tmp_path / "page.html")
    badges = browser.run("return [...document.querySelectorAll('.badge')].map(e => [e.className, e.textContent])")
    assert ["badge no", "only up to δ = 0.5"] in badges
    assert not any(text == "private" for _, text in badges)
    assert browser.run("return document.querySelector('[data-field=private]').textContent") == "only up to δ = 0.5"
    said = browser.run("return ['.headline', '#lead'].map(e => document.querySelector(e).textContent)")
    assert "expect the promise to fail for at least one record" in said[0]
    assert not any("is private" in text for text in said)
