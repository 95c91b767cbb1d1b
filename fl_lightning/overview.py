"""What each client holds, without training: ``fl-lightning data``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from torch import Tensor

from fl_lightning.data import FederatedDataModule
from fl_lightning.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 30  # clients (or classes) in the terminal's table
LARGEST = 1.0  # diameter of the largest bubble, in cells
WIDEST = 16.0  # inches of a plot
DRAWN = 200  # clients in a plot


def show(data: FederatedDataModule, plot: Path, console: Console | None = None) -> None:
    """Print who holds what, and draw it.

    Args:
        data: set up.
        plot: the PNG to write; nothing is written if the data module knows no classes.
        console: where to print.
    """
    console = console or Console()
    counts = data.class_counts()
    console.print(table(data.sizes, counts))
    console.print(summary(data, counts), highlight=False)
    if counts is not None:
        try:
            plot.parent.mkdir(parents=True, exist_ok=True)
            bubbles(counts).savefig(plot)
        except (OSError, ValueError) as error:  # ValueError: a suffix that matplotlib does not know
            raise ConfigurationError(f"plot must be a PNG file that can be written, got {plot}: {error}") from None
        console.print(f"plot: {plot}", highlight=False)


def table(sizes: Tensor, counts: Tensor | None) -> Table:
    """One row a client: its examples, how many classes it holds, the largest of them; the first clients of many."""
    shown = Table(title=f"{len(sizes):,} clients" + (f", the first {SHOWN}" if len(sizes) > SHOWN else ""))
    for name in ("client", "examples") + (("classes", "largest class") if counts is not None else ()):
        shown.add_column(name, justify="right")
    for client, size in enumerate(sizes[:SHOWN].tolist()):
        row = [str(client), f"{size:,}"]
        if counts is not None and size:
            held = counts[client]
            row += [str(int((held > 0).sum())), f"{int(held.argmax())} ({held.max() / size:.0%})"]
        shown.add_row(*row)
    return shown


def summary(data: FederatedDataModule, counts: Tensor | None) -> str:
    """The federation in a few lines."""
    sizes = data.sizes.double()
    held = sizes[sizes > 0]
    lines = [
        f"{int(sizes.sum()):,} training examples; {len(held):,} of {len(sizes):,} clients hold some",
        f"examples per client with data: {held.min():,.0f} to {held.max():,.0f}, median {held.median():,.0f}",
        f"clients per round: {data.cohort_size:,}; local steps per epoch: "
        f"{-(-held.min() // data.batch_size):,.0f} to {-(-held.max() // data.batch_size):,.0f}",
    ]
    if counts is not None:
        present = (counts > 0).sum(1).double()[sizes > 0]
        lines.append(
            f"classes per client with data: {present.min():.0f} to {present.max():.0f} of {counts.shape[1]}, "
            f"mean {present.mean():.1f}"
        )
        lines.append("examples per class: " + _listed(counts.sum(0)))
    return "\n".join(lines)


def _listed(values: Tensor) -> str:
    listed = [f"{value:,}" for value in values[:SHOWN].tolist()]
    return " ".join(listed) + (f" … ({len(values)} classes)" if len(values) > SHOWN else "")


def bubbles(counts: Tensor) -> Figure:
    """Draw examples of each class (down) at each client (across): a bubble's area is the number of examples.

    As FedGAM's Fig. 2 and FedLAW's Fig. 13. The largest of all fills its cell.

    Args:
        counts: (N, C) examples of each class that each client holds; of many clients the first are drawn.
    """
    from matplotlib.collections import EllipseCollection  # here, because importing it takes half a second
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
