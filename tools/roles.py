"""A griffe extension: what docstrings refer to as ``:class:`Cohort``` becomes a link of the documentation's site."""

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|meth|func|attr|mod|data|exc):`~?([\w.]+)`")


class Roles(griffe.Extension):
    """Rewrite the roles in every docstring of a package."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Visit the package's objects when all of them are loaded."""
        _visit(pkg)


def _visit(place: griffe.Object) -> None:
    if place.docstring:
        place.docstring.value = ROLE.sub(lambda role: _link(place, role[1]), place.docstring.value)
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
