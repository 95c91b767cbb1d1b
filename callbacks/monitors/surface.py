"""LossSurface: the training loss around the global model."""

import math

import numpy as np
from lightning.pytorch import LightningModule, Trainer
from typing_extensions import override

from fl_lightning import Cohort, ConfigurationError, Monitor, Server, is_due, log_figure, save_arrays
from fl_lightning.callbacks.monitors.curvature import check_module, random_directions, surface, training_loss
from fl_lightning.runs.pictures import draw_surfaces


class LossSurface(Monitor):
    """Saves the training loss on a grid around the global model (Li et al., 2018; FedGAM, Fig. 4).

    Two random directions d₁ and d₂ span the grid; each filter of a direction has the norm of the model's filter. The
    draw of the directions depends on ``seed`` alone: runs of several methods with the same network share the axes.
    ``arrays/surface_<round>.npz`` in the run folder holds ``steps`` (n,) and ``loss`` (n, n): loss[i, j] is the loss at
    w + steps[i]·d₁ + steps[j]·d₂, where w is the global model. Far from w, the loss may be infinite or nan. Loggers
    that take pictures get the picture ``surface/loss``; :func:`fl_lightning.runs.pictures.draw_surfaces` draws several
    runs in one picture. The loss and its examples are those of :class:`HessianMonitor`. The monitor changes nothing.

    Args:
        every: number of rounds from one grid to the next; the last round that ``trainer.max_epochs`` allows gets a
            grid, too. 0 for the last round alone.
        points: n, odd and at least 3, so that the model itself is in the middle. A grid takes n² evaluations of the
            sample.
        span: largest step: the steps go from -span to span. A step of 1 moves a filter by its own norm.
        examples: number of examples in the sample; the whole training set if it has fewer.
        seed: seed of the directions.

    Raises:
        ConfigurationError: an argument is outside its range; the module optimizes manually; ``every`` is 0 and
            ``trainer.max_epochs`` sets no last round.
    """

    needs_one_machine = "measures the loss of clients' training examples at the server"
    streams = True

    def __init__(
        self, every: int = 0, points: int = 21, span: float = 1.0, examples: int = 1024, seed: int = 0
    ) -> None:
        for name, value, fine, expected in (
            ("every", every, every >= 0, "a number of rounds, or 0 for the last round alone"),
            ("points", points, points >= 3 and points % 2 == 1, "odd and at least 3"),
            ("span", span, 0 < span < math.inf, "positive and finite"),
            ("examples", examples, examples >= 1, "at least 1"),
        ):
            if not fine:
                raise ConfigurationError(f"LossSurface: {name} must be {expected}, got {value}")
        self.every, self.points, self.span, self.examples, self.seed = every, points, span, examples, seed

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        check_module("LossSurface", pl_module)
        if not self.every and (trainer.max_epochs or 0) < 0:
            raise ConfigurationError(
                "LossSurface with every=0 measures the last round, but trainer.max_epochs sets no last round: set "
                "trainer.max_epochs, or every of LossSurface"
            )

    @override
    def on_round_end(self, orchestrator: Server, cohort: Cohort) -> None:
        if not (is_due(orchestrator, self.every) or cohort.round == orchestrator.trainer.max_epochs):
            return
        params = orchestrator.params.clone()
        steps = np.linspace(-self.span, self.span, self.points)
        directions = random_directions(orchestrator.split(params), self.seed)
        with training_loss(orchestrator, self.examples) as loss:
            arrays = {"steps": steps, "loss": surface(loss.at, params, directions, steps.tolist())}
        save_arrays(orchestrator, f"surface_{cohort.round}", **arrays)
        title = f"round {cohort.round}"
        log_figure(orchestrator, "surface/loss", lambda: draw_surfaces({title: arrays}), cohort.round)
