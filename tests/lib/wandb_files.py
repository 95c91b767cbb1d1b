"""Reads what W&B writes offline, in a folder where it has no key."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lib.command import TINY, run


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


def wandb_history(file: Path) -> list[dict[str, Any]]:
    """The rows that a run logged; a picture's facts are named ``name.path`` and so on."""
    records = [record.history for record in wandb_records(file) if record.WhichOneof("record_type") == "history"]
    return [
        {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in row.item} for row in records
    ]


def wandb_config(file: Path) -> dict[str, Any]:
    """A run's config as it ended."""
    records = [record.config for record in wandb_records(file) if record.WhichOneof("record_type") == "config"]
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for r in records for item in r.update}


def without_key(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Work in a folder with tiny.yaml, which is the user's home, without a key for W&B."""
    patch.chdir(folder)
    patch.setenv("HOME", str(folder))
    for name in ("WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_MODE", "WANDB_DIR", "WANDB_RUN_ID", "NETRC"):
        patch.delenv(name, raising=False)
    Path("tiny.yaml").write_text(TINY)


def fit_with_wandb(*args: object, command: str = "fit") -> str:
    """What a command said whose W&B run is closed as the process's end would close it."""
    import wandb

    try:
        result = run(command, "--config", "tiny.yaml", *args)
        assert result.status == 0, result.err
        return result.out
    finally:
        wandb.finish()
        wandb.teardown()  # its service would stay in this working directory
