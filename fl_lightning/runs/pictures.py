"""Pictures that several packages draw: partitions, cosines, loss surfaces, boxes; and the colours of all figures."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.axis import XAxis, YAxis
    from matplotlib.contour import QuadContourSet
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from torch import Tensor

# Colours for light and for dark ground, which colour-blind readers can tell apart. The contrast to white and to the
# dark page is at least 4.5, so that thin lines and text can have them.
COLOURS = ("#0072B2", "#C44601", "#0C836F", "#6F0C6F", "#503A06", "#1B1F24", "#4102FF")
ON_DARK = ("#56B4E9", "#F5793A", "#71DBB8", "#BD658A", "#FFF237", "#FFFFFF", "#9062FF")
DIVERGING = ("#b35806", "#f1a340", "#f7f7f7", "#67a9cf", "#2166ac")  # conflict, unrelated in the middle, agreement
SEQUENTIAL = "cividis"  # name of the scale of colours of shares, weights and losses
SCREEN = 150  # dots per inch of a picture for the screen
MARKED_POINTS = 50  # a line with at most this many points marks each point
WIDEST_PLOT = 16.0  # largest side of a bubble plot, in inches
DRAWN = 200  # largest number of clients in a bubble plot
NAMED = 40  # largest number of clients named along an axis
LETTERS = 16  # largest number of letters of a name along an axis
BOX = ("image", "class", "score", "x1", "y1", "x2", "y2")  # columns of boxes around objects
SURE = 0.25  # least score of a detection that is drawn, as YOLOv8's own pictures have it
LEVELS = 16  # lines of equal loss on a loss surface
DECADES = 3.0  # largest range of a loss surface's colours, in powers of ten


def save_png(figure: Figure, path: Path) -> None:
    """Write a figure for the screen, with a palette of 64 colours: a quarter of the bytes."""
    from PIL import Image  # here, because the import takes a while

    with BytesIO() as drawn:
        figure.savefig(drawn, format="png", dpi=SCREEN)
        whole = Image.open(drawn).convert("RGB")
        few = whole.quantize(64, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)  # keeps rare colours
        few.save(path, optimize=True)


def bubbles(counts: Tensor, names: Sequence[str] | None = None) -> Figure:
    """Draw the examples of each class (down) at each client (across): a bubble's area is the number of examples.

    Laid out as FedGAM's Fig. 2 and FedLAW's Fig. 13. The largest bubble fills its cell.

    Args:
        counts: (N, C) number of examples of each class at each client; only the first 200 clients are drawn.
        names: N names of the clients; None for their numbers.
    """
    from matplotlib.figure import Figure  # here, because the import takes half a second

    title = f", the first {DRAWN} of {len(counts):,} clients" if len(counts) > DRAWN else ""
    held = counts[:DRAWN].numpy()
    num_clients, num_classes = held.shape
    cell = min(0.4, WIDEST_PLOT / num_clients, WIDEST_PLOT / num_classes)  # inches
    room = 0.1 * max(map(len, names), default=0) if names is not None else 0.0  # inches below, for upright names
    figure = Figure((num_clients * cell + 1, num_classes * cell + 1 + room), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    add_bubbles(axes, held, held.max(), None if names is None else names[:DRAWN])
    axes.set_title(f"largest bubble: {held.max():,} examples{title}", loc="left", fontsize="medium")
    return figure


def add_bubbles(axes: Axes, counts: NDArray[np.int64], largest: int, names: Sequence[str] | None = None) -> None:
    """Draw bubbles into axes, see :func:`bubbles`.

    Args:
        axes: empty axes.
        counts: (N, C) number of examples of each class at each client.
        largest: number of examples whose bubble fills its cell.
        names: N names of the clients, of which up to 40 are written; None for numbers.
    """
    from matplotlib.collections import EllipseCollection
    from matplotlib.ticker import MaxNLocator

    num_clients, num_classes = counts.shape
    diameters = np.sqrt(counts[counts > 0] / max(largest, 1))
    style: dict[str, Any] = {"units": "x", "offset_transform": axes.transData, "facecolors": COLOURS[0]}
    circles = EllipseCollection(diameters, diameters, 0 * diameters, offsets=np.argwhere(counts > 0), **style)
    axes.add_collection(circles)
    axes.set(xlim=(-0.7, num_clients - 0.3), ylim=(num_classes - 0.3, -0.7), xlabel="client", ylabel="class")
    axes.set_aspect("equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator("auto", integer=True, steps=(1, 2, 5, 10)))
    if names is not None:
        write_names(axes.xaxis, names, NAMED)
        axes.tick_params("x", rotation=90)


def draw_cosines(cosines: ArrayLike, clients: Sequence[int | str]) -> Figure:
    """Draw a matrix of cosines: blue where updates agree, orange where they conflict, white where they are orthogonal.

    Args:
        cosines: (K, K) cosines in [-1, 1]; nan is drawn grey.
        clients: K names or numbers of clients, which name rows and columns; with many clients, only some are written.
    """
    import pandas as pd  # here, because the import takes half a second
    from matplotlib.figure import Figure

    size = min(3.0 + 0.2 * len(clients), 10.0)  # inches
    figure = Figure((size + 0.8, size), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    image = add_heat(axes, pd.DataFrame(np.asarray(cosines), list(clients), list(clients)), (-1, 1), diverging=True)
    axes.tick_params("x", rotation=90)
    axes.set(xlabel="client", ylabel="client")
    figure.colorbar(image, label="cosine")
    return figure


def add_heat(
    axes: Axes, cells: pd.DataFrame, ends: tuple[float, float], diverging: bool = False, named: int = NAMED
) -> AxesImage:
    """Draw a heat map into axes; nan is drawn grey.

    Args:
        axes: empty axes.
        cells: the values, the first row at the top; index and columns name rows and columns.
        ends: values at the ends of the scale of colours.
        diverging: whether the middle of the scale is white, and its ends are opposites.
        named: largest number of names written along an axis.

    Returns:
        The image, for a colour bar.
    """
    from matplotlib.colors import LinearSegmentedColormap

    axes.set_facecolor("lightgrey")
    colours = LinearSegmentedColormap.from_list("diverging", DIVERGING) if diverging else SEQUENTIAL
    low, high = ends
    image = axes.imshow(cells.to_numpy(dtype=float), cmap=colours, vmin=low, vmax=high, interpolation="nearest")
    for axis, names in ((axes.yaxis, cells.index), (axes.xaxis, cells.columns)):
        write_names(axis, list(names), named)
    return image


def write_names(axis: XAxis | YAxis, names: Sequence[Any], most: int) -> None:
    """Write up to ``most`` names along an axis, evenly spread; long ones are cut."""
    written = spread(names, most)
    texts = [_shorten(str(names[at])) for at in written]
    axis.set_ticks(written, texts, parse_math=False)  # a dollar in a name begins no formula


def _shorten(text: str) -> str:
    return text if len(text) <= LETTERS else f"{text[: LETTERS - 1]}…"


def spread(names: Sequence[Any], most: int) -> list[int]:
    """Choose up to ``most`` positions of names, evenly spread; of numbers in equal steps, round ones.

    >>> spread(["a", "b", "c"], most=2)
    [0, 2]
    >>> numbers = range(1, 101)
    >>> [numbers[at] for at in spread(numbers, most=8)]
    [20, 40, 60, 80, 100]
    """
    step = next(unit * 10**power for power in range(9) for unit in (1, 2, 5) if unit * 10**power * most >= len(names))
    gaps = set()
    if all(isinstance(name, int) for name in names):
        gaps = {later - earlier for earlier, later in itertools.pairwise(names)}
    first = -(names[0] // gaps.pop()) % step if len(gaps) == 1 and 0 not in gaps else 0
    return list(range(first, len(names), step))


def draw_surfaces(surfaces: Mapping[str, Mapping[str, NDArray[Any]]]) -> Figure:
    """Draw loss surfaces side by side, as lines of equal loss with the same axes and colours in every panel.

    Args:
        surfaces: ``steps`` (n,) and ``loss`` (n, n) by title, as :class:`LossSurface` saves them. The loss in the
            middle is written behind the title.
    """
    from matplotlib.figure import Figure  # here, because the import takes half a second

    heights = loss_levels([surface["loss"] for surface in surfaces.values()])
    figure = Figure((4 * len(surfaces) + 1, 4), dpi=100, layout="constrained")
    panels = figure.subplots(1, len(surfaces), squeeze=False, sharex=True, sharey=True)[0]
    for axes, (title, surface) in zip(panels, surfaces.items(), strict=True):
        steps = surface["steps"]
        loss = surface["loss"]
        middle = len(steps) // 2
        filled = add_surface(axes, steps, loss, heights)
        axes.set(title=f"{title}: {loss[middle, middle]:.3g}", xlabel="along direction 1")
    panels[0].set_ylabel("along direction 2")
    figure.colorbar(filled, ax=panels, label="training loss", ticks=heights[::3], format="%.3g")
    return figure


def loss_levels(losses: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Space the lines of equal loss for several surfaces by factors, or evenly if a loss is not above 0.

    The lowest finite loss is the first level; the last is the highest, or 1000 times the lowest if that is less.
    """
    every = np.concatenate([loss.ravel() for loss in losses])
    finite = every[np.isfinite(every)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    high = min(high, low * 10**DECADES) if low > 0 else high
    if np.isclose(low, high, rtol=1e-9, atol=0):
        high = low + 1
    return np.geomspace(low, high, LEVELS) if low > 0 else np.linspace(low, high, LEVELS)


def add_surface(
    axes: Axes, steps: NDArray[np.float64], loss: NDArray[np.float64], levels: NDArray[np.float64]
) -> QuadContourSet:
    """Draw a loss surface into axes, with a cross at the model in the middle.

    Args:
        axes: empty axes.
        steps: (n,) positions along both directions.
        loss: (n, n) the loss; its first direction goes across. A loss above the highest level (or nan, or infinite) is
            drawn as the highest level.
        levels: lines of equal loss, see :func:`loss_levels`.

    Returns:
        The filled contours, for a colour bar.
    """
    from matplotlib.colors import LogNorm, Normalize

    low, high = levels[0], levels[-1]
    norm = LogNorm(low, high) if low > 0 else Normalize(low, high)
    drawn = np.nan_to_num(loss.T, nan=high, posinf=high, neginf=low).clip(low, high)
    filled = axes.contourf(steps, steps, drawn, levels, norm=norm, cmap=SEQUENTIAL)
    axes.contour(steps, steps, drawn, levels, colors="white", linewidths=0.5)
    axes.plot(0, 0, "+", color="white", markeredgewidth=1.5, markersize=8)
    axes.set_aspect("equal")
    return filled


def draw_boxes(images: NDArray[np.uint8], boxes: NDArray[np.float64]) -> Figure:
    """Draw images side by side, with boxes around objects, see :func:`add_boxes`."""
    from matplotlib.figure import Figure  # here, because the import takes half a second

    figure = Figure((2 * len(images), 2), dpi=100, layout="constrained")
    add_boxes(figure.add_subplot(), images, boxes)
    return figure


def add_boxes(axes: Axes, images: NDArray[np.uint8], boxes: NDArray[np.float64]) -> None:
    """Draw images into axes, side by side: a detection in its class's colour, a true object in white dashes below it.

    Args:
        axes: empty axes.
        images: (n, 3, H, W) the images.
        boxes: (m, 7) boxes with the columns BOX, in pixels; a true object's score is nan. Detections whose score is
            below SURE are left out.
    """
    from matplotlib.patches import Rectangle

    width, height = images.shape[3], images.shape[2]
    row = np.concatenate(list(images.transpose(0, 2, 3, 1)), axis=1)
    axes.imshow(row, extent=(0, len(images) * width, height, 0), interpolation="nearest")
    for number, label, score, left, top, right, bottom in boxes.tolist():
        if score < SURE:
            continue
        true = np.isnan(score)
        colour = "white" if true else ON_DARK[int(label) % len(ON_DARK)]
        style: dict[str, Any] = {"edgecolor": colour, "linestyle": (0, (2, 2)) if true else "-", "linewidth": 0.8}
        corner = (number * width + left, top)
        axes.add_patch(Rectangle(corner, right - left, bottom - top, fill=False, zorder=2 + (not true), **style))
    axes.set_axis_off()
