"""The ε of a sum of clipped vectors with Gaussian noise, and the noise for an ε, by the library dp-accounting."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from fl_lightning import ConfigurationError


@dataclass(frozen=True)
class Accountant:
    """Computes ε by Rényi differential privacy (Mironov, 2017) for sums in which each vector's norm is at most S.

    Args:
        sampling: the kind of draw, one of those of :attr:`ClientSampler.sampling`. With "poisson", neighbouring data
            differ by one vector that is there or not, which moves a sum by S at most; else by one vector that is
            another one, which moves it by 2 S. "fixed" counts as if every vector were in every sum.
        drawn: number of vectors in a sum, on average.
        of: number of vectors of which these are drawn.

    Raises:
        ModuleNotFoundError: dp-accounting is not installed.

    Example:
        >>> from fl_lightning.callbacks.privacy.accountant import Accountant
        >>> round(Accountant("poisson", drawn=10, of=100).epsilon(2.0, times=100, delta=0.0063), 2)
        1.41
        >>> round(Accountant("uniform", drawn=10, of=100).epsilon(2.0, times=100, delta=0.0063), 2)
        8.97
    """

    sampling: Literal["poisson", "uniform", "fixed"]
    drawn: int = 1
    of: int = 1

    def epsilon(self, noise_multiplier: float, times: int, delta: float) -> float:
        """Return ε after ``times`` sums with noise of the standard deviation ``noise_multiplier`` times S."""
        event, accountant = self._parts()
        spent = accountant()
        spent.compose(event(noise_multiplier), times)
        return float(spent.get_epsilon(delta))

    def noise_for(self, epsilon: float, times: int, delta: float) -> float:
        """Return the noise multiplier with which ``times`` sums have an ε of at most ``epsilon``, and hardly less."""
        from dp_accounting import LowerEndpointAndGuess, calibrate_dp_mechanism  # type: ignore[import-untyped]
        from dp_accounting.dp_event import SelfComposedDpEvent  # type: ignore[import-untyped]

        event, accountant = self._parts()

        def composed(noise_multiplier: float) -> Any:
            return SelfComposedDpEvent(event(noise_multiplier), times)

        return float(calibrate_dp_mechanism(accountant, composed, epsilon, delta, LowerEndpointAndGuess(0.01, 1.0)))

    def _parts(self) -> tuple[Callable[[float], Any], Callable[[], Any]]:
        """Return functions that make the event of one sum, given its noise multiplier, and an accountant."""
        from dp_accounting import NeighboringRelation, dp_event
        from dp_accounting.rdp import RdpAccountant  # type: ignore[import-untyped]

        logging.getLogger("absl").setLevel(logging.ERROR)  # it warns of orders that it leaves out, which costs nothing
        if self.sampling == "fixed":
            return (lambda noise: dp_event.GaussianDpEvent(noise / 2)), RdpAccountant
        if self.sampling == "poisson":
            share = self.drawn / self.of
            return (lambda noise: dp_event.PoissonSampledDpEvent(share, dp_event.GaussianDpEvent(noise))), RdpAccountant

        def subset(noise: float) -> Any:
            return dp_event.SampledWithoutReplacementDpEvent(self.of, self.drawn, dp_event.GaussianDpEvent(noise / 2))

        return subset, partial(RdpAccountant, neighboring_relation=NeighboringRelation.REPLACE_ONE)


def adaptive_noise(noise_multiplier: float, count_noise: float) -> float:
    """Return the noise multiplier of the sum that leaves the rest of the noise to a count of clients.

    The sum and the noisy count together are then as private as a sum with ``noise_multiplier`` alone (Andrew et al.,
    2021, Theorem 1): z_Δ = (z⁻² - (2 σ_b)⁻²)^-½.

    >>> from fl_lightning.callbacks.privacy.accountant import adaptive_noise
    >>> round(adaptive_noise(1.0, count_noise=5.0), 7)
    1.0050378

    Raises:
        ConfigurationError: the count's noise is too small.
    """
    if not 2 * count_noise > noise_multiplier:
        raise ConfigurationError(
            f"expected count_noise to be above {noise_multiplier / 2:.3g}, half of the noise multiplier, got "
            f"{count_noise}: raise it, or leave quantile out"
        )
    return 1 / math.sqrt(noise_multiplier**-2 - (2 * count_noise) ** -2)
