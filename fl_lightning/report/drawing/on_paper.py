"""Figures for a paper: plots drawn by Matplotlib in the width of a column, and saved as PDF, SVG and CSV."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fl_lightning.report.drawing.paper_axes import Common, common, paint, set_ruler, y_range
from fl_lightning.report.drawing.plots import Bars, Bubbles, Dots, Heat, Lines, Panels, Plot, Surface
from fl_lightning.report.numbers import as_csv
from fl_lightning.runs.pictures import LETTERS, save_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

STYLE = Path(str(files("fl_lightning.report") / "print.mplstyle"))
COLUMN, PAGE = 3.25, 6.75  # widths in inches of a column and of both; as ICML, and fit for ACM, AAAI and IEEE
LETTER, ROW = 0.065, 0.15  # mean width of a letter, height of a line of text, in inches
LABELS = 0.4  # height of ticks and title of an x-axis, in inches
PAD = 0.06  # white above and below, in inches
LOWEST, HIGHEST = 1.2, 1.9  # heights of axes with lines, in inches
CELL = 0.2  # largest width of a bubble's cell, in inches
NARROW_CLIENTS = 40  # a bubble plot of more clients takes both columns
LEGEND_COLUMNS = 6  # largest number of columns of a legend
NO_FACTS: Mapping[str, Any] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}  # the same bytes every day


def save(
    plot: Plot, folder: Path, name: str, methods: Sequence[str] = (), kinds: Sequence[str] = ("pdf", "svg")
) -> None:
    """Write a plot as ``name.pdf`` and ``name.svg``, and its numbers as ``name.csv``; equal plots make equal files.

    Args:
        plot: the plot.
        folder: existing folder to write to.
        name: name of the files without suffix.
        methods: see :func:`draw`.
        kinds: suffixes of the pictures.
    """
    from matplotlib import style  # here, because the import takes half a second

    figure = draw(plot, methods)
    with style.context(STYLE):
        for kind in kinds:
            path = folder / f"{name}.{kind}"
            if kind == "png":
                save_png(figure, path)
            else:
                figure.savefig(path, metadata=NO_FACTS.get(kind))
    (folder / f"{name}.csv").write_text(as_csv(plot.table()), encoding="utf-8")


def draw(plot: Plot, methods: Sequence[str] = ()) -> Figure:
    """Draw a plot in print: one column wide, or two columns if panels stand side by side; the legend above the axes.

    Args:
        plot: the plot.
        methods: all methods of the paper, in an order that gives each method the same look in every figure; the methods
            of this plot by default.
    """
    from matplotlib import style
    from matplotlib.figure import Figure

    titled = plot.panels if isinstance(plot, Panels) else {"": plot}
    panels, columns = list(titled.values()), _columns(plot, len(titled))
    wide = columns > 1 or any(isinstance(each, Bubbles) and len(each.counts) > NARROW_CLIENTS for each in panels)
    width = (PAGE if wide else COLUMN) / columns
    titles = [textwrap.fill(title, int(width / LETTER)) for title in titled]
    height = max(_height(each, width) for each in panels) + ROW * max(len(title.splitlines()) for title in titles)
    rows, shared = -(-len(panels) // columns), common(panels, width, methods)
    square = all(isinstance(each, Heat | Surface) for each in panels)
    with style.context(STYLE):
        figure = Figure((width * columns, height * rows), layout="compressed" if square else "constrained")
        for number, (title, each) in enumerate(zip(titles, panels, strict=True), 1):
            axes = figure.add_subplot(rows, columns, number)
            paint(each, axes, shared)
            axes.set_title(title)
        _set_ranges(plot, panels, figure.axes)
        _drop_repeated(figure.axes, columns)
        _add_colours(figure, shared)
        _lay_out(figure, rows * height + _add_legend(figure, shared))
    return figure


def _columns(plot: Plot, panels: int) -> int:
    """Return the number of panels in a row: the plot's number, else all of up to four panels, else nearly a square."""
    chosen = plot.columns if isinstance(plot, Panels) else 1
    return chosen or (panels if panels <= 4 else math.ceil(math.sqrt(panels)))


def _height(plot: Plot, width: float) -> float:
    """Return the height of a panel in inches, with the labels of its axes."""
    if isinstance(plot, Bars):
        return 0.25 * len(plot.parts) + LABELS
    if isinstance(plot, Bubbles):
        names = LETTER * min(max(map(len, plot.drawn or [""])), LETTERS)
        return float(min(width / len(plot.counts), CELL) * plot.counts.shape[1]) + names + LABELS
    if isinstance(plot, Heat) and plot.x.title != plot.y.title:
        return min(max(ROW * len(plot.values), LOWEST), width) + LABELS
    if isinstance(plot, Heat | Surface):
        return width
    named = 1.1 * ROW * len(plot.categories) if isinstance(plot, Dots) else 0.0
    return max(min(max(0.62 * width, LOWEST), HIGHEST), named) + LABELS


def _set_ranges(plot: Plot, panels: Sequence[Plot], axes: Sequence[Axes]) -> None:
    shared = isinstance(plot, Panels) and plot.shared
    lines = [(each, one) for each, one in zip(panels, axes, strict=True) if isinstance(each, Lines)]
    for each, one in lines:
        one.set_ylim(y_range([other for other, _ in lines if other.y == each.y] if shared else [each]))


def _drop_repeated(axes: Sequence[Axes], columns: int) -> None:
    """Write the names of axes only at the left and at the bottom, and y only at the left if panels share the range."""
    for number, one in enumerate(axes):
        below = axes[number + columns :]
        if below and below[0].get_xlabel() == one.get_xlabel():
            one.set_xlabel("")
        first = axes[number - number % columns]
        if one is not first and one.get_ylabel() == first.get_ylabel():
            same = [[text.get_text() for text in each.get_yticklabels()] for each in (one, first)]
            one.tick_params(labelleft=one.get_ylim() != first.get_ylim() or same[0] != same[1])
            one.set_ylabel("")
    for one in axes:
        if one.get_ylabel() in one.get_title().replace("\n", " "):
            one.set_ylabel("")


def _add_colours(figure: Figure, shared: Common) -> None:
    for drawn, axis in shared.colours:
        bar = figure.colorbar(drawn, ax=figure.axes, aspect=30, pad=0.02)
        bar.outline.set_linewidth(0)
        set_ruler(bar.ax.yaxis, axis)
        if len(shared.levels):
            bar.set_ticks(shared.levels[::3], labels=[f"{level:.3g}" for level in shared.levels[::3]])


def _add_legend(figure: Figure, shared: Common) -> float:
    """Add the legend above all axes, in as many columns as fit; return its height in inches."""
    from matplotlib.lines import Line2D

    entries = sorted((key, text, drawn) for text, (key, drawn) in shared.legend.items())
    if len(entries) < 2 and not shared.largest:
        return 0.0
    longest = int((figure.get_figwidth() - 0.6) / LETTER)
    lines = any(isinstance(drawn, Line2D) and drawn.get_linestyle() != "None" for _, _, drawn in entries)
    for columns in range(min(len(entries), LEGEND_COLUMNS), 0, -1):
        rowwise = [entry for column in range(columns) for entry in entries[column::columns]]
        legend = figure.legend(
            [drawn for *_, drawn in rowwise],
            [textwrap.fill(text, longest) for _, text, _ in rowwise],
            loc="outside upper center",
            ncols=columns,
            handlelength=None if lines else 1,
        )
        box = legend.get_window_extent()
        if box.width <= figure.bbox.width or columns == 1:
            break
        legend.remove()
    return float(box.height / figure.dpi)


def _lay_out(figure: Figure, height: float) -> None:
    """Lay the figure out, once for all kinds of files, and fit its height to axes whose width sets their height."""
    engine = cast("ConstrainedLayoutEngine", figure.get_layout_engine())
    figure.set_figheight(height)
    engine.execute(figure)
    figure.set_figheight(figure.get_tightbbox().height + PAD)
    engine.execute(figure)
    figure.set_layout_engine("none")
