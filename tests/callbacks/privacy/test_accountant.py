"""ε against published figures, and against figures of the library that were computed once.

Those of Abadi et al., 2016, and McMahan et al., 2018, are as others quote them: neither paper was opened for this.
"""

import math
from typing import Any

import pytest
from dp_accounting import NeighboringRelation, dp_event, pld
from dp_accounting.rdp import RdpAccountant

from fl_lightning import ConfigurationError
from fl_lightning.callbacks.privacy.accountant import Accountant, adaptive_noise, epsilon_of

MNIST = (256, 60000)
# z, vectors a sum, of, sums, ε by RDP, ε by PLD, the published figure: TensorFlow Privacy's tutorials (three times,
# with the conversion of Abadi et al., 2016), opacus' own test, and Abadi et al., 2016, for q = 0.01.
POISSON = [
    (1.12, *MNIST, 14062, 2.518590, 2.310185, 2.92),
    (0.6, *MNIST, 7031, 8.776576, 7.690027, 9.74),
    (1.2, *MNIST, 2343, 0.931622, 0.792289, 1.20),
    (1.5, 4, 100, 2250, 7.329335, 6.768787, None),
    (4.0, 1, 100, 10000, 1.035490, 0.946999, 1.26),
]


def old_conversion(noise: float, share: float, times: int, delta: float, orders: list[float] | None = None) -> float:
    """The least RDP(α) + ln(1/δ) / (α - 1), by which ε was found until 2020."""
    epsilon_of = RdpAccountant(orders)
    epsilon_of.compose(dp_event.PoissonSampledDpEvent(share, dp_event.GaussianDpEvent(noise)), times)
    return float(
        min(r + math.log(1 / delta) / (a - 1) for a, r in zip(epsilon_of._orders, epsilon_of._rdp, strict=True))
    )


@pytest.mark.parametrize(("noise", "drawn", "of", "times", "rdp", "exact", "published"), POISSON)
def test_poisson_sums(
    noise: float, drawn: int, of: int, times: int, rdp: float, exact: float, published: float | None
) -> None:
    """Within 1e-6 of the figure; above the numerical accountant's; and by the old conversion what was published."""
    assert Accountant("poisson", drawn, of).epsilon(noise, times, 1e-5) == pytest.approx(rdp, abs=1e-6)
    numerical = pld.PLDAccountant()
    numerical.compose(dp_event.PoissonSampledDpEvent(drawn / of, dp_event.GaussianDpEvent(noise)), times)
    assert numerical.get_epsilon(1e-5) == pytest.approx(exact, abs=2e-3)
    if published is not None:
        assert old_conversion(noise, drawn / of, times, 1e-5) == pytest.approx(published, rel=3e-3)


def test_user_level_sums() -> None:
    """McMahan et al., 2018, Table 1: K = 1e5, 100 a round, z = 1, δ = K^-1.1, after 1, 10, …, 10⁶ rounds."""
    orders = [float(order) for order in range(2, 34)]
    found = [old_conversion(1.0, 1e-3, 10**power, 1e5**-1.1, orders) for power in range(7)]
    assert [round(each, 2) for each in found] == [0.97, 0.98, 1.00, 1.07, 1.18, 2.21, 7.50]
    assert old_conversion(1.0, 5000 / 763430, 5000, 1e-9, orders) == pytest.approx(4.634, abs=1e-3)


@pytest.mark.parametrize(
    ("clients", "cohort", "rounds", "fixed", "poisson"),
    [
        (100, 10, 100, (77.490, 8.973, 3.341), (4.616, 1.409, 0.540)),
        (1000, 50, 200, (54.486, 7.322, 2.789), (4.014, 1.271, 0.525)),
    ],
)
def test_cohorts_of_a_fixed_size_cost_more(
    clients: int, cohort: int, rounds: int, fixed: tuple[float, ...], poisson: tuple[float, ...]
) -> None:
    for sampling, expected in (("uniform", fixed), ("poisson", poisson)):
        accountant = Accountant(sampling, cohort, clients)  # type: ignore[arg-type]  # a literal
        found = [accountant.epsilon(noise, rounds, clients**-1.1) for noise in (1.0, 2.0, 4.0)]
        assert found == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("noise", "visits", "expected"), [(1.0, 1, 4.728507), (4.0, 10, 3.617100), (20.0, 100, 2.165716)]
)
def test_sums_in_which_all_are(noise: float, visits: int, expected: float) -> None:
    """The noise in units of the sensitivity, which is twice the clip."""
    assert Accountant("fixed").epsilon(2 * noise, visits, 1e-5) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("drawn", [10, 50, 90])
def test_the_smaller_of_two_bounds(drawn: int) -> None:
    """That for subsets, and that as if all took part, of Gaussians with z / 2: 100 sums with z = 2 are one with 1 / 10.

    For 90 of 100 the first is 172 and the second 80 (Rényi's bound for one Gaussian, over whole orders at most).
    """
    found = Accountant("uniform", drawn, 100).epsilon(2.0, 100, 0.0063)
    subsets = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    subsets.compose(dp_event.SampledWithoutReplacementDpEvent(100, drawn, dp_event.GaussianDpEvent(1.0)), 100)
    gauss = RdpAccountant()
    gauss.compose(dp_event.GaussianDpEvent(0.1))
    assert found == pytest.approx(min(subsets.get_epsilon(0.0063), gauss.get_epsilon(0.0063)), rel=1e-9)
    assert (found < subsets.get_epsilon(0.0063) - 1) == (drawn > 10)


def test_the_noise_for_an_epsilon_with_most_clients() -> None:
    """Of 90 of 100 clients in 100 rounds: 9.30 is enough for ε = 8, where the bound for subsets asks for 17.19."""
    found = Accountant("uniform", 90, 100).noise_for(8.0, 100, 0.0063)
    gauss = RdpAccountant()
    gauss.compose(dp_event.GaussianDpEvent(found / 2), 100)
    assert gauss.get_epsilon(0.0063) == pytest.approx(8.0, abs=1e-4)
    assert found == pytest.approx(9.304, abs=1e-3)


def test_releases_of_several_kinds_add_up() -> None:
    """Gaussians: 8 / 8² + 1 / 4² = 3 / 4². Without noise nothing is private, and without a release everything is."""
    fixed, poisson = Accountant("fixed"), Accountant("poisson", 10, 100)
    assert epsilon_of([(fixed, 8.0, 8), (fixed, 4.0, 1)], 1e-5) == pytest.approx(epsilon_of([(fixed, 4.0, 3)], 1e-5))
    assert epsilon_of([(fixed, 4.0, 3), (poisson, 1.0, 0)], 1e-5) == epsilon_of([(fixed, 4.0, 3)], 1e-5)
    assert epsilon_of([(fixed, 4.0, 3), (fixed, 0.0, 1)], 1e-5) == math.inf
    assert epsilon_of([], 1e-5) == 0
    two = RdpAccountant()
    for noise, times in ((1.0, 20), (2.0, 80)):
        two.compose(dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(noise)), times)
    assert poisson.epsilon(2.0, 80, 1e-5, before=[(poisson, 1.0, 20)]) == pytest.approx(two.get_epsilon(1e-5))
    assert epsilon_of([(poisson, 4.0, 3), (fixed, 4.0, 1)], 1e-5) == epsilon_of([(fixed, 4.0, 4)], 1e-5), (
        "one may be replaced"
    )
    rest = poisson.noise_for(8.0, 80, 1e-5, before=[(poisson, 1.0, 20)])
    assert 7.999 < poisson.epsilon(rest, 80, 1e-5, before=[(poisson, 1.0, 20)]) <= 8.0


def test_each_kind_of_sum_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In 50 rounds, and not in each of them anew."""
    calls = list[Any]()
    compose = RdpAccountant.compose
    monkeypatch.setattr(RdpAccountant, "compose", lambda self, *args: calls.append(args) or compose(self, *args))
    accountant = Accountant("uniform", 7, 50)
    rising = [accountant.epsilon(1.7, rounds, 1e-3) for rounds in range(1, 51)]
    assert rising == sorted(rising)
    assert len(calls) <= 2


@pytest.mark.parametrize(("target", "noise"), [(1.0, 2.542), (3.0, 1.251), (8.0, 0.769)])
def test_the_noise_for_an_epsilon(target: float, noise: float) -> None:
    """Opacus finds these to 1e-3; ours ends just below the target."""
    accountant = Accountant("poisson", 10, 100)
    found = accountant.noise_for(target, 100, 100**-1.1)
    assert found == pytest.approx(noise, abs=3e-3)
    assert target - 1e-4 < accountant.epsilon(found, 100, 100**-1.1) <= target


def test_the_rest_of_the_noise() -> None:
    assert adaptive_noise(1.0, 5.0) == pytest.approx(1.0050378, abs=1e-7)
    with pytest.raises(
        ConfigurationError, match=r"count_noise to be above 0\.5, half of the noise multiplier, got 0\.5"
    ):
        adaptive_noise(1.0, 0.5)


@pytest.mark.parametrize("epsilon", [1e12, 1e16])
def test_an_epsilon_that_no_noise_gives_is_refused(epsilon: float) -> None:
    with pytest.raises(
        ConfigurationError, match=r"expected a target_epsilon that some noise .* got 1e[+-]\d\d: give one"
    ):
        Accountant("poisson", 10, 100).noise_for(epsilon, times=3, delta=1e-5)
