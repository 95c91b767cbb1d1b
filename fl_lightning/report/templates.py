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


def environment(*folders: Path) -> Environment:
    """Make the environment of the report's templates, and of templates in other folders that extend them."""
    loader = FileSystemLoader([*folders, HERE])
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.globals |= {"css": Markup((HERE / "page.css").read_text()), "version": version("fl-lightning")}
    made.globals |= {"scripts": SCRIPTS, "styles": STYLES}
    return made


def render(template: Template, **values: Any) -> str:
    """Render a page whose policy names its scripts and styles by their hashes, so that no others run."""
    html = template.render(**values)
    hashes: dict[str, list[str]] = {"script": [], "style": [_hash("")]}  # Plotly begins with an empty style
    for name, content in re.findall(r"<(script|style)>(.*?)</\1>", html, re.DOTALL):
        hashes[name].append(_hash(content))
    for place, name in ((SCRIPTS, "script"), (STYLES, "style")):
        html = html.replace(place, " ".join(hashes[name]) or "'none'", 1)
    return html


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.replace("\r\n", "\n").replace("\r", "\n").encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
