"""Hooks of mkdocs for the documentation's site: links to files of the repository, and tutorials as notebooks.

A page links to a file outside of ``docs/`` as Markdown in a repository does, ``../../examples/text.py``; on the site,
such a link leads to the repository. The tutorials in ``NOTEBOOKS`` are also written as ``.ipynb``, from the same text;
the pages of the site alone link to them, because a clone has none.
"""

import re
from pathlib import Path, PurePosixPath
from typing import Any

import jupytext
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

NOTEBOOKS = ("tutorials/compare.md", "tutorials/server-rule.md")
LINK = re.compile(r"(?<=\]\()(\.\./[^)\s#]+)")
RELATIVE = re.compile(r"(?<=\]\()([\w./-]+\.\w+)(?=[#)])")  # a link to a file, without its anchor
YAML = re.compile(r"^```yaml\n(?=# [\w-]+\.yaml\n)", re.M)  # the beginning of a YAML block that is a file
FILE = re.compile(r"^# ([\w-]+\.(?:py|yaml|csv))\n")  # the first line of a code block that is a file


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the notebooks to the files of the site."""
    for page in NOTEBOOKS:
        text = Path(config.docs_dir, page).read_text()
        made = notebook(text, page, config.repo_url.rstrip("/"))
        files.append(File.generated(config, notebook_name(page), content=made))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: MkDocsConfig, **_: Any) -> str:
    """Lead links to files outside of ``docs/`` to the repository, and a tutorial's first line to its notebook."""
    uri = page.file.src_uri
    folder = PurePosixPath("docs", uri).parent
    if uri in NOTEBOOKS:
        title, _, text = markdown.partition("\n")
        markdown = f"{title}\n\n[This page as a notebook]({PurePosixPath(notebook_name(uri)).name})\n{text}"

    def absolute(link: re.Match[str]) -> str:
        path = _normal(folder / link[1])
        return link[1] if path.startswith("docs/") else f"{config.repo_url.rstrip('/')}/blob/main/{path}"

    return LINK.sub(absolute, markdown)


def notebook_name(page: str) -> str:
    """Name the notebook of a page."""
    return str(PurePosixPath(page).with_suffix(".ipynb"))


def notebook(text: str, page: str, repository: str) -> str:
    """Make a Jupyter notebook of a tutorial: code blocks become cells, and those that are files are written.

    A notebook is read far from the site, so its links lead to the repository, whose address is ``repository``.
    """
    folder = PurePosixPath("docs", page).parent

    def absolute(link: re.Match[str]) -> str:
        raw = "?raw=true" if link[1].endswith((".png", ".svg")) else ""
        return f"{repository}/blob/main/{_normal(folder / link[1])}{raw}"

    text = RELATIVE.sub(absolute, text)
    made = jupytext.reads(YAML.sub(r"```python\n", text), fmt="md")  # else YAML would be text
    for cell in made.cells:
        if cell.cell_type == "code" and (name := FILE.match(cell.source)):
            cell.source = f"%%writefile {name[1]}\n{cell.source}"
        cell.metadata = {}
    made.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return str(jupytext.writes(made, fmt="ipynb"))


def _normal(path: PurePosixPath) -> str:
    """Take ``..`` out of a path."""
    parts: list[str] = []
    for part in path.parts:
        parts = parts[:-1] if part == ".." else [*parts, part]
    return "/".join(parts)
