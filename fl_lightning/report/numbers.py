"""The numbers of a plot as one tidy table, the content of the CSV file beside a figure; tables as CSV."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import pandas as pd

from fl_lightning.report.plots import Bars, Bubbles, Dots, Heat, Lines, Panels, Plot, Surface


@singledispatch
def table(plot: Plot) -> pd.DataFrame:
    """Make a table of the drawn values: one row for each point, bar, cell or bubble.

    Columns have the titles of the axes. The table of several panels begins with the column ``panel``, the titles.
    """
    raise NotImplementedError(f"no table for a {type(plot).__name__}")


@table.register
def _(plot: Panels) -> pd.DataFrame:
    panels = [(title, table(panel)) for title, panel in plot.panels.items()]
    return pd.concat([numbers.assign(panel=title) for title, numbers in panels], ignore_index=True).pipe(
        _first, "panel"
    )


@table.register
def _(plot: Lines) -> pd.DataFrame:
    """``mean``, ``low``, ``high``, ``seeds``; with marked points, whose y is in ``mean``, a column ``mark``."""
    lines = [
        line.points.rename_axis(plot.x.title).reset_index().assign(method=line.method, variant=line.variant, mark="")
        for line in plot.lines
    ]
    marks = [{"method": mark.method, plot.x.title: mark.x, "mean": mark.y, "mark": mark.text} for mark in plot.marks]
    numbers = pd.concat([*lines, pd.DataFrame(marks)], ignore_index=True).fillna({"variant": ""})
    used = [name for name in ("method", "variant") if name == "method" or numbers[name].any()]
    numbers = numbers if marks else numbers.drop(columns="mark")
    return numbers[[*used, *(name for name in numbers if name not in ("method", "variant"))]]


@table.register
def _(plot: Dots) -> pd.DataFrame:
    titles = {"x": plot.x.title, "y": plot.y.title}
    every = [dots.rename(columns=titles).assign(method=method) for method, dots in plot.dots.items()]
    return pd.concat(every, ignore_index=True).pipe(_first, "method")


@table.register
def _(plot: Bars) -> pd.DataFrame:
    return plot.parts.rename_axis("method").reset_index().melt("method", None, "part", plot.x.title)


@table.register
def _(plot: Heat) -> pd.DataFrame:
    across = plot.x.title if plot.x.title != plot.y.title else f"other {plot.x.title}"
    return plot.values.rename_axis(plot.y.title).reset_index().melt(plot.y.title, None, across, plot.colour.title)


@table.register
def _(plot: Surface) -> pd.DataFrame:
    grid = pd.DataFrame(plot.loss, plot.steps, plot.steps).rename_axis("d1").reset_index()
    return grid.melt("d1", None, "d2", "loss")


@table.register
def _(plot: Bubbles) -> pd.DataFrame:
    grid = pd.DataFrame(plot.counts, plot.drawn).rename_axis("client").reset_index()
    return grid.melt("client", None, "class", "examples")


def as_csv(numbers: pd.DataFrame) -> str:
    """Write a table as CSV. A text that a spreadsheet would take for a formula begins with an apostrophe.

    >>> print(as_csv(pd.DataFrame({"method": ["=1+1", "-0.5", "GH"], "+x": [-0.5, 1.0, 2.0]})), end="")
    method,'+x
    '=1+1,-0.5
    -0.5,1.0
    GH,2.0
    """
    plain = numbers.apply(lambda column: column if pd.api.types.is_numeric_dtype(column) else column.map(_no_formula))
    return str(plain.rename(columns=_no_formula).to_csv(index=False, lineterminator="\n"))


def _no_formula(value: Any) -> Any:
    if not isinstance(value, str) or not value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def _first(numbers: pd.DataFrame, name: str) -> pd.DataFrame:
    return numbers[[name, *(other for other in numbers if other != name)]]
