"""Templates of HTML pages, which share head, style, header, tables and footer."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

HERE = Path(__file__).parent


def environment(*folders: Path) -> Environment:
    """Make the environment of the report's templates, and of templates in other folders that extend them."""
    loader = FileSystemLoader([*folders, HERE])
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.globals |= {"css": Markup((HERE / "page.css").read_text()), "version": version("fl-lightning")}
    return made
