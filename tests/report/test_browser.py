"""The page in a browser: what it shows and draws, without a mouse, without a network, on a phone, in the dark."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
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
            surface_6={"steps": [-1.0, 0.0, 1.0], "loss": draw.random((3, 3))},
            **cosines(number),
        )
    assert run("report", folder).status == 0
    return folder


@pytest.fixture
def look(browser: Any, runs: Path) -> Iterator[Open]:
    """Opens the report; the page must neither complain nor ask for anything."""
    contexts, complaints = [], []

    def opened(width: int = 1200, **settings: Any) -> Any:
        contexts.append(browser.new_context(viewport={"width": width, "height": 800}, **settings))
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


def test_tab_reaches_every_control(look: Open) -> None:
    """From the first link on, each press of Tab goes to another one, up to the end of the page."""
    page = look()
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


@pytest.mark.parametrize("width", [320, 400])
def test_a_phone_scrolls_down_only(look: Open, width: int) -> None:
    page = look(width)
    draw_all(page)
    unfold(page)
    assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_keeps_anyone_out(look: Open, scheme: str) -> None:
    page = look(color_scheme=scheme)
    draw_all(page)
    unfold(page)
    found = Axe().run(page, {"exclude": [".main-svg"]}).response["violations"]  # each within one image with a name
    assert [(each["id"], [node["target"] for node in each["nodes"]]) for each in found] == []


def test_the_table_of_clients_can_be_sorted(look: Open) -> None:
    """Clients 0 and 1 hold 30 and 20 examples: the most first, then, pressed again, the fewest."""
    page = look()
    table = page.locator(".roster table")
    button = table.get_by_role("button", name="examples")
    button.press("Enter")
    assert table.locator("tbody th").all_text_contents() == ["0", "1"]
    button.press("Enter")
    assert table.locator("tbody th").all_text_contents() == ["1", "0"]
    assert table.locator("thead th").nth(1).get_attribute("aria-sort") == "ascending"


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
