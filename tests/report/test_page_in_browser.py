"""The page as a reader meets it, in a real browser."""

import math
import socket
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from tpsl.report import RunSummary, write_page

CONTRAST = """
const channel = c => { c /= 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const parse = colour => colour.match(/[\\d.]+/g).map(Number);
const behind = element => {
  for (let e = element; e; e = e.parentElement) {
    const colour = parse(getComputedStyle(e).backgroundColor);
    if (colour.length === 3 || colour[3] > 0) return colour;
  }
  throw new Error("no background");
};
const failures = [];
for (const element of document.body.querySelectorAll("*")) {
  if (![...element.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
  const style = getComputedStyle(element);
  const text = luminance(parse(element instanceof SVGElement ? style.fill : style.color));
  const paper = luminance(behind(element));
  const ratio = (Math.max(text, paper) + 0.05) / (Math.min(text, paper) + 0.05);
  if (ratio < 4.5) failures.push(`${element.tagName} ${element.textContent.slice(0, 30)} ${ratio}`);
}
return failures;
"""


def test_every_number_in_the_page_is_the_number_that_went_in(browser: Any, page: Path, rows: list[RunSummary]) -> None:
    browser.open(page)
    shown = browser.run(
        "return [...document.querySelectorAll('#numbers tbody tr')].map(row => Object.fromEntries("
        "[...row.querySelectorAll('[data-field]')].map(e => [e.dataset.field, [e.dataset.value, e.innerText]])))"
    )
    by_epoch = browser.run(
        "return [...document.querySelectorAll('#by-epoch tbody tr')].map(row => "
        "[...row.querySelectorAll('[data-value]')].map(e => [e.dataset.value, e.innerText]))"
    )
    assert len(shown) == len(by_epoch) == len(rows)
    for row, values, areas in zip(rows, shown, by_epoch, strict=True):
        for field in fields(RunSummary):
            expected = getattr(row, field.name)
            if field.name == "auc_by_epoch":
                assert tuple(float(value) for value, _ in areas) == expected
                assert [text for _, text in areas] == [f"{area:.4f}" for area in expected]
            elif isinstance(expected, float):
                value, text = values[field.name]
                assert float(value) == expected or (math.isnan(float(value)) and math.isnan(expected))
                if math.isfinite(expected):
                    rounding = 0.1 if field.name == "delta" else 1e-3
                    assert float(text.replace(",", "")) == pytest.approx(expected, rel=rounding)
            else:
                assert values[field.name][0] == str(expected)


def test_marks_stand_where_their_numbers_are_on_the_axis(browser: Any, page: Path, rows: list[RunSummary]) -> None:
    for width in (1280, 375):
        browser.open(page, width=width)
        charts = browser.run("""
            const middle = e => { const r = e.getBoundingClientRect(); return r.left + r.width / 2; };
            return [...document.querySelectorAll(".chart")].map(chart => ({
              ticks: [...chart.querySelectorAll(".axis text")].map(e => [Number(e.textContent), middle(e)]),
              dots: [...chart.querySelectorAll(".row:not(.axis)")].map(
                row => [...row.querySelectorAll(".dot")].map(middle)),
              ceilings: [...chart.querySelectorAll(".row .ceiling")].map(middle),
            }));
        """)
        for chart, field in zip(charts, ("test_auc", "attack_auc"), strict=True):
            (first, start), (last, end) = chart["ticks"][0], chart["ticks"][-1]
            for row, dots in zip(rows, chart["dots"], strict=True):
                area = getattr(row, field)
                expected = [] if math.isnan(area) else [start + (area - first) / (last - first) * (end - start)]
                assert dots == pytest.approx(expected, abs=1.5)
        (first, start), (last, end) = charts[1]["ticks"][0], charts[1]["ticks"][-1]
        expected = [start + (row.ceiling - first) / (last - first) * (end - start) for row in rows]
        assert charts[1]["ceilings"] == pytest.approx(expected, abs=1.5)


def test_nothing_is_fetched_and_nothing_complains(browser: Any, page: Path) -> None:
    browser.open(page)
    browser.run(
        "document.querySelectorAll('[tabindex]').forEach(e => e.focus()); document.getElementById('theme').click()"
    )
    assert browser.console() == []
    assert browser.requests() == [page.as_uri()]
    assert browser.run("return performance.getEntriesByType('resource').length") == 0
    assert browser.run("return document.title").endswith("<script>alert(1)</script>\"'&[bold]$title")


def test_the_policy_of_the_page_stops_what_it_does_not_contain(browser: Any, page: Path) -> None:
    browser.open(page)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        browser.driver.execute_async_script(
            "const [address, done] = arguments;"
            "const script = document.createElement('script'); script.textContent = 'window.broken = 1';"
            "document.head.append(script);"
            "const image = new Image(); image.onerror = () => done(); image.src = address;",
            f"http://127.0.0.1:{server.getsockname()[1]}/leak",
        )
        with pytest.raises(BlockingIOError):
            server.accept()
    assert browser.run("return window.broken ?? null") is None
    script, image = browser.console()
    assert "script-src" in script
    assert "img-src" in image


def test_tooltips_on_hover_and_on_focus_and_escape(browser: Any, page: Path) -> None:
    from selenium.webdriver import ActionChains, Keys

    browser.open(page)
    tip = browser.driver.find_element("id", "tip")
    tracks = browser.driver.find_elements("css selector", "svg.track[data-tip]")
    assert not tip.is_displayed()
    ActionChains(browser.driver).move_to_element(tracks[1]).perform()
    assert tip.text == "Laplace, linear (the paper)\ntest AUC 0.7291 (0.7261–0.7321)\nagainst non-private −0.0411"
    ActionChains(browser.driver).send_keys(Keys.ESCAPE).perform()
    assert not tip.is_displayed()
    # With the keyboard alone: past the button and onto the first drawing, then the next.
    browser.open(page)
    tip = browser.driver.find_element("id", "tip")
    ActionChains(browser.driver).send_keys(Keys.TAB, Keys.TAB).perform()
    assert tip.text.startswith("non-private\ntest AUC 0.7702 (0.7673–0.7731)")
    ActionChains(browser.driver).send_keys(*[Keys.TAB] * 6).perform()
    assert tip.text == "Laplace, linear (the paper)\nattack AUC 0.6959 (0.6938–0.6980)\nformula 0.6967\nceiling 0.7311"
    point = browser.driver.find_element("css selector", ".panel g[data-tip]")
    ActionChains(browser.driver).move_to_element(point).perform()
    assert tip.text == "non-private\nepoch 1: 0.7512"


def test_what_can_be_focused_has_a_name(browser: Any, page: Path) -> None:
    browser.open(page)
    names = browser.run(
        "return [...document.querySelectorAll('[tabindex], button')].map(e => e.getAttribute('aria-label'))"
    )
    assert len(names) > 10 and all(names)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_until_the_button_is_used(browser: Any, page: Path, scheme: str) -> None:
    other = {"light": "dark", "dark": "light"}[scheme]
    is_dark = "return getComputedStyle(document.body).backgroundColor === 'rgb(21, 24, 27)'"
    browser.open(page, scheme=scheme)
    assert browser.run(is_dark) == (scheme == "dark")
    button = browser.driver.find_element("id", "theme")
    assert button.get_attribute("aria-label").lower() == f"{other} theme"
    button.click()
    assert browser.run(is_dark) == (other == "dark")
    assert button.get_attribute("aria-label").lower() == f"{scheme} theme"
    browser.driver.refresh()
    assert browser.run(is_dark) == (other == "dark")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_the_contrast_of_wcag_aa(browser: Any, page: Path, scheme: str) -> None:
    browser.open(page, scheme=scheme)
    browser.run("document.querySelector('svg.track[data-tip]').focus()")
    assert browser.run(CONTRAST) == []


@pytest.mark.parametrize("width", [320, 375, 768, 1280])
def test_no_width_needs_sideways_scrolling(browser: Any, tmp_path: Path, rows: list[RunSummary], width: int) -> None:
    long = replace(rows[1], name="unbreakable" * 20)
    write_page(tmp_path / "long.html", [*rows, long], title="T" * 90, facts={"F" * 80: "V" * 90})
    browser.open(tmp_path / "long.html", width=width)
    browser.run("document.querySelectorAll('svg[data-tip]').forEach(e => e.focus())")
    assert browser.run("return document.documentElement.scrollWidth") == width


def test_it_prints_dark_on_light_and_whole(browser: Any, tmp_path: Path, rows: list[RunSummary]) -> None:
    write_page(tmp_path / "page.html", rows[:4], title="A report", facts={})
    browser.open(tmp_path / "page.html", width=700, scheme="dark")
    browser.driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"media": "print", "features": [{"name": "prefers-color-scheme", "value": "dark"}]},
    )
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(252, 251, 248)"
    assert not browser.driver.find_element("id", "theme").is_displayed()
    assert browser.run("return document.documentElement.scrollWidth") == 700
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
