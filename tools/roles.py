"""A griffe extension that makes Markdown of docstrings: ``:class:`Cohort``` becomes a link of the site."""

import re
from typing import Any

import griffe

QUOTE = re.compile(r"^(\s+\w+: )(?=>)", re.MULTILINE)  # "size: >= 0": Markdown would take the sign for a quotation
EXAMPLE = re.compile(r"^( *)Example:$", re.MULTILINE)  # griffe knows the plural
SESSION = re.compile(r"^(>>> .*(?:\n.+)*)", re.MULTILINE)  # a Python session outside of a section
ROLE = re.compile(r":(?:class|meth|func|attr|mod|data|exc):`~?([\w.]+)`")


class Roles(griffe.Extension):
    """Rewrite every docstring of a package."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Visit the package's objects when all of them are loaded."""
        _visit(pkg)


def _visit(place: griffe.Object) -> None:
    if place.docstring:
        text = EXAMPLE.sub(r"\1Examples:", QUOTE.sub(r"\1\\", place.docstring.value))
        text = SESSION.sub(r"```pycon\n\1\n```", text)
        place.docstring.value = ROLE.sub(lambda role: _link(place, role[1]), text)
    for member in place.members.values():
        if not member.is_alias:
            _visit(member)


def _link(place: griffe.Object, name: str) -> str:
    """Link a name to the object that it stands for at this place, if the site shows the object."""
    shown = name.rpartition(".")[2]
    try:
        target = place.modules_collection[place.resolve(name)]
    except (KeyError, griffe.GriffeError):
        return f"`{shown}`"
    path = target.final_target.path if target.is_alias else target.path
    return f'<autoref identifier="{path}" optional><code>{shown}</code></autoref>'
