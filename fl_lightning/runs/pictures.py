"""Figures that several packages draw: partitions, cosines and loss surfaces; and the colours of all figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Colours for light and for dark ground, which colour-blind readers can tell apart. The contrast to white and to the
# dark page is at least 4.5, so that thin lines and text can have them.
COLOURS = ("#0072B2", "#C44601", "#0C836F", "#6F0C6F", "#503A06", "#1B1F24", "#4102FF")
ON_DARK = ("#56B4E9", "#F5793A", "#71DBB8", "#BD658A", "#FFF237", "#FFFFFF", "#9062FF")
MARKED = 50  # a line with at most this many points marks each point
LARGEST = 1.0  # diameter of the largest bubble, in cells
WIDEST = 16.0  # largest side of a bubble plot, in inches
DRAWN = 200  # largest number of clients in a bubble plot
NAMED = 40  # largest number of clients named along an axis of cosines
LEVELS = 16  # lines of equal loss on a loss surface


def bubbles(counts: Tensor) -> Figure:
    """Draw the examples of each class (down) at each client (across): a bubble's area is the number of examples.

    Laid out as FedGAM's Fig. 2 and FedLAW's Fig. 13. The largest bubble fills its cell.

    Args:
        counts: (N, C) number of examples of each class at each client; only the first 200 clients are drawn.
    """
    from matplotlib.collections import EllipseCollection  # here, because the import takes half a second
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    title = f", the first {DRAWN} of {len(counts):,} clients" if len(counts) > DRAWN else ""
    counts = counts[:DRAWN]
    num_clients, num_classes = counts.shape
    cells = counts.nonzero()  # (n, 2): client, class
    sizes = counts[counts > 0].double()
    diameters = LARGEST * (sizes / sizes.max()).sqrt().numpy()
    cell = min(0.4, WIDEST / num_clients, WIDEST / num_classes)  # inches
    figure = Figure((num_clients * cell + 1, num_classes * cell + 1), dpi=100, layout="constrained")
    axes = figure.add_subplot(aspect="equal")
    style: dict[str, Any] = {
        "units": "x",
        "offsets": cells.numpy(),
        "offset_transform": axes.transData,
        "facecolors": "tab:blue",
    }
    axes.add_collection(EllipseCollection(diameters, diameters, 0 * diameters, **style))
    axes.set(xlim=(-0.7, num_clients - 0.3), ylim=(num_classes - 0.3, -0.7), xlabel="client", ylabel="class")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, nbins=20, min_n_ticks=1))
    axes.set_title(f"largest bubble: {int(sizes.max()):,} examples{title}", loc="left", fontsize="medium")
    return figure


def draw_cosines(cosines: ArrayLike, clients: Sequence[int]) -> Figure:
    """Draw a matrix of cosines: blue where updates agree, red where they conflict, white where they are orthogonal.

    Args:
        cosines: (K, K) cosines in [-1, 1]; nan is drawn grey.
        clients: K client ids, which name rows and columns; with many clients, only some ids are written.
    """
    from matplotlib.figure import Figure  # here, because the import takes half a second

    size = min(3.0 + 0.2 * len(clients), 10.0)  # inches
    figure = Figure((size + 0.8, size), dpi=100, layout="constrained")
    axes = figure.add_subplot(facecolor="lightgrey")
    image = axes.imshow(np.asarray(cosines), cmap="RdBu", vmin=-1, vmax=1, interpolation="nearest")
    named = range(0, len(clients), -(-len(clients) // NAMED))
    axes.set_xticks(named, [str(clients[k]) for k in named], rotation=90)
    axes.set_yticks(named, [str(clients[k]) for k in named])
    axes.set(xlabel="client", ylabel="client")
    figure.colorbar(image, label="cosine")
    return figure


def draw_surfaces(surfaces: Mapping[str, Mapping[str, NDArray[Any]]]) -> Figure:
    """Draw loss surfaces side by side, as lines of equal loss with the same axes and colours in every panel.

    Args:
        surfaces: ``steps`` (n,) and ``loss`` (n, n) by title, as :class:`LossSurface` saves them. The loss in the
            middle is written behind the title. A loss that is nan or infinite is drawn as the highest finite loss.
    """
    from matplotlib.colors import LogNorm, Normalize  # here, because the import takes half a second
    from matplotlib.figure import Figure

    every = np.concatenate([one["loss"].ravel() for one in surfaces.values()])
    finite = every[np.isfinite(every)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    if math.isclose(low, high):
        high = low + 1
    spaced, norm = (np.geomspace, LogNorm(low, high)) if low > 0 else (np.linspace, Normalize(low, high))
    levels = spaced(low, high, LEVELS)
    figure = Figure((4 * len(surfaces) + 1, 4), dpi=100, layout="constrained")
    panels = figure.subplots(1, len(surfaces), squeeze=False, sharex=True, sharey=True)[0]
    for axes, (title, one) in zip(panels, surfaces.items(), strict=True):
        steps, middle = one["steps"], len(one["steps"]) // 2
        loss = np.nan_to_num(one["loss"].T, nan=high, posinf=high, neginf=low)  # the first direction goes across
        filled = axes.contourf(steps, steps, loss, levels, norm=norm)
        axes.contour(steps, steps, loss, levels, colors="white", linewidths=0.5)
        axes.plot(0, 0, "r+")
        axes.set(aspect="equal", title=f"{title}: {one['loss'][middle, middle]:.3g}", xlabel="$d_1$")
    panels[0].set_ylabel("$d_2$")
    figure.colorbar(filled, ax=panels, label="training loss", ticks=levels[::3], format="%.3g")
    return figure
