"""The tutorials that are notebooks run as notebooks, in a kernel of their own and an empty folder."""

import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pages
import pytest
from lib.command import HANG
from nbclient import NotebookClient

REPOSITORY = Path(__file__).parents[1]
SITE = "https://example.org/project"

# What each notebook prints somewhere, besides numbers that a test of its own checks.
PRINTED = {
    "tutorials/compare.md": [
        "15 runs",
        "FedAvg+GH (+7.8 points",
        "results: runs/sweep/compare",
        "difference 3.2 ± 2.4",
    ],
    "tutorials/server-rule.md": ["tensor([3.5000, 3.5000])", "6 passed", "round 3/3", "6 runs, finished before"],
}


def made(page: str) -> Any:
    return nbformat.reads(pages.notebook((REPOSITORY / "docs" / page).read_text(), page, SITE), as_version=4)


@pytest.mark.slow
@pytest.mark.parametrize("page", pages.NOTEBOOKS)
def test_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cell fails, and the numbers on the page are those of the run.

    The numbers of the sweep depend on the seeds alone, up to the last digits (processors add in different orders).
    """
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    (folder := tmp_path / "empty").mkdir()
    notebook = made(page)
    NotebookClient(notebook, timeout=HANG, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    printed = "".join(output.get("text", "") for output in outputs)
    assert not [text for text in PRINTED[page] if text not in printed], printed


@pytest.mark.parametrize("page", [*pages.NOTEBOOKS, "tutorials/own-data.md"])
def test_the_site_alone_links_to_notebooks(page: str) -> None:
    """The link is the second paragraph of those pages that are notebooks, and leads to the file beside the page."""
    text = (REPOSITORY / "docs" / page).read_text()
    file = SimpleNamespace(src_uri=page)
    shown = pages.on_page_markdown(text, page=SimpleNamespace(file=file), config=SimpleNamespace(repo_url=SITE))
    links = [f"[This page as a notebook]({Path(page).stem}.ipynb)"] if page in pages.NOTEBOOKS else []
    assert re.findall(r"\[[^\]]*\]\([^)]*\.ipynb\)", shown) == links
    assert shown.split("\n\n")[1:2] == (links or text.split("\n\n")[1:2])
    assert ".ipynb" not in text


def test_cells() -> None:
    """Python and commands become cells, blocks with a name become files, printed text and links stay readable."""
    text = "# A\n\nfive minutes\n\n[b](../b.md#c) ![d](../d.png) [e](https://e.org)\n\n"
    text += "```python\n# f.py\nx = 1\n```\n\n```yaml\n# g.yaml\nx: 1\n```\n\n```bash\nls\n```\n\n```text\nf.py\n```\n"
    cells = nbformat.reads(pages.notebook(text, "tutorials/a.md", SITE), as_version=4).cells
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    assert code == ["%%writefile f.py\n# f.py\nx = 1", "%%writefile g.yaml\n# g.yaml\nx: 1", "%%bash\nls"]
    words = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    assert f"[b]({SITE}/blob/main/docs/b.md#c)" in words
    assert f"![d]({SITE}/blob/main/docs/d.png?raw=true)" in words
    assert "[e](https://e.org)" in words
    assert "\nfive minutes" in words
    assert "```text\nf.py\n```" in words
