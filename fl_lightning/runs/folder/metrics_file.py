"""MetricsFile: a table of rounds and metrics as CSV, to which a run adds a row per round."""

from __future__ import annotations

import csv
import heapq
import os
from collections.abc import Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from fl_lightning.errors import ConfigurationError
from fl_lightning.files import whole

FIRST_COLUMNS = ("val/top1", "val/top3", "val/loss", "train/loss")  # of metrics.csv; the others follow by name
BLOCK = 2**16  # bytes to read at first from the end of a file


class MetricsFile:
    """Adds rows to a CSV file whose first column is the round; earlier rows stay on disk only.

    A row of a new round is one write at the end of the file. A kill may leave part of a row without line end, which
    readers leave out. If a row has a metric without column, or changes an earlier row, the file is written anew, whole
    or not at all.

    Args:
        path: the file, which need not exist.
        rounds: number of rounds to keep; None for all. Later rows disappear when a row is added.

    Attributes:
        last: the round of the last row; 0 without rows.

    Raises:
        ConfigurationError: the file is damaged, or ends before the given round.
    """

    def __init__(self, path: Path, rounds: int | None = None) -> None:
        self.path = path
        self.last = 0
        self._columns: list[str] = []
        self._end = 0  # of the last row to keep, in bytes; 0 without a file
        if path.exists():
            try:
                self._find_rows(rounds)
            except ValueError as error:
                raise ConfigurationError(
                    f"{path} is damaged, {error}: restore the file from a copy, or move the file away to continue "
                    "without the metrics of earlier rounds"
                ) from None

    def _find_rows(self, rounds: int | None) -> None:
        """Find the columns and the end of the rows to keep; raise ValueError for damage."""
        with self.path.open("rb") as lines:
            head = next(lines, b"")
            names = next(csv.reader([head.decode(errors="replace")]), [])
            if names[:1] != ["round"] or len({*names}) < len(names):
                raise ValueError("line 1 has no names of columns that begin with round")
            self._columns = names[1:]
            self._end = len(head)
            for number, line in enumerate(lines, 2):
                try:
                    round, *values = _values(line)
                    if not line.endswith(b"\n") or (rounds is not None and int(round) > rounds):
                        break
                    any(float(value) for value in values if value)
                    if len(values) != len(self._columns) or int(round) <= self.last:
                        raise ValueError
                except ValueError:
                    raise ValueError(f"line {number} is not a row of numbers after round {self.last}") from None
                self.last = int(round)
                self._end += len(line)
        if rounds is not None and self.last < rounds:
            raise ValueError(f"its last whole line is that of round {self.last}, and the run has done {rounds}")

    def add(self, round: int, row: Mapping[str, str]) -> None:
        """Add values to the row of a round.

        Args:
            round: number of the round.
            row: values by metric.
        """
        if round > self.last and self._end and row.keys() <= {*self._columns}:
            line = _line(round, row, self._columns)
            with self.path.open("r+b") as file:
                file.seek(self._end)
                file.truncate()
                file.write(line)
            self._end += len(line)
        else:
            self._rewrite(round, row)
        self.last = max(self.last, round)

    def cut(self) -> None:
        """Delete all rows after those to keep; delete the file if there are no rows to keep."""
        if self.last:
            os.truncate(self.path, self._end)
        else:
            self.path.unlink(missing_ok=True)

    def _rewrite(self, round: int, row: Mapping[str, str]) -> None:
        names = {*self._columns, *row}
        first = [name for name in FIRST_COLUMNS if name in names]
        columns = [*first, *sorted(names.difference(first))]
        with whole(self.path) as part, part.open("w", newline="") as file:
            csv.writer(file).writerow(["round", *columns])
            file.writelines(_line(number, values, columns).decode() for number, values in self._with(round, row))
        self._columns = columns
        self._end = self.path.stat().st_size

    def _with(self, round: int, row: Mapping[str, str]) -> Iterator[tuple[int, Mapping[str, str]]]:
        """Yield all rows, and values that are added to the row of a round."""
        merged = heapq.merge(self._rows(), [(round, row)], key=itemgetter(0))
        for number, same in groupby(merged, key=itemgetter(0)):
            yield number, {name: value for _, values in same for name, value in values.items()}

    def _rows(self) -> Iterator[tuple[int, dict[str, str]]]:
        """Yield the round and the values of each row to keep."""
        if self._end:
            with self.path.open("rb") as lines:
                at = len(next(lines))
                while at < self._end:
                    line = next(lines)
                    at += len(line)
                    round, *values = _values(line)
                    yield int(round), dict(zip(self._columns, values, strict=True))


def last_lines(path: Path) -> Iterator[str]:
    """Yield the whole lines of a text file from the last to the first, reading no more of the file than needed."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        rest = b""  # the beginning of what has been read, whose line may begin before it
        whole_lines = False
        while end:
            start = max(end - BLOCK, 0)
            file.seek(start)
            head, *lines = (file.read(end - start) + rest).split(b"\n")
            for line in reversed(lines):
                if whole_lines:
                    yield line.decode(errors="replace").rstrip("\r")
                whole_lines = True  # what follows the last line end is no whole line
            end = start
            rest = head
        if whole_lines:
            yield rest.decode(errors="replace").rstrip("\r")


def _values(line: bytes) -> list[str]:
    return line.decode().rstrip("\r\n").split(",")


def _line(round: int, row: Mapping[str, str], columns: list[str]) -> bytes:
    return (",".join([str(round), *(row.get(name, "") for name in columns)]) + "\r\n").encode()
