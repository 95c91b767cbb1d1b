"""FedBE: Bayesian model ensemble, distilled into the averaged model."""

from collections.abc import Iterator

import torch
from torch import Tensor

from fl_lightning import Cohort, ConfigurationError, Server
from fl_lightning.callbacks.server.feddf import FedDF, Model

SPREAD = 0.1  # of the samples, in standard deviations
SMALLEST_VARIANCE = 1e-5


def direction_gaussian(updates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The Gaussian of a parameter tensor's normalised updates, every client alike.

    Args:
        updates: (K, D) what K clients changed in the tensor. A zero update has no direction: it counts as zero.

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
    """Distils an ensemble of the average, of models drawn around it, and of the clients' models (Chen & Chao, 2021).

    A draw is w + mean‖Δ‖·(m + 0.1·√var·ε) per parameter tensor, with the mean m and the variance of the clients'
    normalised updates and ε standard normal (Algorithm 1's Gaussian, as in FedLAW's released code; the paper fits it to
    the models themselves, weighted by n_k). The target is the mean of the teachers' probabilities, as in the paper; the
    released code averages logits. The average and the draws have the average's buffers. The student learns as in
    :class:`FedDF`, by Adam; the paper averages it along the way (SWA).

    Args:
        num_samples: models drawn per round; 1 in the released code, 10 in the paper.
        epochs: over the proxy set per round; 100 in FedLAW (Appendix D.6).
        lr: of Adam. No rate is stated there: this one is ours.

    Raises:
        ConfigurationError: as :class:`FedDF`, or ``num_samples`` is below 1.
    """

    def __init__(self, num_samples: int = 1, epochs: int = 100, lr: float = 0.001) -> None:
        super().__init__(epochs, lr)
        if not num_samples >= 1:
            raise ConfigurationError(f"num_samples must be at least 1, got {num_samples}")
        self.num_samples = num_samples

    def teachers(self, orchestrator: Server, cohort: Cohort) -> Iterator[Model]:
        """The average, the draws and the clients: see :class:`FedDF`."""
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

    def probabilities(self, logits: Tensor) -> Tensor:
        """(n, C) the mean of the teachers' probabilities, from their logits (T, n, C)."""
        return logits.softmax(2).mean(0)
