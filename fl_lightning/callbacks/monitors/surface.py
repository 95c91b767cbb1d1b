"""LossSurface: the loss around the global model."""

import math
from typing import Literal, get_args

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from fl_lightning import (
    Cohort,
    ConfigurationError,
    Metric,
    Monitor,
    Server,
    check_choice,
    is_due,
    log_each,
    log_figure,
    save_arrays,
)
from fl_lightning.callbacks.monitors.curvature import check_module, random_directions, surface, training_loss
from fl_lightning.later import later
from fl_lightning.runs.pictures import draw_surfaces

Directions = Literal["random", "weights"]
# Of the plane of three weights that sum to 1: client 0 against the others, and client 1 against client 2. Orthonormal.
PLANE = torch.tensor([[2 / 6**0.5, -1 / 6**0.5, -1 / 6**0.5], [0, 1 / 2**0.5, -1 / 2**0.5]], dtype=torch.float64)


def weight_plane(cohort: Cohort) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return the mean (P,) of three clients' models, and the models' directions (P,) for the plane of the weights."""

    def combined(weights: Tensor) -> Tensor:
        return cohort.replace(weights=weights, shrinking=1.0, added=None).update

    mean = combined(torch.full((3,), 1 / 3, dtype=torch.float64))
    return cohort.anchor + mean, (combined(PLANE[0]), combined(PLANE[1]))


def plane_weights(steps: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weights (n, n, 3) at each point of a grid with the steps (n,) on the plane of the weights."""
    one, two = np.meshgrid(steps, steps, indexing="ij")
    return np.asarray(1 / 3 + np.stack([one, two], axis=-1) @ PLANE.numpy())


def best_weights(steps: NDArray[np.float64], loss: NDArray[np.float64]) -> list[float]:
    """Return the three weights with the lowest loss on the plane, among the points of the grid that have none below 0.

    Args:
        steps: (n,) steps along both directions of the plane.
        loss: (n, n) the loss, nan where unknown; [i, j] is at steps[i] along the first direction, steps[j] along the
            second.
    """
    weights = plane_weights(steps)
    allowed = (weights > -1e-6).all(-1) & np.isfinite(loss)
    lowest = np.where(allowed, loss, np.inf).argmin()
    return [float(weight) for weight in weights.reshape(-1, 3)[lowest].clip(min=0)]


def rises(loss: NDArray[np.float64]) -> tuple[float, float]:
    """Compute by how much a loss (n, n) rises from the middle to half of the span along each direction.

    >>> import numpy as np
    >>> from fl_lightning.callbacks.monitors.surface import rises
    >>> steps = np.linspace(-1, 1, 5)
    >>> rises(4 * steps[:, None] ** 2 + steps)  # 4 · 0.5², and nothing: one side rises by as much as the other falls
    (1.0, 0.0)
    """
    middle = len(loss) // 2
    half = max(middle // 2, 1)
    sides = [middle - half, middle + half]
    centre = loss[middle, middle]
    return float(loss[sides, middle].mean() - centre), float(loss[middle, sides].mean() - centre)


def lowest(steps: NDArray[np.float64], loss: NDArray[np.float64]) -> tuple[float, tuple[float, float]]:
    """Return the lowest loss on a grid, and the steps along both directions at which it lies.

    >>> import numpy as np
    >>> from fl_lightning.callbacks.monitors.surface import lowest
    >>> lowest(np.array([-0.5, 0.0, 0.5]), np.array([[3.0, 3.0, np.nan], [3.0, 2.0, 3.0], [3.0, 1.0, np.inf]]))
    (1.0, (0.5, 0.0))

    Args:
        steps: (n,) steps along both directions.
        loss: (n, n) the loss, nan where unknown.
    """
    known = np.where(np.isnan(loss), np.inf, loss)
    row, column = np.unravel_index(known.argmin(), known.shape)
    return float(known[row, column]), (float(steps[row]), float(steps[column]))


class LossSurface(Monitor):
    """Saves the loss on a grid around the global model (Li et al., 2018; FedGAM, Fig. 4; FedLAW, Fig. 12).

    By default the loss is the training loss, and two random directions d₁ and d₂ span the grid; each filter of a
    direction has the norm of the model's filter. The draw of the directions depends on ``seed`` alone: runs of several
    methods with the same network share the axes. ``arrays/surface_<round>.npz`` in the run folder holds ``steps`` (n,)
    and ``loss`` (n, n): loss[i, j] is the loss at w + steps[i]·d₁ + steps[j]·d₂, where w is the global model. Far from
    w, the loss may be infinite or nan. Each grid also logs ``surface/lowest``, its lowest loss, and ``surface/away``,
    how far from w that is; and ``surface/rise``, by how much the loss rises from w to half of the span, mean of both
    sides of both directions. Loggers that take pictures get the picture ``surface/loss``;
    :func:`fl_lightning.runs.pictures.draw_surfaces` draws several runs in one picture. The loss and its examples are
    those of :class:`HessianMonitor`. The monitor changes nothing.

    With ``directions`` "weights" ``arrays/plane_<round>.npz`` holds a grid in the plane of the weights λ₀ + λ₁ + λ₂ = 1
    of three clients, around the mean of their models: the loss of Σ λ_k w_k on the validation examples. A step along d₁
    takes λ from clients 1 and 2 to client 0, a step along d₂ from client 2 to client 1. A step of 1 has length 1 in the
    plane: client 0 alone is at √(2/3) = 0.8165 along d₁, and clients 1 and 2 are at ±0.7071 along d₂. Each grid also
    logs ``surface/weight/<client>``, the weights with the lowest loss among the grid's points without a negative
    weight; and ``surface/rise_1`` and ``surface/rise_2``, by how much the loss rises from the middle to half of the
    span along d₁ and d₂, mean of both sides. A round without all three clients has no grid.

    Args:
        every: number of rounds from one grid to the next; the last round that ``trainer.max_epochs`` allows gets a
            grid, too. 0 for the last round alone.
        points: n, odd and at least 3, so that the model itself is in the middle. A grid takes n² evaluations of the
            sample.
        span: largest step: the steps go from -span to span. A step of 1 moves a filter by its own norm.
        examples: number of examples in the sample; the whole training set if it has fewer.
        seed: seed of the random directions.
        directions: "random", or "weights" for the plane of three clients' weights.

    Raises:
        ConfigurationError: an argument is outside its range; the module optimizes manually; ``every`` is 0 and
            ``trainer.max_epochs`` sets no last round; ``directions`` is "weights" and there are not three clients.
    """

    metrics = (
        Metric(
            "surface/lowest",
            "Lowest loss of the surface",
            "Lowest loss on the grid around the global model (FedGAM, Fig. 4).",
            better="lower",
            paper="min_loss",
            panel="lowest loss of the surface",
        ),
        Metric(
            "surface/away",
            "Way to the lowest loss of the surface",
            "How far from the global model the lowest loss on the grid is, in filters' own norms.",
            panel="way to the lowest loss of the surface",
        ),
        Metric(
            "surface/rise",
            "Rise of the loss",
            "By how much the loss rises from the global model to half of the span: small at a flat minimum.",
            panel="rise of the loss on the surface",
        ),
        Metric(
            "surface/weight/<k>",
            "best weight",
            formula="Weight of client k where the loss on the plane of the weights is lowest (FedLAW, Fig. 12).",
            panel="best weights",
        ),
        Metric(
            "surface/rise_<i>",
            "rise of the loss",
            formula="By how much the loss rises from equal weights to half of the span along direction i: 1 is client "
            "0 against the others, 2 client 1 against client 2.",
            panel="rise of the loss on the plane of the weights",
        ),
    )

    needs_one_machine = "measures the loss of clients' training examples at the server"
    streams = True

    @later(directions="random")
    def __init__(
        self,
        every: int = 0,
        points: int = 21,
        span: float = 1.0,
        examples: int = 1024,
        seed: int = 0,
        directions: Directions = "random",
    ) -> None:
        check_choice("directions", directions, *get_args(Directions))
        for name, value, fine, expected in (
            ("every", every, every >= 0, "a number of rounds, or 0 for the last round alone"),
            ("points", points, points >= 3 and points % 2 == 1, "odd and at least 3"),
            ("span", span, 0 < span < math.inf, "positive and finite"),
            ("examples", examples, examples >= 1, "at least 1"),
        ):
            if not fine:
                raise ConfigurationError(f"LossSurface: {name} must be {expected}, got {value}")
        self.every, self.points, self.span, self.examples, self.seed = every, points, span, examples, seed
        self.directions = directions
        self.streams = directions == "random"  # type: ignore[misc]  # the plane needs each client's update

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        check_module("LossSurface", pl_module)
        if not self.every and (trainer.max_epochs or 0) < 0:
            raise ConfigurationError(
                "LossSurface with every=0 measures the last round, but trainer.max_epochs sets no last round: set "
                "trainer.max_epochs, or every of LossSurface"
            )
        clients = trainer.datamodule.num_clients  # type: ignore[attr-defined]  # set outside Trainer.__init__
        if self.directions == "weights" and clients != len(PLANE.T):
            raise ConfigurationError(
                f"LossSurface with directions weights needs 3 clients, got {clients}: set data.num_clients 3, or leave "
                "directions random"
            )

    @override
    def on_round_end(self, orchestrator: Server, cohort: Cohort) -> None:
        if not (is_due(orchestrator, self.every) or cohort.round == orchestrator.trainer.max_epochs):
            return
        steps = np.linspace(-self.span, self.span, self.points)
        if self.directions == "weights":
            self._save_plane(orchestrator, cohort, steps)
            return
        params = orchestrator.params.clone()
        directions = random_directions(orchestrator.split(params), self.seed)
        with training_loss(orchestrator, self.examples) as loss:
            arrays = {"steps": steps, "loss": surface(loss.at, params, directions, steps.tolist())}
        save_arrays(orchestrator, f"surface_{cohort.round}", **arrays)
        least, place = lowest(**arrays)
        orchestrator.log_round("surface/lowest", least)
        orchestrator.log_round("surface/away", math.hypot(*place))
        orchestrator.log_round("surface/rise", float(np.mean(rises(arrays["loss"]))))
        title = f"round {cohort.round}"
        log_figure(orchestrator, "surface/loss", lambda: draw_surfaces({title: arrays}), cohort.round)

    def _save_plane(self, orchestrator: Server, cohort: Cohort, steps: NDArray[np.float64]) -> None:
        """Save the loss on the plane of the weights, and log where it is lowest and by how much it rises."""
        if len(cohort.clients) < len(PLANE.T):
            return
        middle, directions = weight_plane(cohort)
        with training_loss(orchestrator, self.examples, validation=True) as loss:
            grid = surface(loss.at, middle, directions, steps.tolist())
        save_arrays(orchestrator, f"plane_{cohort.round}", steps=steps, loss=grid)
        log_each(orchestrator, "surface/weight", cohort.clients, best_weights(steps, grid))
        for number, rise in enumerate(rises(grid), 1):
            orchestrator.log_round(f"surface/rise_{number}", rise)
