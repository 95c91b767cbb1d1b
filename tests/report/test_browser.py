"""The page in a browser: what it shows and draws, without a mouse, without a network, on a phone, in the dark."""

import csv
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from command import run
from report.folders import config, large, similar, write

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser: pip install playwright")
Axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python").Axe
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on the path to look at the page with")

ARGUMENTS = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
ARGUMENTS += ["--disable-component-update", "--disable-sync", *(["--no-sandbox"] if os.getuid() == 0 else [])]
PATIENCE = 300_000  # milliseconds that nothing takes, however busy the machine
HEAT = "panel => document.getElementById('cosines-plot').data[panel].z"
Open = Callable[..., Any]


sync_api.expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, timeout=PATIENCE)
        yield chromium
        chromium.close()


def cosines(seed: int) -> dict[str, dict[str, Any]]:
    """Of rounds 2, 4 and 6, five clients each."""
    draw = np.random.default_rng(seed)
    views = ("before", "after")
    return {f"cosines_{n}": {"clients": range(5)} | {view: similar(5, draw) for view in views} for n in (2, 4, 6)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two methods with two seeds each, and its report: all sections."""
    folder = tmp_path_factory.mktemp("runs")
    draw = np.random.default_rng(0)
    names = ["val/top1", "val/loss", "conflict/ratio", "conflict/layer/fc", "coherence/local", "fedlaw/gamma"]
    names += ["fedlaw/weight/0", "fedlaw/weight/1", "clients/loss/0", "clients/loss/1", "hessian/eigenvalue_1"]
    for number, (rule, seed) in enumerate([("FedLAW", 1), ("FedLAW", 2), ("FedNova", 1), ("FedNova", 2)]):
        write(
            folder / f"version_{number}",
            {name: draw.random(6) - 0.3 for name in names},
            config(rule, "ConflictMonitor", seed=seed),
            {name: draw.random(6) for name in ("seconds", "local", "server", "memory_mib", "gpu_mib")},
            {"versions": {"torch": f"2.{seed}"}, "command": "fl-lightning fit --config digits_gh.yaml " * 4},
            partition={"sizes": [30, 20], "counts": [[30, 0, 0], [10, 5, 5]]},
            **{f"surface_{n}": {"steps": [-1.0, 0.0, 1.0], "loss": draw.random((3, 3))} for n in (3, 6)},
            **cosines(number),
        )
    assert run("report", folder).status == 0
    return folder


@pytest.fixture
def look(browser: Any, runs: Path) -> Iterator[Open]:
    """Opens the report; the page must neither complain nor ask for anything."""
    contexts, complaints = [], []

    def opened(width: int = 1200, height: int = 800, **settings: Any) -> Any:
        contexts.append(browser.new_context(viewport={"width": width, "height": height}, **settings))
        contexts[-1].set_default_timeout(PATIENCE)
        page = contexts[-1].new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: complaints.append(request.url) if "file:" not in request.url else None)
        page.goto((runs / "report.html").as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


def drawn(page: Any, key: str) -> None:
    """Wait for a chart, not by a function of the page's own: its policy lets nothing in that would run one."""
    page.locator(f"#{key}-plot .main-svg").first.wait_for(state="attached")


def draw_all(page: Any) -> None:
    """As printing does."""
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    for plot in page.locator(".plot").all():
        plot.locator(".main-svg").first.wait_for(state="attached")


def unfold(page: Any) -> None:
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")


def close(shown: Any, file: Path, view: str) -> bool:
    """Whether a heat map shows a file's matrix, to half of the 1/127 that it is packed in."""
    return bool(np.abs(np.array(shown) - np.load(file)[view]).max() <= 0.5 / 127 + 1e-9)


def test_one_slider_and_one_choice_change_all_heat_maps(look: Open, runs: Path) -> None:
    """Last round and first seed first; then the keyboard alone: the slider's arrow keys, Home, and the lists."""
    page = look()
    page.locator("#cosines-plot").scroll_into_view_if_needed()
    drawn(page, "cosines")
    figure = page.locator("figure", has=page.locator("#cosines-plot"))

    def shows(round: int, view: str, *versions: int | None) -> bool:
        """Whether the panels show these runs, None for a panel that may show anything."""
        files = {at: runs / f"version_{n}/arrays/cosines_{round}.npz" for at, n in enumerate(versions) if n is not None}
        return all(close(page.evaluate(HEAT, panel), file, view) for panel, file in files.items())

    assert shows(6, "before", 0, None, 2)
    assert shows(6, "after", None, 0, None, 2)
    figure.locator("select.view").select_option("before")
    assert shows(6, "before", 0, 2)
    figure.locator("select.order").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "frame"
    page.keyboard.press("ArrowLeft")
    assert shows(4, "before", 0, 2)
    page.keyboard.press("Home")
    assert shows(2, "before", 0, 2)
    assert figure.locator("output").text_content() == "2"
    figure.locator("select.view").focus()
    page.keyboard.press("ArrowDown")
    assert shows(2, "after", 0, 2)
    figure.locator("select.seed").select_option("2")
    assert shows(2, "after", 1, 3)
    spoken = page.locator("#cosines-plot").get_attribute("aria-label")
    assert "Seed 2, round 2. FedLAW, after correction — pairs in conflict:" in spoken
    assert "FedNova, after correction — pairs in conflict:" in spoken


def test_one_slider_and_one_seed_for_all_charts(look: Open) -> None:
    """Loss surfaces are of rounds 3 and 6, cosines of 2, 4 and 6: a chart shows its last round up to the chosen one."""
    page = look()
    shown = {}
    for key in ("cosines", "surface"):
        page.locator(f"#{key}-plot").scroll_into_view_if_needed()
        drawn(page, key)
        shown[key] = page.locator("figure", has=page.locator(f"#{key}-plot"))

    def rounds() -> list[Any]:
        for figure in shown.values():
            figure.scroll_into_view_if_needed()
            page.wait_for_timeout(200)
        return [figure.locator("output").text_content() for figure in shown.values()]

    assert rounds() == ["6", "6"]
    shown["cosines"].locator(".frame").press("ArrowLeft")
    assert rounds() == ["4", "3"]
    shown["surface"].locator(".frame").press("End")
    assert rounds() == ["6", "6"]
    shown["surface"].locator("select.seed").select_option("2")
    rounds()
    assert shown["cosines"].locator("select.seed").input_value() == "2"
    assert "Seed 2" in page.locator("#cosines-plot").get_attribute("aria-label")


def test_tab_reaches_every_control(look: Open) -> None:
    """From the first link on, each press of Tab goes to another one, up to the end of the page."""
    page = look()
    draw_all(page)  # the table of clients, too
    reached = set()
    for _ in range(page.locator("a, button, select, input, summary, [tabindex]").count()):
        page.keyboard.press("Tab")
        element = "document.activeElement"
        reached.add(page.evaluate(f"{element}.className || {element}.id || {element}.tagName"))
    assert {"skip", "theme", "x", "log", "run", "seed", "view", "order", "frame", "SUMMARY", "scroll"} <= reached


def test_charts_are_drawn_when_they_come_into_sight(look: Open) -> None:
    page = look()
    assert page.locator("#time-plot .main-svg").count() == 0
    page.locator("#time-plot").scroll_into_view_if_needed()
    drawn(page, "time")


def test_printing_draws_all(look: Open) -> None:
    page = look()
    page.pdf()
    for plot in page.locator(".plot").all():
        plot.locator(".main-svg").first.wait_for(state="attached")


def test_the_dark_page_is_dark(look: Open) -> None:
    """The system's choice, and the button: page and charts follow both."""
    page = look(color_scheme="dark")
    page.locator("#val-top1-plot").scroll_into_view_if_needed()
    expect = sync_api.expect

    def is_in(ground: str, ink: str) -> None:
        expect(page.locator("body")).to_have_css("background-color", ground)
        expect(page.locator("#val-top1-plot .xtick text").first).to_have_css("fill", ink)

    dark, light = ("rgb(20, 23, 27)", "rgb(230, 233, 236)"), ("rgb(255, 255, 255)", "rgb(27, 31, 36)")
    is_in(*dark)
    page.emulate_media(color_scheme="light")
    is_in(*light)
    page.get_by_role("button", name="Dark").click()
    is_in(*dark)
    page.get_by_role("button", name="Light").click()
    is_in(*light)


@pytest.mark.parametrize("width", [320, 390])
def test_a_phone_scrolls_down_only(look: Open, width: int) -> None:
    page = look(width)
    draw_all(page)
    unfold(page)
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_a_phone_shows_method_last_and_difference(look: Open) -> None:
    """The third column ends where the screen does, 16 pixels from its edge; the seeds are a swipe away."""
    page = look(390)
    table = page.locator(".compared")
    assert table.locator("thead th").all_text_contents()[:3] == ["method", "last, %", "last − FedLAW, points"]
    ends = table.evaluate("each => [...each.tHead.rows[0].cells].map(cell => cell.getBoundingClientRect().right)")
    assert ends[2] == pytest.approx(374, abs=0.5)
    assert page.locator(".scroll:has(.compared)").evaluate("each => each.scrollWidth - each.clientWidth") > 100


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_keeps_anyone_out(look: Open, scheme: str) -> None:
    page = look(color_scheme=scheme)
    draw_all(page)
    unfold(page)
    found = Axe().run(page).response["violations"]
    assert [(each["id"], [node["target"] for node in each["nodes"]]) for each in found] == []


def test_the_table_of_clients_can_be_sorted(look: Open) -> None:
    """Clients 0 and 1 hold 30 and 20 examples: the most first, then, pressed again, the fewest."""
    page = look()
    page.locator(".roster").scroll_into_view_if_needed()
    table = page.locator(".roster table")
    button = table.get_by_role("button", name="examples")
    button.press("Enter")
    assert table.locator("tbody th").all_text_contents() == ["0", "1"]
    button.press("Enter")
    assert table.locator("tbody th").all_text_contents() == ["1", "0"]
    assert table.locator("thead th").nth(1).get_attribute("aria-sort") == "ascending"


def shown(page: Any, key: str) -> list[str]:
    """Names of the lines of a chart."""
    return page.evaluate(
        "key => document.getElementById(`${key}-plot`).data.filter(t => t.meta.role === 'line').map(t => t.name)", key
    )


def test_one_legend_acts_on_all_charts(look: Open) -> None:
    """A click hides a method, in lines and in panels; a double click, or Shift and a click, shows it alone."""
    page = look()
    draw_all(page)
    methods = page.get_by_role("group", name="Legend").get_by_role("button", name="Fed")
    first, second = methods.nth(0), methods.nth(1)
    assert [first.get_attribute("aria-pressed"), second.get_attribute("aria-pressed")] == ["true", "true"]
    first.press("Enter")
    draw_all(page)
    assert first.get_attribute("aria-pressed") == "false"
    assert shown(page, "val-loss") == shown(page, "coherence-local") == ["FedNova"]
    assert page.evaluate("document.getElementById('cosines-plot').data.length") == 2  # before and after
    first.dblclick()
    assert shown(page, "val-top1") == ["FedLAW"]
    first.click(modifiers=["Shift"])
    assert shown(page, "val-top1") == ["FedLAW", "FedNova"]


def test_the_x_axis_and_the_scale_of_y_change_in_all_charts(look: Open) -> None:
    """Rounds 1 to 6 become the sums of the seconds of training; a chart with values below zero stays linear."""
    page = look()
    draw_all(page)
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


def test_bands_stay_in_the_frame(browser: Any, tmp_path: Path) -> None:
    """The interval of two seeds is as wide as 12.7 times half of their distance, and a share's ends at 0 and 1.

    Losses 1, 2 and 2, 2.5: 1.5 ± 6.35 and 2.25 ± 3.18, from -4.85 to 7.85.
    """
    for seed, top1, loss in ((1, [0.5, 0.9], [1, 2]), (2, [0.7, 0.95], [2, 2.5])):
        write(tmp_path / f"{seed}", {"val/top1": top1, "val/loss": loss}, config("FedNova", seed=seed))
    assert run("report", tmp_path).status == 0
    page = browser.new_page()
    page.set_default_timeout(PATIENCE)
    page.goto((tmp_path / "report.html").as_uri())
    draw_all(page)
    for key, low, high in (("val-top1", 0, 1), ("val-loss", -4.853, 7.853)):
        chart = f"document.getElementById('{key}-plot')"
        ys = page.evaluate(f"{chart}.data.filter(each => each.meta.role !== 'line').flatMap(each => each.y)")
        assert (min(ys), max(ys)) == pytest.approx((low, high), abs=1e-3)
        below, above = page.evaluate(f"{chart}.layout.yaxis.range")
        assert below < low
        assert above > high
    page.close()


def test_the_cursor_of_one_chart_shows_in_the_others(look: Open) -> None:
    """With the round, and every method's whole name and value."""
    page = look(height=1600)
    for key in ("val-top1", "val-loss"):
        drawn(page, key)
    box = page.locator("#val-loss-plot").bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 120)
    page.mouse.move(box["x"] + 302, box["y"] + 122)
    tips = page.locator(".tip")
    sync_api.expect(page.locator("figure:has(#val-top1-plot) .tip")).to_be_attached()
    here, there = (page.locator(f"figure:has(#{key}-plot) .tip") for key in ("val-loss", "val-top1"))
    assert here.locator("b").text_content() == there.locator("b").text_content()
    assert here.locator("b").text_content().startswith("round ")
    for name in ("FedLAW: ", "FedNova: "):
        assert name in here.text_content()
        assert name in there.text_content()
    page.mouse.move(1, 1)
    sync_api.expect(tips).to_have_count(0)


def test_chosen_clients_are_pointed_out_everywhere(look: Open) -> None:
    """In the field of the bar, and by a click on the table."""
    page = look()
    draw_all(page)
    page.get_by_label("Clients to point out").fill("1, 3-4")
    draw_all(page)
    outlined = "document.getElementById('cosines-plot').layout.shapes.length"
    assert page.evaluate(outlined) == 4 * 2 * 3  # in four panels, rows and columns of three clients
    assert page.locator(".roster tr.chosen th").all_text_contents() == ["1"]
    bubbles = page.evaluate("document.getElementById('partition-plot').data[0]")
    assert {
        client for client, opacity in zip(bubbles["x"], bubbles["marker"]["opacity"], strict=True) if opacity > 0.5
    } == {1}
    page.locator(".roster").get_by_role("button", name="Point out client 1").click()
    assert page.get_by_label("Clients to point out").input_value() == "3, 4"


def saved(page: Any, figure: Any, kind: str) -> str:
    """Content of the file that a chart's button saves."""
    with page.expect_download() as download:
        figure.locator(f"button[data-kind={kind}]").click()
    return Path(download.value.path()).read_text(encoding="utf-8")


def test_charts_are_saved_as_svg_and_csv(look: Open, runs: Path) -> None:
    """An SVG of a column's width, 3.25 inches at 96 pixels, with the legend; a CSV of what is shown."""
    page = look()
    figure = page.locator("figure", has=page.locator("#val-loss-plot"))
    figure.scroll_into_view_if_needed()
    svg = ElementTree.fromstring(saved(page, figure, "SVG"))
    assert svg.get("width") == "312"
    texts = {"".join(each.itertext()) for each in svg.iter("{http://www.w3.org/2000/svg}text")}
    assert {"FedLAW", "FedNova", "round"} <= texts
    rows = list(csv.DictReader(saved(page, figure, "CSV").splitlines()))
    values = [pd.read_csv(runs / f"version_{n}/metrics.csv")["val/loss"] for n in (0, 1)]
    assert [(row["method"], row["round"]) for row in rows[:2]] == [("FedLAW", "1"), ("FedLAW", "2")]
    assert float(rows[1]["mean"]) == pytest.approx((values[0][1] + values[1][1]) / 2, rel=1e-3)
    figure = page.locator("figure", has=page.locator("#cosines-plot"))
    figure.scroll_into_view_if_needed()
    rows = list(csv.reader(saved(page, figure, "CSV").splitlines()))
    assert rows[0] == ["method", "seed", "round", "client", "client", "cosine"]
    assert rows[1][:5] == ["FedLAW, before", "1", "6", "0", "0"]
    assert len(rows) == 1 + 4 * 25


def test_one_figure_is_printed_on_a_page_of_its_size(look: Open) -> None:
    """3.25 inches are 234 points."""
    page = look()
    page.evaluate("window.print = () => {}")
    figure = page.locator("figure", has=page.locator("#val-loss-plot"))
    figure.locator("button[data-kind=PDF]").click()
    page.locator("#sheet img").wait_for(state="attached")
    pdf = page.pdf(prefer_css_page_size=True)
    boxes = re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", pdf)
    assert [round(float(width)) for width, _ in boxes] == [234]


def test_the_table_of_the_verdict_is_saved(look: Open) -> None:
    page = look()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save").filter(has_text="save").first.click()
    assert "FedNova" in Path(download.value.path()).read_text(encoding="utf-8")


def test_an_index_leads_to_each_experiment(browser: Any, runs: Path, tmp_path: Path) -> None:
    """Two experiments and a sweep, whose runs lie deeper; the ids of the parts differ, and each has its own legend."""
    values = {"val/top1": [0.1, 0.2], "val/loss": [2.0, 1.0]}
    problems = {"a/version_0": 0.1, "a/version_1": 0.1, "b/version_0": 1, "swept/runs/0af1/seed_1/run/version_0": 10}
    for name, alpha in problems.items():
        write(tmp_path / name, values, config("FedNova", seed=int(name[-1]) + 1, alpha=alpha))
    assert run("report", tmp_path).out.startswith(
        f"report: {os.path.relpath(tmp_path)}/report.html (3 experiments, 4 runs"
    )
    page = browser.new_page()
    page.set_default_timeout(PATIENCE)
    page.goto((tmp_path / "report.html").as_uri())
    rows = page.locator(".index tbody tr")
    assert rows.nth(0).locator("th, td").all_text_contents()[:4] == [
        "a",
        "FedNova",
        "2",
        "2 of 2 runs stopped at round 2 of 4",
    ]
    assert rows.locator("th").all_text_contents() == ["a", "b", "swept"]
    rows.nth(2).get_by_role("link").click()
    heading = page.locator("h2", has_text="swept")
    sync_api.expect(heading).to_be_in_viewport()
    drawn(page, "e3-val-top1")
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(each => each.id)")
    assert len(ids) == len(set(ids))
    page.locator("article").nth(1).get_by_role("group", name="Legend").get_by_role("button", name="FedNova").click()
    page.close()


def test_a_long_run_of_many_clients_stays_small(browser: Any, tmp_path: Path) -> None:
    """500 rounds of 100 clients, cosines in every round: those that do not fit are left out, and the page says so."""
    folder = large(tmp_path / "run")
    assert run("report", folder).status == 0
    file = folder / "report.html"
    assert file.stat().st_size < 10e6
    page = browser.new_page()
    page.set_default_timeout(PATIENCE)
    page.goto(file.as_uri())
    draw_all(page)
    assert "Of 500 recorded matrices" in page.locator("main").text_content()
    shown = page.evaluate(HEAT, 0)
    assert close(shown, folder / "arrays/cosines_500.npz", "before")
    page.close()


def test_the_policy_lets_no_other_script_or_style_in(browser: Any, runs: Path) -> None:
    """What a crafted name of a metric would bring, if it ever came into the page as it is."""
    page = browser.new_page()
    page.goto((runs / "report.html").as_uri())
    assert "unsafe" not in page.locator("meta[http-equiv]").get_attribute("content")
    page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "window.ran = 'script'";
            document.body.append(script);
            document.body.insertAdjacentHTML("beforeend", "<img src=x onerror=\\"window.ran = 'handler'\\">");
            document.body.insertAdjacentHTML("beforeend", "<p id=red style='color: rgb(255, 0, 0)'>x</p>");
        }"""
    )
    page.wait_for_timeout(200)
    assert page.evaluate("window.ran") is None
    assert page.evaluate("getComputedStyle(document.getElementById('red')).color") != "rgb(255, 0, 0)"
    page.close()
