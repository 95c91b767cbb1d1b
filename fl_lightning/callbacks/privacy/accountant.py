"""The ε of sums of clipped vectors with Gaussian noise, and the noise for an ε, by the library dp-accounting."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal

from fl_lightning import ConfigurationError

LEAST_NOISE = 0.01  # least noise multiplier that is searched for an ε
MUCH_NOISE = 1e4  # a noise multiplier with which a sum tells nothing that counts
Sampling = Literal["poisson", "uniform", "fixed"]


@dataclass(frozen=True)
class Accountant:
    """Computes ε by Rényi differential privacy (Mironov, 2017) for sums in which each vector's norm is at most S.

    Args:
        sampling: the kind of draw, one of those of :attr:`ClientSampler.sampling`. With "poisson", neighbouring data
            differ by one vector that is there or not, which moves a sum by S at most; else by one vector that is
            another one, which moves it by 2 S. "fixed" counts as if every vector were in every sum; so does "uniform"
            where that gives the smaller ε, as for large shares.
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

    sampling: Sampling
    drawn: int = 1
    of: int = 1

    def epsilon(self, noise_multiplier: float, times: int, delta: float, before: Sequence["Release"] = ()) -> float:
        """Return ε after ``times`` sums with noise of the deviation ``noise_multiplier`` times S, and those before."""
        return epsilon_of([*before, (self, noise_multiplier, times)], delta)

    def noise_for(self, epsilon: float, times: int, delta: float, before: Sequence["Release"] = ()) -> float:
        """Return the noise multiplier with which :meth:`epsilon` is at most ``epsilon``, and hardly less.

        Raises:
            ConfigurationError: the releases before have spent ``epsilon``, or no noise that is searched gives it.
        """
        from dp_accounting import LowerEndpointAndGuess, calibrate_dp_mechanism  # type: ignore[import-untyped]
        from dp_accounting.dp_event import ComposedDpEvent, SelfComposedDpEvent  # type: ignore[import-untyped]
        from dp_accounting.mechanism_calibration import NoBracketIntervalFoundError  # type: ignore[import-untyped]

        def event_with(noise_multiplier: float, bound: Sampling) -> Any:
            releases = [*before, (self, noise_multiplier, times)]
            return ComposedDpEvent([SelfComposedDpEvent(_event(kind, z, bound), n) for kind, z, n in releases])

        found = list[float]()
        guess = LowerEndpointAndGuess(LEAST_NOISE, 1.0)
        hardly_more = [*before, (self, MUCH_NOISE, times)]
        for bound in _bounds(hardly_more):
            if before and _epsilon_by(hardly_more, delta, bound) >= epsilon:
                continue  # the releases before have spent it, by this bound
            make = partial(event_with, bound=bound)
            try:
                noise = calibrate_dp_mechanism(partial(_new, bound), make, epsilon, delta, guess)
            except NoBracketIntervalFoundError:
                raise ConfigurationError(
                    f"expected a target_epsilon that some noise multiplier above {LEAST_NOISE:g} reaches, got "
                    f"{epsilon:g}: give one near 8, or noise_multiplier"
                ) from None
            found.append(float(noise))
        if not found:
            raise ConfigurationError(
                f"ClientDP: the rounds so far have spent ε = {epsilon_of(before, delta):.3f} of the target_epsilon "
                f"{epsilon:g}: raise it"
            )
        return min(found)


#: Some sums: how their vectors were drawn, the noise multiplier, and their number.
Release = tuple[Accountant, float, int]


def epsilon_of(releases: Sequence[Release], delta: float) -> float:
    """Return the ε of all of some releases, at δ; infinite if one has no noise.

    If all are "poisson", neighbouring data differ by one vector that is there or not; else by one that is another one,
    for which a "poisson" sum counts as if every vector were in it.
    """
    made = [release for release in releases if release[2]]
    if not made:
        return 0.0
    return min(_epsilon_by(made, delta, bound) for bound in _bounds(made))


def _epsilon_by(releases: Sequence[Release], delta: float, bound: Sampling) -> float:
    """Return the ε of releases by one of the bounds."""
    from dp_accounting.rdp import compute_epsilon  # type: ignore[import-untyped]

    total = sum(times * _rdp(accountant, noise, bound) for accountant, noise, times in releases)
    return float(compute_epsilon(_new(bound).orders, total, delta)[0])


def _bounds(releases: Sequence[Release]) -> list[Sampling]:
    """Return the kinds of draw whose bound may count: the others' sums count as if every vector were in them."""
    if all(accountant.sampling == "poisson" for accountant, _, _ in releases):
        return ["poisson"]
    return ["uniform", "fixed"]


@cache
def _rdp(accountant: Accountant, noise_multiplier: float, bound: Sampling) -> Any:
    """Compute the Rényi divergences of one sum, which takes up to half a second, once."""
    return _new(bound).compose(_event(accountant, noise_multiplier, bound)).rdp


def _new(bound: Sampling) -> Any:
    """Return an accountant of the library, without any sum."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.rdp import RdpAccountant

    logging.getLogger("absl").setLevel(logging.ERROR)  # it warns of orders that it leaves out, which costs nothing
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE if bound == "poisson" else NeighboringRelation.REPLACE_ONE
    return RdpAccountant(neighboring_relation=relation)


def _event(accountant: Accountant, noise_multiplier: float, bound: Sampling) -> Any:
    """Return the library's event of one sum."""
    from dp_accounting import dp_event

    if bound == "poisson":
        share = accountant.drawn / accountant.of
        return dp_event.PoissonSampledDpEvent(share, dp_event.GaussianDpEvent(noise_multiplier))
    replaced = dp_event.GaussianDpEvent(noise_multiplier / 2)
    if bound == "uniform" and accountant.sampling == "uniform":
        return dp_event.SampledWithoutReplacementDpEvent(accountant.of, accountant.drawn, replaced)
    return replaced


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
