"""FedBE: Bayesian model ensemble, distilled into the averaged model."""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, Server, check_at_least, check_choice
from fl_lightning.callbacks.server.feddf import FedDF, Model

SPREAD = 0.1  # spread of the draws, in standard deviations
SMALLEST_VARIANCE = 1e-5


def direction_gaussian(updates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Fit a Gaussian to the normalised updates of a parameter tensor; every client counts the same.

    Updates (3, 0) and (0, 1) have the directions (1, 0) and (0, 1), and the mean norm 2:

    >>> import torch
    >>> from fl_lightning.callbacks.server.fedbe import direction_gaussian
    >>> mean, variance, norm = direction_gaussian(torch.tensor([[3.0, 0.0], [0.0, 1.0]]))
    >>> mean.tolist(), variance.tolist(), float(norm)
    ([0.5, 0.5], [0.25, 0.25], 2.0)

    Args:
        updates: (K, D) updates of K clients to the tensor. A zero update has no direction and counts as zero.

    Returns:
        Mean (D,) and variance (D,) >= 1e-5 of Δ/‖Δ‖, and the mean ‖Δ‖, a scalar.
    """
    norms = torch.linalg.vector_norm(updates, dim=1)
    scales = torch.where(norms > 0, 1 / norms, 0.0)
    mean = scales @ updates / len(updates)
    second_moment = torch.zeros_like(mean)
    for scale, update in zip(scales, updates, strict=True):  # row by row: no second (K, D)
        second_moment += (scale * update).square() / len(updates)
    return mean, (second_moment - mean.square()).clamp(min=SMALLEST_VARIANCE), norms.mean()


class FedBE(FedDF):
    """Distils the clients' models, their average and draws around it into the new global model (Chen & Chao, 2021).

    A draw is w + mean‖Δ‖·(m + 0.1·√var·ε) per parameter tensor, where m and var are the mean and the variance of the
    clients' normalised updates, and ε is standard normal. This is Algorithm 1's Gaussian as in FedLAW's released code;
    the paper fits the Gaussian to the models themselves, weighted by n_k. The target is the mean of the teachers'
    probabilities, as in the paper; FedLAW's released code takes the softmax of their mean logits. The average and the
    draws use the averaged buffers. The student learns as in :class:`FedDF`, by Adam; the paper averages the student
    along the way (SWA).

    Args:
        num_samples: number of models drawn per round; 1 in FedLAW's released code, 10 in the paper.
        epochs: passes over the proxy set per round; 100 in FedLAW (Appendix D.6).
        lr: learning rate of Adam. FedLAW states none: the default is ours.
        teacher: outputs that are averaged over the teachers: "probabilities", as in the paper, or "logits", as in
            FedLAW's released code and in :class:`FedDF`.

    Raises:
        ConfigurationError: as for :class:`FedDF`, or ``num_samples`` is below 1, or ``teacher`` is anything else.
    """

    def __init__(
        self,
        num_samples: int = 1,
        epochs: int = 100,
        lr: float = 0.001,
        teacher: Literal["probabilities", "logits"] = "probabilities",
    ) -> None:
        super().__init__(epochs, lr)
        check_at_least(1, num_samples=num_samples)
        check_choice("teacher", teacher, "probabilities", "logits")
        self.num_samples, self.teacher = num_samples, teacher

    @override
    def teachers(self, orchestrator: Server, cohort: Cohort) -> Iterator[Model]:
        """Yield the average, the draws and the clients' models: see :class:`FedDF`."""
        yield orchestrator.params, cohort.buffers
        sizes = [part.numel() for part in orchestrator.split(cohort.anchor)]
        fits = [direction_gaussian(updates) for updates in torch.split(cohort.deltas, sizes, dim=1)]
        centre = cohort.anchor + torch.cat([norm * mean for mean, _, norm in fits])
        spread = torch.cat([norm * SPREAD * variance.sqrt() for _, variance, norm in fits])
        generator = orchestrator.generator("fedbe", cohort.round)
        for _ in range(self.num_samples):
            noise = torch.randn(spread.shape, generator=generator, dtype=spread.dtype).to(spread.device)
            yield centre + spread * noise, cohort.buffers
        yield from super().teachers(orchestrator, cohort)

    @override
    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the student's targets (n, C), given the logits (T, n, C) of T teachers."""
        return super().probabilities(logits) if self.teacher == "logits" else logits.softmax(2).mean(0)
