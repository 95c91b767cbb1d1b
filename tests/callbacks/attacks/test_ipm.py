"""Inner-product manipulation: what the attackers send, which knows what the others send."""

import pytest
import torch
from toy import Capture, GivenData, Linear, close, send, trainer

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.callbacks import IPM, CoordinateMedian, FedAvg, Krum, SignFlip

SENT = torch.tensor([[1.0, 2.0], [3.0, -1.0], [-2.0, 0.5], [0.5, 4.0], [1.5, 1.5]], dtype=torch.float64)
FLIPPED = send(SENT, SignFlip(2))[1].cohort.deltas
ATTACKERS = [k for k in range(5) if not close(FLIPPED[k], SENT[k])]
HONEST = [k for k in range(5) if k not in ATTACKERS]


def test_attackers_send_the_opposite_of_the_honest_mean() -> None:
    """The attackers are those of SignFlip; n_k does not enter the mean, but the average weighs by n_k = 1, 2, …, 5."""
    model, capture = send(SENT, IPM(2, 0.5), samples=[1, 2, 3, 4, 5])
    mean = SENT[HONEST].mean(0)
    assert close(capture.cohort.deltas[HONEST], SENT[HONEST])
    assert close(capture.cohort.deltas[ATTACKERS], (-0.5 * mean).expand(2, 2))
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype=torch.float64) / 15
    assert close(model, weights[HONEST] @ SENT[HONEST] - 0.5 * weights[ATTACKERS].sum() * mean)


def test_a_large_epsilon_turns_the_average() -> None:
    """(3 - 2ε)/5 of the honest mean: with ε = 4 it is -1 of it."""
    assert close(send(SENT, IPM(2, 4.0), FedAvg("uniform"))[0], -SENT[HONEST].mean(0))


def test_rules_see_what_the_attackers_send() -> None:
    """Gram matrix and reducers: the median of -40 twice and 1, 1, 1 is 1; the honest are nearest to one another."""
    ones = torch.ones(5, 1)
    assert close(send(ones, IPM(2, 40.0), CoordinateMedian())[0], [1.0])
    _, capture = send(ones, IPM(2, 40.0))
    assert close(capture.cohort.gram.diagonal().sort().values, [1, 1, 1, 1600, 1600])


def test_a_cohort_of_attackers_or_of_honest_clients_is_as_it_was() -> None:
    assert close(send(SENT, IPM(5))[1].cohort.deltas, SENT)
    assert close(send(SENT, IPM(0))[1].cohort.deltas, SENT)


def test_attackers_that_are_not_in_the_cohort_send_nothing() -> None:
    data = GivenData(-SENT, participation=2)
    capture = Capture()
    trainer(IPM(2, 1.0), capture, rounds=10).fit(FederatedOrchestrator(Linear(2)), datamodule=data)
    for cohort in capture.cohorts:
        attacking = [client in ATTACKERS for client in cohort.clients]
        sent = SENT[list(cohort.clients)]
        if sum(attacking) == 1:
            sent[attacking] = -sent[[not each for each in attacking]]
        assert close(cohort.deltas, sent)
    assert len({sum(client in ATTACKERS for client in cohort.clients) for cohort in capture.cohorts}) > 1


def test_after_a_rule_that_weighs_the_updates_it_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="Krum weighs the updates as they are; put IPM before Krum"):
        send(SENT, Krum(1), IPM(1))


@pytest.mark.parametrize("epsilon", [-1.0, float("nan"), float("inf")])
def test_bad_epsilons_are_refused(epsilon: float) -> None:
    with pytest.raises(ConfigurationError, match=f"epsilon must be at least 0 and finite, got {epsilon}"):
        IPM(1, epsilon)
