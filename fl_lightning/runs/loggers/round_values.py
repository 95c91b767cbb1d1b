"""Log values by client, arrays and figures of a round, beside its scalar metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from lightning.pytorch.loggers import MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.utilities import rank_zero_only

from fl_lightning.engine.rules.server import Server
from fl_lightning.files import whole
from fl_lightning.runs.folder.files import array_file
from fl_lightning.runs.folder.run_folder import run_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def is_due(orchestrator: Server, every: int) -> bool:
    """Tell whether the current round is the run's last or a multiple of ``every``; False in all rounds if that is 0."""
    return bool(every) and (orchestrator.round % every == 0 or orchestrator.round == orchestrator.trainer.max_epochs)


def log_each(orchestrator: Server, name: str, keys: Iterable[int | str], values: Iterable[float]) -> None:
    """Log a value of each client (or class) in this round as ``name/<key>``, in one call to each logger.

    Args:
        orchestrator: the orchestrator, as a server hook gets it.
        name: ``group/name`` of the values.
        keys: ids of the clients (or classes), or names.
        values: one value for each key, in the same order.
    """
    row = {f"{name}/{key}": float(value) for key, value in zip(keys, values, strict=True)}
    for logger in orchestrator.trainer.loggers:
        logger.log_metrics(row | {"round": float(orchestrator.round)}, step=orchestrator.round)


def save_arrays(orchestrator: Server, name: str, **arrays: Any) -> None:
    """Write ``arrays/<name>.npz`` in the run folder, whole or not at all. All devices must call this function.

    The first device writes the file.

    Args:
        orchestrator: the orchestrator, during a fit.
        name: name of the file without suffix; arrays of one round have the round's number at its end: ``cosines_12``.
        arrays: arrays by name, or values that NumPy can convert to arrays.
    """
    file = array_file(run_folder(orchestrator.trainer), name)
    if orchestrator.trainer.is_global_zero:
        with whole(file) as part, part.open("wb") as opened:
            np.savez(opened, **arrays)


@rank_zero_only
def log_figure(orchestrator: Server, name: str, draw: Callable[[], Figure], round: int) -> None:
    """Log a figure to every logger that shows figures; without such a logger, draw nothing.

    W&B and TensorBoard show the figures of a name by round. MLflow keeps each as the artifact ``name_<round>.png``.

    Args:
        orchestrator: the orchestrator, during a fit.
        name: ``group/name`` of the figure.
        draw: function that returns a new figure, made without pyplot, which would keep the figure in memory.
        round: round that the figure belongs to; 0 for a figure from before the first round.
    """
    loggers = _that_show(orchestrator)
    if not loggers:
        return
    figure = draw()
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            _show_in_wandb(logger, name, round, "Image", "picture.png", figure.savefig)
        elif isinstance(logger, MLFlowLogger):
            logger.experiment.log_figure(str(logger.run_id), figure, f"{name}_{round}.png")
        else:
            logger.experiment.add_figure(name, figure, round)


@rank_zero_only
def log_table(orchestrator: Server, name: str, columns: Mapping[str, Sequence[Any]], round: int) -> None:
    """Log a table of texts or numbers to every logger that shows text.

    W&B and TensorBoard show the tables of a name by round. MLflow keeps each as the artifact ``name_<round>.html``.

    Args:
        orchestrator: the orchestrator, during a fit.
        name: ``group/name`` of the table.
        columns: the cells of each column, by the column's name.
        round: round that the table belongs to.
    """
    loggers = _that_show(orchestrator)
    if not loggers:
        return
    import pandas as pd  # here, because the import takes half a second

    with pd.option_context("display.max_colwidth", None):
        page = pd.DataFrame(columns).to_html(index=False)
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            _show_in_wandb(logger, name, round, "Html", "table.html", lambda file: Path(file).write_text(page, "utf-8"))
        elif isinstance(logger, MLFlowLogger):
            logger.experiment.log_text(str(logger.run_id), page, f"{name}_{round}.html")
        else:
            logger.experiment.add_text(name, page, round)


def _that_show(orchestrator: Server) -> list[Any]:
    """Return the loggers that show more than numbers."""
    shows = WandbLogger | TensorBoardLogger | MLFlowLogger
    return [logger for logger in orchestrator.trainer.loggers if isinstance(logger, shows)]


def _show_in_wandb(
    logger: WandbLogger, name: str, round: int, kind: str, file: str, write: Callable[[str], Any]
) -> None:
    """Log a file to W&B.

    W&B's own temporary folder is shared by all processes of a sweep, and the first process to end removes the folder.

    Args:
        logger: the logger.
        name: ``group/name`` of what is shown.
        round: round that it belongs to.
        kind: name of W&B's class that shows such a file.
        file: name of the file.
        write: function that writes the file, given its path.
    """
    import wandb  # here, because the import is slow, and few runs need it

    with TemporaryDirectory() as folder:
        write(path := str(Path(folder, file)))
        settings = {"inject": False} if kind == "Html" else {}  # else W&B writes it once more, into its own folder
        row: dict[str, Any] = {name: getattr(wandb, kind)(path, **settings), "round": float(round)}
        logger.log_metrics(row, step=round)
