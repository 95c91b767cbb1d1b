"""Draw two clients' updates that conflict, beside the same updates after gradient harmonization.

Run: ``python examples/conflict_picture.py``. The arrows of the right half come from the rule itself. The file is the
picture of docs/concepts/conflict.md.
"""

import argparse
from pathlib import Path

import torch
from matplotlib import pyplot
from matplotlib.axes import Axes
from torch import Tensor

from fl_lightning import project_conflicts

UPDATES = torch.tensor([[3.0, 0.4], [-2.2, 1.4]], dtype=torch.float64)  # of clients A and B, in two dimensions
COLOURS = {"client A": "#1f5fbf", "client B": "#c4511d", "average": "#1a1a1a"}
PAPER, INK, QUIET = "#ffffff", "#1a1a1a", "#8a8a8a"


def harmonized(updates: Tensor) -> Tensor:
    """Remove from each of two updates (2, P) what conflicts with the other one, as GradientHarmonization does.

    >>> import torch
    >>> harmonized(torch.tensor([[1.0, -1.0], [0.0, 2.0]]).double()).tolist()
    [[1.0, 0.0], [1.0, 1.0]]
    """
    gram = updates @ updates.T
    return project_conflicts(gram, order=torch.tensor([[1], [0]])) @ updates


def draw(out: Path) -> None:
    """Write the picture as an SVG file."""
    pyplot.switch_backend("agg")
    pyplot.rcParams.update({"svg.hashsalt": "conflict", "font.family": "DejaVu Sans", "font.size": 12})
    figure, halves = pyplot.subplots(1, 2, figsize=(9.6, 2.75), facecolor=PAPER)
    corrected = harmonized(UPDATES)
    arrows(halves[0], "Each undoes a part of the other's work", UPDATES)
    arrows(halves[1], "Harmonized: neither works against the other", corrected)
    for before, after in zip(UPDATES.tolist(), corrected.tolist(), strict=True):  # what the rule has taken away
        path = zip((0, 0), before, after, strict=True)
        halves[1].plot(*path, color=QUIET, linewidth=1.5, linestyle=(0, (2, 3)))
    halves[1].annotate("taken away", (2.25, 1.05), color="#5f5f5f", fontsize=11)
    figure.tight_layout(w_pad=1)
    title = "Two conflicting updates, and the same updates harmonized"
    figure.savefig(out, bbox_inches="tight", pad_inches=0.15, metadata={"Date": None, "Title": title})


def arrows(axes: Axes, title: str, updates: Tensor) -> None:
    """Draw two updates (2, 2) and their average as arrows from the global model."""
    named = dict(zip(COLOURS, [*updates.tolist(), updates.mean(0).tolist()], strict=True))
    for name, (x, y) in named.items():
        style = {"arrowstyle": "-|>,head_width=.35,head_length=.7", "shrinkA": 0, "shrinkB": 0}
        style |= {"color": COLOURS[name], "linewidth": 3.4 if name == "average" else 2.2}
        axes.annotate("", (x, y), (0, 0), arrowprops=style, zorder=3 if name == "average" else 2)
        side = {"client A": (8, -4), "client B": (-8, 0), "average": (0, 7)}[name]
        where = {"client A": "left", "client B": "right", "average": "center"}[name]
        axes.annotate(name, (x, y), side, textcoords="offset points", ha=where, color=COLOURS[name], fontweight="bold")
    axes.plot(0, 0, "o", color=INK, markersize=7, zorder=4)
    axes.annotate("global model", (0, 0), (0, -16), textcoords="offset points", ha="center", color=INK)
    axes.set(xlim=(-3.5, 4.3), ylim=(-0.5, 2.2), aspect="equal")
    axes.set_title(title, color=INK, fontsize=13)
    axes.axis("off")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("conflict.svg"))
    draw(parser.parse_args().out)
