"""How large a report is, how long it takes to make, and how soon it can be read.

A made-up run (see tests/report/folders.py) with all that a report shows, cosines of every round among it, opened in
headless Chromium several times, each from scratch; medians of wall time. Text: it can be read. Loaded: the scripts have
run. First chart: the first curve that is scrolled to is drawn; also in processor time of all the browser's processes,
which a busy machine changes less. All: every chart is drawn, as for printing.

    PYTHONPATH=tests/report python benchmarks/report.py [rounds] [clients] [repetitions]
"""

import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from folders import large
from playwright.sync_api import sync_playwright

from fl_lightning.report.command import command

ROUNDS, CLIENTS, REPETITIONS = (int(a) for a in (*sys.argv[1:], *("500", "100", "7")[len(sys.argv) - 1 :]))
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]


def processor_seconds() -> float:
    """Of all processes that this one has started."""
    times = [process.cpu_times() for process in psutil.Process().children(recursive=True)]
    return sum(each.user + each.system for each in times)


def opened(browser: Any, file: Path) -> tuple[float, ...]:
    """Seconds until the text stands, the page is loaded, a chart drawn (wall and processor time), all of them drawn."""
    page = browser.new_page()
    began, before = time.perf_counter(), processor_seconds()
    page.goto(file.as_uri())
    loaded = time.perf_counter()
    text = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime") / 1000
    page.locator(".plot").first.scroll_into_view_if_needed()
    page.locator(".plot .main-svg").first.wait_for(state="attached")
    first, processor = time.perf_counter(), processor_seconds()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    all_drawn = time.perf_counter()
    page.close()
    return text, loaded - began, first - began, processor - before, all_drawn - began


def main() -> None:
    """Print a row of a Markdown table."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        run = large(Path(folder) / "run", ROUNDS, CLIENTS)
        began = time.perf_counter()
        command(["report", str(run)])
        made = time.perf_counter() - began
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        seconds = [opened(browser, run / "report.html") for _ in range(REPETITIONS)]
        browser.close()
        size = (run / "report.html").stat().st_size / 1e6
        text, loaded, first, processor, whole = (median(column) for column in zip(*seconds, strict=True))
    print(
        "| rounds | clients | MB | made in s | text, s | loaded, s | first chart, s | its processor s | all charts, s |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    seen = " | ".join(f"{value:.2f}" for value in (text, loaded, first, processor, whole))
    print(f"| {ROUNDS} | {CLIENTS} | {size:.1f} | {made:.1f} | {seen} |")


if __name__ == "__main__":
    main()
