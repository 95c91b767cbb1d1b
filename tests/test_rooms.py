"""The pages about rooms name each of their files."""

import re
from pathlib import Path

import pytest

import fl_lightning

TOP = Path(str(fl_lightning.__file__)).parent
PAGES = {  # by page, the folder that its rooms are in, and which of them it tells of
    "data": ("datamodules", ("",)),
    "engine": ("engine", ("",)),
    "sites": ("", ("engine/sites", "network")),
}


@pytest.mark.parametrize("page", PAGES)
def test_each_file_is_named_in_its_room(page: str) -> None:
    folder, rooms = PAGES[page]
    named: dict[str, set[str]] = {}
    for row in Path(f"docs/concepts/{page}.md").read_text().splitlines():
        if row.startswith("| `"):
            room = row.split("|")[1].strip(" `/")
            named.setdefault(room, set()).update(re.findall(r"`(\w+)`", row))
    top = TOP / folder
    files = [file for room in rooms for file in (top / room).rglob("*.py") if file.stem != "__init__"]
    assert len(files) > 20
    for file in files:
        path = file.relative_to(top)
        # the topmost room stands under its own name; a room may tell of those in it
        inside = [parent.as_posix() for parent in path.parents][:-1] or [top.name]
        assert any(file.stem in named.get(room, ()) for room in inside), f"docs/concepts/{page}.md names {path}"
