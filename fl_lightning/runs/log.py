"""What monitors leave of a round beside its scalars: values by client, arrays, pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from lightning.pytorch.utilities import rank_zero_only

from fl_lightning.engine.server import Server
from fl_lightning.runs.folder import array_file, run_folder, whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def is_due(orchestrator: Server, every: int) -> bool:
    """Whether the round under way is one that ``every`` divides (0: none does), or else the run's last."""
    return bool(every) and (orchestrator.round % every == 0 or orchestrator.round == orchestrator.trainer.max_epochs)


def log_each(orchestrator: Server, name: str, keys: Iterable[int], values: Iterable[float]) -> None:
    """Log a value of each client (or class) in this round as ``name/<key>``: to every logger in one go, not one by one.

    Args:
        orchestrator: the orchestrator, in one of the server's hooks.
        name: ``group/name``.
        keys: the clients' ids.
        values: their values, in the same order.
    """
    row = {f"{name}/{key}": float(value) for key, value in zip(keys, values, strict=True)}
    for logger in orchestrator.trainer.loggers:
        logger.log_metrics(row | {"round": float(orchestrator.round)}, step=orchestrator.round)


def save_arrays(orchestrator: Server, name: str, **arrays: Any) -> None:
    """Write ``arrays/<name>.npz`` in the run folder, whole or not at all. All devices must call it, one writes.

    Args:
        orchestrator: the orchestrator, while a fit lasts.
        name: the file's name; what belongs to a round has its number at the end, ``cosines_12``.
        arrays: what NumPy takes for arrays, by name.
    """
    file = array_file(run_folder(orchestrator.trainer), name)
    if orchestrator.trainer.is_global_zero:
        with whole(file) as part, part.open("wb") as opened:
            np.savez(opened, **arrays)


@rank_zero_only
def log_figure(orchestrator: Server, name: str, draw: Callable[[], Figure], round: int) -> None:
    """Show a picture in every logger that takes pictures (W&B, TensorBoard); where none does, it is not drawn.

    Args:
        orchestrator: the orchestrator, while a fit lasts.
        name: ``group/name``.
        draw: makes the figure, without pyplot, so that nothing has to close it.
        round: the round that the picture belongs to; 0 for before the first.
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
