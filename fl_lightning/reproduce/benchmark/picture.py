"""The picture of a benchmark: less conflict against more accuracy, a point for each method and problem."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from fl_lightning.report.drawing.on_paper import PAGE, STYLE
from fl_lightning.runs.pictures import save_png

HEIGHT = 3.2  # inches
LOOK: Any = {"linestyle": "", "markersize": 3.5}
MARKERS = "osD^v<>PX*"


def draw(table: pd.DataFrame, path: Path) -> None:
    """Draw the columns ``less`` and ``gain`` of a table, the problems in different marks; write a PNG."""
    from matplotlib import style  # here, because the import takes half a second
    from matplotlib.figure import Figure

    with style.context(STYLE):
        figure = Figure((PAGE, HEIGHT), layout="constrained")
        axes = figure.add_subplot()
        for (problem, rows), marker in zip(table.groupby("problem", sort=False), MARKERS, strict=False):
            axes.plot(rows["less"], rows["gain"], marker, label=problem, **LOOK)
        axes.axhline(0, color="black", linewidth=0.6)
        axes.axvline(0, color="black", linewidth=0.6)
        axes.set_xlabel("fewer pairs of updates in conflict than with FedAvg (share)")
        axes.set_ylabel("points over FedAvg")
        figure.legend(loc="outside right upper", fontsize=6)
        save_png(figure, path)
