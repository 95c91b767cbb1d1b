"""What a round leaves beside its scalars: values by client, arrays, pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from lightning.pytorch.utilities import rank_zero_only

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

    from fl_lightning.orchestrator import FederatedOrchestrator

NAMED = 40  # clients along an axis


def is_due(orchestrator: FederatedOrchestrator, every: int) -> bool:
    """Whether the round under way is one that ``every`` divides (0: none does), or else the run's last."""
    return bool(every) and (orchestrator.round % every == 0 or orchestrator.round == orchestrator.trainer.max_epochs)


def log_each(orchestrator: FederatedOrchestrator, name: str, keys: Iterable[int], values: Iterable[float]) -> None:
    """Log a value of each client (or class) in this round as ``name/<key>``: to every logger in one go, not one by one.

    Args:
        orchestrator: in one of the server's hooks.
        name: ``group/name``.
        keys: of the clients.
        values: in the same order.
    """
    row = {f"{name}/{key}": float(value) for key, value in zip(keys, values, strict=True)}
    for logger in orchestrator.trainer.loggers:
        logger.log_metrics(row | {"round": float(orchestrator.round)}, step=orchestrator.round)


def save_arrays(orchestrator: FederatedOrchestrator, name: str, **arrays: Any) -> None:
    """Write ``arrays/<name>.npz`` in the run folder, whole or not at all. All devices must call it, one writes.

    Args:
        orchestrator: while a fit lasts.
        name: of the file; what belongs to a round has its number at the end, ``cosines_12``.
        arrays: what NumPy takes for arrays, by name.
    """
    folder = Path(orchestrator.trainer.log_dir or orchestrator.trainer.default_root_dir) / "arrays"
    if orchestrator.trainer.is_global_zero:
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f"{name}.npz.part"
        with part.open("wb") as file:
            np.savez(file, **arrays)
        part.replace(folder / f"{name}.npz")


@rank_zero_only
def log_figure(orchestrator: FederatedOrchestrator, name: str, draw: Callable[[], Figure], round: int) -> None:
    """Show a picture in every logger that takes pictures (W&B, TensorBoard); where none does, it is not drawn.

    Args:
        orchestrator: while a fit lasts.
        name: ``group/name``.
        draw: makes the figure, without pyplot, so that nothing has to close it.
        round: that it belongs to; 0 for before the first.
    """
    loggers = [each for each in orchestrator.trainer.loggers if isinstance(each, WandbLogger | TensorBoardLogger)]
    if not loggers:
        return
    figure = draw()
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            _show_in_wandb(logger, name, figure, round)
        else:
            logger.experiment.add_figure(name, figure, round)


def _show_in_wandb(logger: WandbLogger, name: str, figure: Figure, round: int) -> None:
    """As a file: W&B would take one folder of its own for all processes of a sweep, which the first of them removes."""
    import wandb  # here: it takes a while to import, and few runs need it

    with TemporaryDirectory() as folder:
        figure.savefig(file := str(Path(folder, "picture.png")))
        row: dict[str, Any] = {name: wandb.Image(file), "round": float(round)}
        logger.log_metrics(row, step=round)


def draw_cosines(cosines: ArrayLike, clients: Sequence[int]) -> Figure:
    """Draw a matrix of cosines: blue where updates agree, red where they conflict, white where they are orthogonal.

    Args:
        cosines: (K, K), in [-1, 1]; nan, where an update is zero, stays grey.
        clients: the K ids of rows and columns; of many, some are named.
    """
    from matplotlib.figure import Figure  # here, because importing it takes half a second

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
