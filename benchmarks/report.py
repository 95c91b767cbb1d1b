"""Measure the size of a report, the time to make it, and the time until a browser shows it.

The report shows made-up runs (see tests/report/folders.py) that have data for all sections, with cosines in every tenth
round. Headless Chromium opens the report several times, each time from scratch. The table shows medians of wall time
until the text can be read (text), the scripts have run (loaded), the first chart that is scrolled to is drawn (first
chart), and all charts are drawn, as for printing (all charts). The time until the first chart is also given as
processor time of all the browser's processes, which depends less on other programs.

    PYTHONPATH=tests/report python -m benchmarks.report [methods] [seeds] [rounds] [clients] [repetitions]
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

GIVEN, USUAL = sys.argv[1:], ("20", "5", "200", "100", "7")
METHODS, SEEDS, ROUNDS, CLIENTS, REPETITIONS = (int(number) for number in (*GIVEN, *USUAL[len(GIVEN) :]))
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]


def processor_seconds() -> float:
    """Processor seconds of all processes that this process has started."""
    times = [process.cpu_times() for process in psutil.Process().children(recursive=True)]
    return sum(each.user + each.system for each in times)


def opened(browser: Any, file: Path) -> tuple[float, ...]:
    """Seconds until text, loaded page, first chart (wall time, then processor time) and all charts are there."""
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
    """Print a Markdown table of one row."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        for method in range(METHODS):
            for seed in range(1, SEEDS + 1):
                large(Path(folder, "runs", f"version_{method}_{seed}"), ROUNDS, CLIENTS, 10, f"Rule{method}", seed)
        began = time.perf_counter()
        command(["report", str(Path(folder, "runs"))])
        made = time.perf_counter() - began
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        seconds = [opened(browser, Path(folder, "runs", "report.html")) for _ in range(REPETITIONS)]
        browser.close()
        size = Path(folder, "runs", "report.html").stat().st_size / 1e6
        text, loaded, first, processor, whole = (median(column) for column in zip(*seconds, strict=True))
    timed = "made in s | text, s | loaded, s | first chart, s | its processor s | all charts, s"
    print(f"| methods | seeds | rounds | clients | MB | {timed} |")
    print("|---" * 11 + "|")
    seen = " | ".join(f"{value:.2f}" for value in (text, loaded, first, processor, whole))
    print(f"| {METHODS} | {SEEDS} | {ROUNDS} | {CLIENTS} | {size:.1f} | {made:.1f} | {seen} |")


if __name__ == "__main__":
    main()
