"""The page in a browser: what it shows and draws, without a mouse, without a network, on a phone, in the dark."""

import csv
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from lib.command import run
from report.folders import NAMES, config, large, write

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser: pip install playwright")
Axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python").Axe
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on the path to look at the page with")

ARGUMENTS = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
ARGUMENTS += ["--disable-component-update", "--disable-sync", *(["--no-sandbox"] if os.getuid() == 0 else [])]
PATIENCE = 300_000  # milliseconds that nothing takes, however busy the machine
HEAT = "panel => document.getElementById('cosines-plot').data[panel].z"
SHORT = ["oslo", "lyon, hôpi… 1", "17", "bern"]  # names along axes: long ones are cut, and numbered
expect = sync_api.expect
expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, timeout=PATIENCE)
        yield chromium
        chromium.close()


def opened(browser: Any, file: Path) -> Any:
    page = browser.new_page(viewport={"width": 1200, "height": 800})
    page.set_default_timeout(PATIENCE)
    page.goto(file.as_uri())
    return page


@pytest.fixture(scope="module")
def shown(browser: Any, runs: Path) -> Iterator[Any]:
    """The page about all runs; until all tests are done, it must neither complain nor ask for anything.

    A chart is drawn when it comes into sight, and printing draws all.
    """
    page, complaints = opened(browser, runs / "report.html"), []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: complaints.append(request.url) if "file:" not in request.url else None)
    assert page.locator("#time-plot .main-svg").count() == 0
    page.locator("#time-plot").scroll_into_view_if_needed()
    drawn(page, "time")
    draw_all(page)
    yield page
    assert complaints == []


@pytest.fixture
def page(shown: Any) -> Any:
    """The page about all runs in light colours, folded and at the top; a test puts back what else it chooses."""
    shown.set_viewport_size({"width": 1200, "height": 800})
    shown.emulate_media(color_scheme="light")
    unfold(shown, opened=False)
    shown.evaluate("scrollTo(0, 0)")
    return shown


def drawn(page: Any, key: str) -> None:
    """Wait for a chart, not by a function of the page's own: its policy lets nothing in that would run one."""
    page.locator(f"#{key}-plot .main-svg").first.wait_for(state="attached")


def draw_all(page: Any) -> None:
    """As printing does."""
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    for plot in page.locator(".plot").all():
        plot.locator(".main-svg").first.wait_for(state="attached")


def unfold(page: Any, opened: bool = True) -> None:
    page.evaluate("opened => document.querySelectorAll('details').forEach(each => each.open = opened)", opened)


def close(shown: Any, file: Path, view: str) -> bool:
    """Whether a heat map shows a file's matrix, to half of the 1/127 that it is packed in."""
    return bool(np.abs(np.array(shown) - np.load(file)[view]).max() <= 0.5 / 127 + 1e-9)


def figure(page: Any, key: str) -> Any:
    return page.locator("figure", has=page.locator(f"#{key}-plot"))


def test_one_slider_and_one_choice_change_all_heat_maps(page: Any, runs: Path) -> None:
    """Last round and first seed first; then the keyboard alone: the slider's arrow keys, Home, and the lists.

    Loss surfaces are of rounds 3 and 6, cosines of 2, 4 and 6: a chart shows its last round up to the chosen one.
    """
    cosines, surface = figure(page, "cosines"), figure(page, "surface")

    def shows(round: int, view: str, *versions: int | None) -> bool:
        """Whether the panels show these runs, None for a panel that may show anything."""
        files = {at: runs / f"version_{n}/arrays/cosines_{round}.npz" for at, n in enumerate(versions) if n is not None}
        cosines.scroll_into_view_if_needed()
        page.wait_for_timeout(200)
        return all(close(page.evaluate(HEAT, panel), file, view) for panel, file in files.items())

    def of_surface() -> str:
        surface.scroll_into_view_if_needed()
        page.wait_for_timeout(200)
        return str(surface.locator("output").text_content())

    assert shows(6, "before", 0, None, 2)
    assert shows(6, "after", None, 0, None, 2)
    cosines.locator("select.view").select_option("before")
    cosines.locator("select.order").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "frame"
    page.keyboard.press("ArrowLeft")
    assert shows(4, "before", 0, 2)
    surface.scroll_into_view_if_needed()
    expect(surface.locator("output")).to_have_text("3")
    cosines.locator(".frame").press("Home")
    assert shows(2, "before", 0, 2)
    assert cosines.locator("output").text_content() == "2"
    cosines.locator("select.view").focus()
    page.keyboard.press("ArrowDown")
    assert shows(2, "after", 0, 2)
    surface.locator("select.seed").select_option("2")
    assert shows(2, "after", 1, 3)
    spoken = page.locator("#cosines-plot").get_attribute("aria-label")
    assert "Seed 2, round 2. FedLAW, after correction — pairs in conflict:" in spoken
    assert "FedNova, after correction — pairs in conflict:" in spoken
    surface.locator(".frame").press("End")
    cosines.locator("select.view").select_option(index=0)
    cosines.locator("select.seed").select_option("1")
    assert shows(6, "before", 0)
    assert of_surface() == "6"


def test_tab_reaches_every_control(page: Any) -> None:
    """From the first link on, each press of Tab goes to another one, up to the end of the page."""
    reached = set()
    page.locator(".skip").focus()
    for _ in range(page.locator("a, button, select, input, summary, [tabindex]").count()):
        reached.add(page.evaluate("(e => e.className || e.id || e.tagName)(document.activeElement)"))
        page.keyboard.press("Tab")
    assert {"skip", "theme", "x", "log", "run", "seed", "view", "order", "frame", "SUMMARY", "scroll"} <= reached


def test_the_dark_page_is_dark(page: Any) -> None:
    """The system's choice, and the button: page and charts follow both."""

    def is_in(ground: str, ink: str) -> None:
        expect(page.locator("body")).to_have_css("background-color", ground)
        expect(page.locator("#val-top1-plot .xtick text").first).to_have_css("fill", ink)

    dark, light = ("rgb(20, 23, 27)", "rgb(230, 233, 236)"), ("rgb(255, 255, 255)", "rgb(27, 31, 36)")
    page.emulate_media(color_scheme="dark")
    is_in(*dark)
    page.emulate_media(color_scheme="light")
    is_in(*light)
    page.get_by_role("button", name="Dark").click()
    is_in(*dark)
    page.get_by_role("button", name="Light").click()
    is_in(*light)


def test_a_phone_scrolls_down_only(page: Any) -> None:
    """The third column ends where the screen does, 16 pixels from its edge; the seeds are a swipe away."""
    unfold(page)
    for width in (320, 390):
        page.set_viewport_size({"width": width, "height": 800})
        page.wait_for_timeout(300)  # until the charts have taken their new widths
        assert page.evaluate("document.documentElement.scrollWidth") == width
    table = page.locator(".compared")
    assert table.locator("thead th").all_text_contents()[:3] == ["method", "last, %", "last − FedLAW, points"]
    ends = table.evaluate("each => [...each.tHead.rows[0].cells].map(cell => cell.getBoundingClientRect().right)")
    assert ends[2] == pytest.approx(374, abs=0.5)
    assert page.locator(".scroll:has(.compared)").evaluate("each => each.scrollWidth - each.clientWidth") > 100


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_nothing_keeps_anyone_out(page: Any, scheme: str) -> None:
    if scheme == "dark":
        page.emulate_media(color_scheme=scheme)
        page.reload()
        draw_all(page)
    unfold(page)
    found = Axe().run(page).response["violations"]
    assert [(each["id"], [node["target"] for node in each["nodes"]]) for each in found] == []


def test_the_table_of_clients_can_be_sorted(page: Any) -> None:
    """By name first, numbers before letters; the most examples first, then, pressed again, the fewest."""
    table = page.locator(".roster table")
    assert table.locator("thead th").all_text_contents()[:3] == ["client", "number", "examples"]
    assert table.locator("tbody th").all_text_contents() == ["17", "bern", NAMES[1], "oslo"]
    assert table.locator("tbody tr td:nth-of-type(1)").all_text_contents() == ["2", "3", "1", "0"]
    button = table.get_by_role("button", name="examples")
    button.press("Enter")
    assert table.locator("tbody th").all_text_contents() == NAMES
    button.press("Enter")
    assert table.locator("tbody th").all_text_contents() == NAMES[::-1]
    assert table.locator("thead th").nth(2).get_attribute("aria-sort") == "ascending"


def test_charts_have_the_clients_names_along_their_axes(page: Any) -> None:
    for key in ("cosines", "fedlaw-weight"):
        assert page.evaluate("key => document.getElementById(`${key}-plot`).data[0].y", key) == SHORT
    assert page.evaluate("document.getElementById('partition-plot').layout.xaxis")["ticktext"] == SHORT
    assert page.evaluate("document.getElementById('partition-plot').data[0].text")[0] == "oslo"


def lines(page: Any, key: str) -> list[str]:
    """Names of the lines of a chart."""
    return page.evaluate(
        "key => document.getElementById(`${key}-plot`).data.filter(t => t.meta.role === 'line').map(t => t.name)", key
    )


def test_one_legend_acts_on_all_charts(page: Any) -> None:
    """A click hides a method, in lines and in panels; a double click, or Shift and a click, shows it alone."""
    methods = page.get_by_role("group", name="Legend").get_by_role("button", name="Fed")
    first, second = methods.nth(0), methods.nth(1)
    assert [first.get_attribute("aria-pressed"), second.get_attribute("aria-pressed")] == ["true", "true"]
    first.press("Enter")
    draw_all(page)
    assert first.get_attribute("aria-pressed") == "false"
    assert lines(page, "val-loss") == lines(page, "coherence-local") == ["FedNova"]
    page.wait_for_function("document.getElementById('cosines-plot').data.length == 2")  # before and after
    first.dblclick()
    assert lines(page, "val-top1") == ["FedLAW"]
    first.click(modifiers=["Shift"])
    assert lines(page, "val-top1") == ["FedLAW", "FedNova"]


def test_the_x_axis_and_the_scale_of_y_change_in_all_charts(page: Any) -> None:
    """Rounds 1 to 6 become the sums of the seconds of training; a chart with values below zero stays linear."""
    layout = "key => document.getElementById(`${key}-plot`).layout"
    page.locator("select.x").select_option("seconds")
    page.get_by_role("button", name="log y").click()
    draw_all(page)
    for key in ("val-loss", "coherence-local"):
        assert page.evaluate(layout, key)["xaxis"]["title"]["text"] == "training time (seconds)"
    xs = page.evaluate("document.getElementById('val-loss-plot').data.find(t => t.meta.role === 'line').x")
    assert xs == sorted(xs)
    assert xs != [1, 2, 3, 4, 5, 6]
    assert page.evaluate(layout, "memory-mib")["yaxis"]["type"] == "log"
    assert page.evaluate(layout, "val-loss")["yaxis"]["type"] == "linear"
    page.locator("select.x").select_option("round")
    page.get_by_role("button", name="log y").click()
    draw_all(page)


def test_bands_stay_in_the_frame(page: Any) -> None:
    """A share's band ends at 0 and 1. Losses 1, 2 and 2, 2.5: 1.5 ± 6.35 and 2.25 ± 3.18, from -4.85 to 7.85."""
    for key, low, high in (("val-top1", 0, 1), ("train-loss", -4.853, 7.853)):
        chart = f"document.getElementById('{key}-plot')"
        ys = page.evaluate(f"{chart}.data.filter(each => each.meta.role !== 'line').flatMap(each => each.y)")
        assert (min(ys), max(ys)) == pytest.approx((low, high), abs=1e-3)
        below, above = page.evaluate(f"{chart}.layout.yaxis.range")
        assert below < low
        assert above > high


def test_the_cursor_of_one_chart_shows_in_the_others(page: Any) -> None:
    """With the round, and every method's whole name and value."""
    page.set_viewport_size({"width": 1200, "height": 1600})
    for key in ("val-top1", "val-loss"):
        drawn(page, key)
    box = page.locator("#val-loss-plot").bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 120)
    page.mouse.move(box["x"] + 302, box["y"] + 122)
    tips = page.locator(".tip")
    expect(page.locator("figure:has(#val-top1-plot) .tip")).to_be_attached()
    here, there = (page.locator(f"figure:has(#{key}-plot) .tip") for key in ("val-loss", "val-top1"))
    assert here.locator("b").text_content() == there.locator("b").text_content()
    assert here.locator("b").text_content().startswith("round ")
    for name in ("FedLAW: ", "FedNova: "):
        assert name in here.text_content()
        assert name in there.text_content()
    page.mouse.move(1, 1)
    expect(tips).to_have_count(0)


def test_chosen_clients_are_pointed_out_everywhere(page: Any) -> None:
    """Oslo is client 0, "17" the name of client 2; 3 is a number. A name with a comma is typed as a number."""
    field = page.get_by_label("Clients to point out")
    assert field.get_attribute("placeholder") == f"e.g. {NAMES[0]}, {NAMES[1]}"
    field.fill("OSLO, 17, 3-3, nowhere")
    draw_all(page)
    outlined = "document.getElementById('cosines-plot').layout.shapes.length"
    assert page.evaluate(outlined) == 4 * 2 * 3  # in four panels, rows and columns of three clients
    assert {*page.locator(".roster tr.chosen th").all_text_contents()} == {"17", "bern", "oslo"}
    bubbles = page.evaluate("document.getElementById('partition-plot').data[0]")
    strong = zip(bubbles["x"], bubbles["marker"]["opacity"], strict=True)
    assert {client for client, opacity in strong if opacity > 0.5} == {0, 2, 3}
    for name in NAMES:
        page.locator(".roster").get_by_role("button", name=f"Point out client {name}").click()
    assert field.input_value() == "1"
    field.fill("")


def saved(page: Any, chart: Any, kind: str) -> str:
    """Content of the file that a chart's button saves."""
    with page.expect_download() as download:
        chart.locator(f"button[data-kind={kind}]").click()
    return Path(download.value.path()).read_text(encoding="utf-8")


def test_charts_and_the_verdicts_table_are_saved(page: Any, runs: Path) -> None:
    """An SVG of a column's width, 3.25 inches at 96 pixels, with the legend; a CSV of what is shown."""
    chart = figure(page, "val-loss")
    svg = ElementTree.fromstring(saved(page, chart, "SVG"))
    assert svg.get("width") == "312"
    texts = {"".join(each.itertext()) for each in svg.iter("{http://www.w3.org/2000/svg}text")}
    assert {"FedLAW", "FedNova", "round"} <= texts
    rows = list(csv.DictReader(saved(page, chart, "CSV").splitlines()))
    values = [pd.read_csv(runs / f"version_{n}/metrics.csv")["val/loss"] for n in (0, 1)]
    assert [(row["method"], row["round"]) for row in rows[:2]] == [("FedLAW", "1"), ("FedLAW", "2")]
    assert float(rows[1]["mean"]) == pytest.approx((values[0][1] + values[1][1]) / 2, rel=1e-3)
    rows = list(csv.reader(saved(page, figure(page, "cosines"), "CSV").splitlines()))
    assert rows[0] == ["method", "seed", "round", "client", "client", "cosine"]
    assert [row[:5] for row in rows[1:5]] == [["FedLAW, before", "1", "6", name, NAMES[0]] for name in NAMES]
    assert len(rows) == 1 + 4 * 16
    with page.expect_download() as download:
        page.get_by_role("button", name="Save").filter(has_text="save").first.click()
    assert "FedNova" in Path(download.value.path()).read_text(encoding="utf-8")


def test_one_figure_is_printed_on_a_page_of_its_size(page: Any) -> None:
    """3.25 inches are 234 points."""
    page.evaluate("window.print = () => {}")
    figure(page, "val-loss").locator("button[data-kind=PDF]").click()
    page.locator("#sheet img").wait_for(state="attached")
    pdf = page.pdf(prefer_css_page_size=True)
    boxes = re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", pdf)
    assert [round(float(width)) for width, _ in boxes] == [234]


@pytest.fixture(scope="module")
def indexed(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The page about two experiments and a sweep, whose runs lie deeper."""
    folder = tmp_path_factory.mktemp("indexed")
    problems = {"a/version_0": 0.1, "a/version_1": 0.1, "b/version_0": 1, "swept/runs/0af1/seed_1/run/version_0": 10}
    for name, alpha in problems.items():
        write(folder / name, {"val/top1": [0.1, 0.2]}, config("FedNova", seed=int(name[-1]) + 1, alpha=alpha))
    said = run("report", folder).out
    assert said.startswith(f"report: {os.path.relpath(folder)}/report.html (3 experiments, 4 runs")
    return opened(browser, folder / "report.html")


def test_an_index_leads_to_each_experiment(indexed: Any) -> None:
    """The ids of the parts differ, and each has its own legend."""
    rows = indexed.locator(".index tbody tr")
    first = rows.nth(0).locator("th, td").all_text_contents()
    assert first[:4] == ["a", "FedNova", "2", "2 of 2 runs stopped at round 2 of 4"]
    assert rows.locator("th").all_text_contents() == ["a", "b", "swept"]
    rows.nth(2).get_by_role("link").click()
    expect(indexed.locator("h2", has_text="swept")).to_be_in_viewport()
    drawn(indexed, "e3-val-top1")
    ids = indexed.evaluate("[...document.querySelectorAll('[id]')].map(each => each.id)")
    assert len(ids) == len(set(ids))
    second = indexed.locator("article").nth(1).get_by_role("group", name="Legend")
    second.get_by_role("button", name="FedNova").click()


@pytest.mark.slow
def test_a_long_run_of_many_clients_stays_small(browser: Any, tmp_path: Path) -> None:
    """500 rounds of 100 clients, cosines in every round: those that do not fit are left out, and the page says so."""
    folder = large(tmp_path / "run")
    assert run("report", folder).status == 0
    file = folder / "report.html"
    assert file.stat().st_size < 10e6
    page = opened(browser, file)
    draw_all(page)
    assert "Of 500 recorded matrices" in page.locator("main").text_content()
    shown = page.evaluate(HEAT, 0)
    assert close(shown, folder / "arrays/cosines_500.npz", "before")
    page.close()


def test_the_policy_lets_no_other_script_or_style_in(indexed: Any) -> None:
    """What a crafted name of a metric would bring, if it ever came into the page as it is."""
    assert "unsafe" not in indexed.locator("meta[http-equiv]").get_attribute("content")
    indexed.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "window.ran = 'script'";
            document.body.append(script);
            document.body.insertAdjacentHTML("beforeend", "<img src=x onerror=\\"window.ran = 'handler'\\">");
            document.body.insertAdjacentHTML("beforeend", "<p id=red style='color: rgb(255, 0, 0)'>x</p>");
        }"""
    )
    indexed.wait_for_timeout(200)
    assert indexed.evaluate("window.ran") is None
    assert indexed.evaluate("getComputedStyle(document.getElementById('red')).color") != "rgb(255, 0, 0)"
