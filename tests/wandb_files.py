"""Reads what W&B writes offline."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any


def wandb_records(file: Path) -> Iterator[Any]:
    """The records of an offline run: LevelDB's log format after 7 bytes, in blocks of 32 KiB.

    A chunk begins with its checksum (4 bytes), length (2) and kind: 1 is a whole record; 2, 3, 4 its parts in turn.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    content, position, record = file.read_bytes(), 7, b""
    while position + 7 <= len(content):
        if (room := 32768 - position % 32768) < 7:
            position += room
            continue
        length, kind = int.from_bytes(content[position + 4 : position + 6], "little"), content[position + 6]
        record += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):
            yield Record.FromString(record)
            record = b""
