"""Figures for a paper: plots drawn by Matplotlib in the width of a column, and saved as PDF, SVG and CSV."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fl_lightning.report.drawing.paper_axes import Common, common, paint, set_ruler, y_range
from fl_lightning.report.drawing.plots import Bars, Boxes, Bubbles, Dots, Heat, Lines, Panels, Plot, Surface
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

    titled: Mapping[str, Plot] = plot.panels if isinstance(plot, Panels) else {"": plot}
    panels = list(titled.values())
    columns = _columns(plot, len(panels))
    rows = math.ceil(len(panels) / columns)
    wide = columns > 1 or any(isinstance(panel, Bubbles) and len(panel.counts) > NARROW_CLIENTS for panel in panels)
    width = (PAGE if wide else COLUMN) / columns
    titles = [textwrap.fill(title, int(width / LETTER)) for title in titled]
    lines_of_title = max(len(title.splitlines()) for title in titles)
    height = max(_height(panel, width) for panel in panels) + ROW * lines_of_title
    shared = common(panels, width, methods)
    square = all(isinstance(panel, Heat | Surface | Boxes) for panel in panels)
    with style.context(STYLE):
        figure = Figure((width * columns, height * rows), layout="compressed" if square else "constrained")
        for number, (title, panel) in enumerate(zip(titles, panels, strict=True), 1):
            axes = figure.add_subplot(rows, columns, number)
            paint(panel, axes, shared)
            axes.set_title(title)
        _set_ranges(plot, panels, figure.axes)
        _drop_repeated(figure.axes, columns)
        _add_colours(figure, shared)
        _lay_out(figure, rows * height + _add_legend(figure, shared))
    return figure


def _columns(plot: Plot, panels: int) -> int:
    """Return the number of panels in a row: the plot's number, else all of up to four panels, else nearly a square."""
    if not isinstance(plot, Panels):
        return 1
    if plot.columns:
        return plot.columns
    return panels if panels <= 4 else math.ceil(math.sqrt(panels))


def _height(plot: Plot, width: float) -> float:
    """Return the height of a panel in inches, with the labels of its axes."""
    if isinstance(plot, Bars):
        return 0.25 * len(plot.parts) + LABELS
    if isinstance(plot, Bubbles):
        longest_name = max(len(name) for name in plot.drawn_names or [""])
        cell = min(width / len(plot.counts), CELL)
        return float(cell * plot.counts.shape[1]) + LETTER * min(longest_name, LETTERS) + LABELS
    if isinstance(plot, Heat) and plot.x.title != plot.y.title:
        return min(max(ROW * len(plot.values), LOWEST), width) + LABELS
    if isinstance(plot, Heat | Surface):
        return width
    if isinstance(plot, Boxes):
        number, _, height, across = plot.images.shape
        return width * float(height / (number * across))
    named = 1.1 * ROW * len(plot.categories) if isinstance(plot, Dots) else 0.0
    return max(min(max(0.62 * width, LOWEST), HIGHEST), named) + LABELS


def _set_ranges(plot: Plot, panels: Sequence[Plot], every: Sequence[Axes]) -> None:
    """Set the range of y of panels with lines: one range for all panels of a y-axis if panels share it."""
    shared = isinstance(plot, Panels) and plot.shared
    lines = [panel for panel in panels if isinstance(panel, Lines)]
    for panel, axes in zip(panels, every, strict=True):
        if isinstance(panel, Lines):
            axes.set_ylim(y_range([other for other in lines if other.y == panel.y] if shared else [panel]))


def _drop_repeated(every: Sequence[Axes], columns: int) -> None:
    """Write the names of axes only at the left and at the bottom, and y only at the left if panels share the range."""
    for number, axes in enumerate(every):
        below = every[number + columns :]
        if below and below[0].get_xlabel() == axes.get_xlabel():
            axes.set_xlabel("")
        first = every[number - number % columns]
        if axes is not first and axes.get_ylabel() == first.get_ylabel():
            same_ticks = _tick_labels(axes) == _tick_labels(first)
            axes.tick_params(labelleft=axes.get_ylim() != first.get_ylim() or not same_ticks)
            axes.set_ylabel("")
    for axes in every:
        if axes.get_ylabel() in axes.get_title().replace("\n", " "):
            axes.set_ylabel("")


def _tick_labels(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.get_yticklabels()]


def _add_colours(figure: Figure, shared: Common) -> None:
    for drawn, axis in shared.colours:
        bar = figure.colorbar(drawn, ax=figure.axes, aspect=30, pad=0.02)
        bar.outline.set_linewidth(0)
        set_ruler(bar.ax.yaxis, axis)
        if len(shared.levels):
            ticks = shared.levels[::3]
            bar.set_ticks(ticks, labels=[f"{level:.3g}" for level in ticks])


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
