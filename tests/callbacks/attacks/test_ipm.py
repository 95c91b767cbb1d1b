"""Inner-product manipulation: what the attackers send, which knows what the others send."""

import torch
from lib.hand_made import apply
from lib.toy import close

from fl_lightning.callbacks import IPM, CoordinateMedian, FedAvg

SENT = torch.tensor([[1.0, 2.0], [3.0, -1.0], [-2.0, 0.5], [0.5, 4.0], [1.5, 1.5]], dtype=torch.float64)
ATTACKED = (apply(SENT, IPM(2))[1].cohort.deltas != SENT).any(1)
ATTACKERS, HONEST = (torch.nonzero(mask).flatten().tolist() for mask in (ATTACKED, ~ATTACKED))


def test_attackers_send_the_opposite_of_the_honest_mean() -> None:
    """n_k does not enter the mean, but the average weighs by n_k = 1, 2, …, 5."""
    assert len(ATTACKERS) == 2
    model, capture = apply(SENT, IPM(2, 0.5), samples=[1, 2, 3, 4, 5])
    mean = SENT[HONEST].mean(0)
    assert close(capture.cohort.deltas[HONEST], SENT[HONEST])
    assert close(capture.cohort.deltas[ATTACKERS], (-0.5 * mean).expand(2, 2))
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype=torch.float64) / 15
    assert close(model, weights[HONEST] @ SENT[HONEST] - 0.5 * weights[ATTACKERS].sum() * mean)


def test_a_large_epsilon_turns_the_average() -> None:
    """(3 - 2ε)/5 of the honest mean: with ε = 4 it is -1 of it."""
    assert close(apply(SENT, IPM(2, 4.0), FedAvg("uniform"))[0], -SENT[HONEST].mean(0))


def test_rules_see_what_the_attackers_send() -> None:
    """Gram matrix and reducers: the median of -40 twice and 1, 1, 1 is 1."""
    model, capture = apply(torch.ones(5, 1), IPM(2, 40.0), CoordinateMedian())
    assert close(model, [1.0])
    assert close(capture.cohort.gram.diagonal().sort().values, [1, 1, 1, 1600, 1600])


def test_a_cohort_of_attackers_or_of_honest_clients_is_as_it_was() -> None:
    for count, clients in ((5, HONEST), (0, ATTACKERS), (2, ATTACKERS), (2, HONEST)):
        assert close(apply(SENT, IPM(count), cohorts=[clients])[1].cohort.deltas, SENT[clients])


def test_attackers_that_are_not_in_the_cohort_send_nothing() -> None:
    one, other = ATTACKERS[0], HONEST[0]
    sent = apply(SENT, IPM(2, 1.0), cohorts=[sorted((one, other))])[1].cohort.deltas
    assert close(sent, SENT[[other, other]] * torch.tensor([[-1.0], [1.0]]) * (1 if one < other else -1))
