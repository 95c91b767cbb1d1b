"""Templates of HTML pages, which share head, style, header, tables and footer."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

SCRIPTS, STYLES = "HASHES-OF-SCRIPTS", "HASHES-OF-STYLES"  # stand in the policy until the page is rendered
HERE = Path(__file__).parent
WORD = r"(?<=[a-z])(?=[A-Z])|(?<=[._])(?=\w)"  # where the next word of a name begins


def environment(*folders: Path) -> Environment:
    """Make the environment of the report's templates, and of templates in other folders that extend them."""
    loader = FileSystemLoader([*folders, HERE])
    pages = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    pages.filters["breakable"] = breakable
    pages.globals |= {"css": Markup((HERE / "page.css").read_text()), "version": version("fl-lightning")}
    pages.globals |= {"scripts": SCRIPTS, "styles": STYLES}
    return pages


def breakable(text: str) -> Markup:
    """Let a line of HTML end inside a long name, between two of the words that the name is made of.

    >>> str(breakable("FedAvg + GradientHarmonization.order"))
    'FedAvg + Gradient<wbr>Harmonization.<wbr>order'
    """
    pieces = re.split(r"([\w.]{16,})", text)  # every other one is a long name
    pieces[1::2] = [Markup("<wbr>").join(re.split(WORD, name)) for name in pieces[1::2]]
    return Markup("").join(pieces)


def render(template: Template, **values: Any) -> str:
    """Render a page whose policy names its scripts and styles by their hashes, so that no others run."""
    html = template.render(**values)
    hashes: dict[str, list[str]] = {"script": [], "style": [_hash("")]}  # Plotly begins with an empty style
    for name, content in re.findall(r"<(script|style)>(.*?)</\1>", html, re.DOTALL):
        hashes[name].append(_hash(content))
    html = html.replace(SCRIPTS, " ".join(hashes["script"]) or "'none'", 1)
    return html.replace(STYLES, " ".join(hashes["style"]), 1)


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.replace("\r\n", "\n").replace("\r", "\n").encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
