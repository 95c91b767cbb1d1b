"""``fl-lightning data``: show the examples and classes of each client, without training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from fl_lightning.commands import counted
from fl_lightning.datamodules import FederatedDataModule
from fl_lightning.engine.federation.clients import names_of
from fl_lightning.errors import ConfigurationError
from fl_lightning.runs.pictures import bubbles

SHOWN = 30  # clients in the terminal's table, and classes in the summary, at most


def show(data: FederatedDataModule, plot: Path, console: Console | None = None) -> None:
    """Print the examples and classes of each client, and draw them.

    Args:
        data: a data module that is set up.
        plot: PNG file to write; no file is written if the data module has no classes.
        console: console to print to; None for the terminal.

    Raises:
        ConfigurationError: the PNG file cannot be written.
    """
    console = console or Console()
    counts = data.class_counts()
    names = names_of(data)
    console.print(table(data.sizes, counts, names))
    console.print(summary(data, counts), highlight=False)
    if counts is not None:
        try:
            plot.parent.mkdir(parents=True, exist_ok=True)
            bubbles(counts, names).savefig(plot)
        except (OSError, ValueError) as error:  # ValueError: a suffix that matplotlib does not know
            raise ConfigurationError(f"plot must be a PNG file that can be written, got {plot}: {error}") from None
        console.print(f"plot: {plot}", highlight=False)


def table(sizes: Tensor, counts: Tensor | None, names: Sequence[str] | None = None) -> Table:
    """Make a table of at most 30 clients, one row per client: name, examples, number of classes, largest class."""
    title = counted(len(sizes), "client")
    if len(sizes) > SHOWN:
        title += f", the first {SHOWN}"
    shown = Table(title=title)
    shown.add_column("client", justify="right")
    if names is not None:
        shown.add_column("name")
    shown.add_column("examples", justify="right")
    if counts is not None:
        shown.add_column("classes", justify="right")
        shown.add_column("largest class", justify="right")
    for client, size in enumerate(sizes[:SHOWN].tolist()):
        row: list[str | Text] = [str(client)]
        if names is not None:
            row.append(Text(names[client]))
        row.append(f"{size:,}")
        if counts is not None and size:
            held = counts[client]
            row += [str(int((held > 0).sum())), f"{int(held.argmax())} ({held.max() / size:.0%})"]
        shown.add_row(*row)
    return shown


def summary(data: FederatedDataModule, counts: Tensor | None) -> str:
    """Summarise the federation in a few lines."""
    sizes = data.sizes.double()
    held = sizes[sizes > 0]
    lines = [
        f"{counted(int(sizes.sum()), 'training example')}; {len(held):,} of {counted(len(sizes), 'client')} hold some",
        f"examples per client with data: {held.min():,.0f} to {held.max():,.0f}, median {held.median():,.0f}",
        f"clients per round: {data.cohort_size:,}; local steps per epoch: "
        f"{data.num_batches(int(held.min())):,} to {data.num_batches(int(held.max())):,}",
    ]
    if counts is not None:
        present = (counts > 0).sum(1).double()[sizes > 0]
        lines.append(
            f"classes per client with data: {present.min():.0f} to {present.max():.0f} of {counts.shape[1]}, "
            f"mean {present.mean():.1f}"
        )
        lines.append("examples per class: " + _first_values(counts.sum(0)))
    return "\n".join(lines)


def _first_values(values: Tensor) -> str:
    words = " ".join(f"{value:,}" for value in values[:SHOWN].tolist())
    return f"{words} … ({len(values)} classes)" if len(values) > SHOWN else words
