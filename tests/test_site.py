"""The documentation's site builds without a warning, shows every public name, and is searched without a network."""

import html
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[1]
PUBLIC = ("fl_lightning", "fl_lightning.callbacks", "fl_lightning.datamodules", "fl_lightning.models")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
# Building the site takes long; by day, test_house follows the links of pages, and test_cli looks for descriptions.
pytestmark = pytest.mark.slow
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1440, "height": 900}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: a dead link, an unknown anchor or a reference to nothing fails."""
    pytest.importorskip("mkdocs", reason="pip install 'fl-lightning[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    told = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=REPOSITORY, env=told, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_public_name_is_shown_and_described(site: Path) -> None:
    with (site / "objects.inv").open("rb") as file:
        shown = import_module("mkdocstrings").Inventory.parse_sphinx(file)
    for package in map(import_module, PUBLIC):
        for name in package.__all__:
            value = getattr(package, name)
            page = site / "reference" / "api" / package.__name__.partition(".")[2] / f"{name}.html"
            assert f"{package.__name__}.{name}" in words(page), name
            assert f"{package.__name__}.{name}" in shown or f"{value.__module__}.{name}" in shown, name
            assert (value.__doc__ or "").strip(), name


def words(page: Path) -> str:
    """The text of a page, without its marks."""
    return html.unescape(re.sub("<[^>]*>", "", page.read_text()))


def test_a_page_has_all_arguments_an_example_and_neighbours(site: Path) -> None:
    """Also those arguments that the signature passes on to a base class."""
    mnist = words(site / "reference" / "api" / "datamodules" / "MNIST.html")
    assert "batch_size (default 32): number of examples in a client's batch." in mnist
    assert "fl-lightning fit --config mnist_gh.yaml" in mnist
    krum = words(site / "reference" / "api" / "callbacks" / "Krum.html")
    assert "class_path: Krum\n    init_args:" in krum
    assert re.search("See also¶?\nServer rules · .*CAGrad · ", krum)


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text()
        for loads in ('src="http', 'rel="stylesheet" href="http', "fonts.googleapis"):
            assert loads not in text, page


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


def test_search_finds_a_rule_without_a_network(site: Path, browser: Any) -> None:
    page = browser.new_page(viewport=DESK)
    page.goto((site / "index.html").as_uri())
    page.fill(".md-search__input", "GradientHarmonization")
    page.wait_for_selector(".md-search-result__link")
    links = [link.get_attribute("href") for link in page.query_selector_all(".md-search-result__link")]
    assert any("server-rules" in link or "api/callbacks" in link for link in links)
    page.close()


@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_no_page_is_wider_than_its_window(site: Path, browser: Any, size: dict[str, int]) -> None:
    page = browser.new_page(viewport=size)
    for file in sorted(site.rglob("*.html")):
        page.goto(file.as_uri())
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= size["width"], f"{file.relative_to(site)}: {width}"
    page.close()


def test_no_sign_in_a_docstring_became_a_quotation(site: Path) -> None:
    """``size: >= 0`` and ``>>> f(x)`` begin with what Markdown takes for a quotation."""
    for page in (site / "reference" / "api").rglob("*.html"):
        assert "<blockquote>" not in page.read_text(), page
