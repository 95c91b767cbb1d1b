"""FedALA by hand, and beside the released code."""

from typing import Any

import pytest
import torch
from lib.fifteen import Fifteen, Labelled
from lib.toy import InTurn, close, trainer
from lib.two_numbers import served
from torch import Tensor

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.callbacks import FedALA
from fl_lightning.callbacks.personal.fedala import EPOCHS, adapt_weights, has_settled


def fit(rule: FedALA, rounds: int = 3, **data: Any) -> tuple[Tensor, list[Tensor]]:
    """The global model, and the models that serve the two clients, after some rounds of two local steps."""
    orchestrator = FederatedOrchestrator(Fifteen(), local_steps=2, on_bad_update="raise")
    models: list[Tensor] = []

    class Look(FedALA):
        def on_round_end(self, orchestrator: Any, cohort: Any) -> None:
            models[:] = [orchestrator.personal_model(client)[0].clone() for client in range(2)]

    look = Look(rule.parts, rule.share, rule.lr)
    trainer(look, rounds=rounds).fit(orchestrator, datamodule=Labelled([0, 1, 2, 0], [2, 0, 0, 1], **data))
    return orchestrator.params.clone(), models


def test_the_released_code() -> None:
    """The class ALA of TsingZ0/FedALA, run apart in float64: three rounds of two clients, the last two tensors, η = 5.

    Round 2 learns for 11 epochs, round 3 and the models that are served once more, all on the clients' one batch.
    """
    body = [-0.8109618010609927, -0.7841531611093139, -0.6142880087016649]
    body += [-0.580039370987842, -0.43943055205459614, -0.3107744496445224]
    head = [-0.14484973700122475, 0.010231661618346322, 0.4013169124758393]
    head += [0.5183529821414015, 0.2365020895827985, 0.355755655195043]
    head += [0.7876558009785506, 0.7052767591213768, 0.7603991562883727]
    first = [-0.00545772305777191, 0.1409322221638528, 0.364165421550697]
    first += [0.49956079984231266, 0.23654486474364672, 0.3549942361391566]
    first += [0.7903935001992135, 0.7047954281103018, 0.7602575889544065]
    second = [-0.2717357598020457, -0.10420245616501697, 0.540972106995754]
    second += [0.6076216700448511, 0.23650188192117616, 0.355755655195043]
    second += [0.7873100183285424, 0.7056522501975407, 0.7603991562883727]
    model, models = fit(FedALA(["head"], share=1.0, lr=5.0))
    assert close(model, body + head, 1e-12)
    assert close(torch.stack(models), [body + first, body + second], 1e-12)


def test_two_rounds_by_hand() -> None:
    """Round 1: (1, 1) and (3, -2), of mean (2, -½). own is the upper layer, with the slopes -1 and 2.

    W's slopes are -1 · (-½ - 1) = 1.5 and 2 · (-½ + 2) = 3. With η = 0.01, client 0's W falls from 1 by 0.015 an epoch,
    and its loss by 0.0225, so that ten of them lie close together: after 11 epochs it starts at 1 - 1.5 · 0.835. Client
    1's loss falls by 0.09, until W is 0: it starts at its own -2.
    """
    model, models = served(FedALA(["own"], share=1.0, lr=0.01), rounds=1)
    assert model == [2.0, -0.5]
    assert models[0] == pytest.approx([2.0, 1 - 1.5 * 0.835])
    assert models[1] == pytest.approx([2.0, -2.0])
    model, _ = served(FedALA(["own"], share=1.0, lr=0.01), rounds=2)
    assert model == pytest.approx([4.0, ((1 - 1.5 * 0.835 + 1) + (-2 - 2)) / 2])


def test_who_has_not_taken_part_is_served_by_the_global_model() -> None:
    model, models = fit(FedALA(["head"]), sampler=InTurn([0]))
    assert torch.equal(models[1], model)
    assert torch.equal(models[0], model)  # the average of one


def test_weights_stay_in_their_range() -> None:
    """At every scale; without a gradient, or where both models are one, they stay as they are."""
    weights, draw = torch.rand(6, dtype=torch.float64), torch.linspace(-1, 1, 6).double()
    for scale in (1e-9, 1.0, 1e9):
        new = adapt_weights(weights, scale * draw, draw.flip(0), 1.0)
        assert bool(((new >= 0) & (new <= 1)).all())
    assert torch.equal(adapt_weights(weights, 0 * draw, draw, 1.0), weights)
    assert torch.equal(adapt_weights(weights, draw, 0 * draw, 1.0), weights)


def test_when_a_first_learning_ends() -> None:
    """Eleven losses, of which the last ten lie close together; losses that never do end, too."""
    assert not has_settled([1.0] * 10)
    assert has_settled([9.0] + [1.0] * 10)
    assert not has_settled([1.0] * 10 + [2.0])
    assert not has_settled([0.0, 1.0] * (EPOCHS // 2 - 1))
    assert has_settled([0.0, 1.0] * (EPOCHS // 2))


def test_a_share_of_the_batches() -> None:
    """Of two batches, a half and a tenth are the first one; all are both."""
    half, tenth, whole = [fit(FedALA(["head"], share, 5.0), 2, batch_size=2)[0] for share in (0.5, 0.1, 1.0)]
    assert torch.equal(half, tenth)
    assert not close(half, whole, 1e-6)


@pytest.mark.parametrize("parts", [[], ["tail"]])
def test_parts(parts: list[str]) -> None:
    with pytest.raises(ConfigurationError, match=r"parts|tail"):
        fit(FedALA(parts))
