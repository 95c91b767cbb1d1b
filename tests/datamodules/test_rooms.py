"""The page about the rooms of the data names each of their files."""

import re
from pathlib import Path

import fl_lightning.datamodules

PAGE = Path("docs/concepts/data.md")


def test_each_file_is_named_in_its_room() -> None:
    rooms = {row.split("|")[1].strip(" `/"): row for row in PAGE.read_text().splitlines() if row.startswith("| `")}
    top = Path(str(fl_lightning.datamodules.__file__)).parent
    files = [path.relative_to(top) for path in top.rglob("*.py") if path.stem != "__init__"]
    assert len(files) > 40
    for path in files:
        assert path.stem in re.findall(r"`(\w+)`", rooms[path.parts[0]]), f"{PAGE} names {path} in its room"
