"""What holds for every client rule: it goes with any local training, and its further passes leave no trace."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from lib.rules import CLIENT_RULES, ELSEWHERE, UNIFORM, TinyClassifier, TinyData
from lib.toy import DecaysEverySecondStep, Quadratic, ToyData, send, trainer
from torch import nn

from fl_lightning import FederatedOrchestrator
from fl_lightning.callbacks import (
    MOON,
    FedAvg,
    FedDecorr,
    FedDyn,
    FedGAM,
    FedGAMCV,
    FedProx,
    FedSAM,
    FedSMOO,
    FocalLoss,
    Scaffold,
)
from fl_lightning.engine.rules.callback import overrides


class Momentum(TinyClassifier):
    """With a hidden layer, since the tiny classifier learns no features, under momentum and weight decay."""

    lr = 0.1

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)).double()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), self.lr, momentum=0.9, weight_decay=0.01)


class Scheduled(DecaysEverySecondStep, Momentum):
    pass


class Still(Momentum):
    lr = 0.0


class Few(TinyData):
    num_clients = 3


SETTINGS: dict[str, tuple[Callable[[], Momentum], dict[str, Any]]] = {
    "momentum": (Momentum, {}),
    "schedule": (Scheduled, {}),
    "clipping": (Momentum, {"gradient_clip_val": 0.1}),
    "accumulation": (Momentum, {"accumulate_grad_batches": 2}),
    "no learning": (Still, {}),
}


def fit(setting: str, *rules: Any) -> dict[str, torch.Tensor]:
    """Two rounds of two local epochs: parameters and buffers."""
    make, settings = SETTINGS[setting]
    orchestrator = FederatedOrchestrator(make(), local_epochs=2, on_bad_update="raise", **settings)
    trainer(*rules, rounds=2).fit(orchestrator, datamodule=Few(batch_size=4))
    return orchestrator.state_dict()


@cache
def plain(setting: str, uniform: bool = False) -> dict[str, torch.Tensor]:
    """Without a client rule."""
    return fit(setting, FedAvg("uniform" if uniform else "samples"))


def weight(state: dict[str, torch.Tensor]) -> torch.Tensor:
    return state["client.net.0.weight"]


GIVEN = [(name, setting) for name in CLIENT_RULES for setting in ("schedule", "clipping")]
GIVEN += [(name, "accumulation") for name in CLIENT_RULES if name not in ELSEWHERE]  # those are refused


@pytest.mark.parametrize(("name", "setting"), GIVEN)
def test_goes_with_every_local_setting(name: str, setting: str) -> None:
    """The rule acts: the model is finite, and not the one without the rule."""
    ours = weight(fit(setting, CLIENT_RULES[name]()))
    assert ours.isfinite().all()
    assert not torch.allclose(ours, weight(plain(setting, name in UNIFORM)), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", CLIENT_RULES)
def test_batch_norm_statistics_are_those_of_one_pass(name: str) -> None:
    """Where nobody moves, the statistics depend on the passes alone: those at other points do not count."""
    ours, expected = fit("no learning", CLIENT_RULES[name]()), plain("no learning")
    assert weight(ours).equal(weight(plain("no learning")))
    statistics = [part for part in expected if "running" in part or "tracked" in part]
    assert len(statistics) == 3
    assert all(ours[part].equal(expected[part]) for part in statistics)


NEUTRAL: dict[str, tuple[Any, Any]] = {
    "FedProx, 0": (FedProx(0.0), FedAvg()),
    "FedSAM, 0": (FedSAM(0.0), FedAvg()),
    "ASAM, 0": (FedSAM(0.0, adaptive=True), FedAvg()),
    "FocalLoss, 0": (FocalLoss(0.0, 1.0), FedAvg()),
    "MOON, 0": (MOON(0.0), FedAvg()),
    "FedDecorr, 0": (FedDecorr(0.0), FedAvg()),
    "FedGAM, alpha 0": (FedGAM("paper", alpha=0.0), FedAvg("uniform")),
    "FedGAM, rho 0": (FedGAM("paper", rho=0.0), FedAvg("uniform")),
    "FedSMOO, 0": (FedSMOO(0.3, 0.0), FedDyn(0.3)),
    "FedGAMCV, alpha 0": (FedGAMCV("paper", alpha=0.0), Scaffold()),
}


@pytest.mark.parametrize("name", NEUTRAL)
def test_without_its_term_a_rule_is_the_simpler_one_bit_for_bit(name: str) -> None:
    rule, simpler = NEUTRAL[name]
    ours, expected = fit("momentum", rule), fit("momentum", simpler)
    assert all(ours[part].equal(expected[part]) for part in expected)
    assert rule.state.keys() == simpler.state.keys()


@pytest.mark.parametrize("rule", [MOON(0.0), FedDecorr(0.0)], ids=["MOON", "FedDecorr"])
def test_without_its_term_a_rule_looks_at_no_features(rule: Any) -> None:
    """It goes with modules that have none."""
    trainer(rule, rounds=2).fit(FederatedOrchestrator(Quadratic(), on_bad_update="raise"), datamodule=ToyData())


@pytest.mark.parametrize("name", [name for name, make in CLIENT_RULES.items() if not overrides(make(), "loss")])
def test_zero_gradients_leave_the_model_and_all_states_at_zero(name: str) -> None:
    rule = CLIENT_RULES[name]()
    assert not send([[0.0, 0.0]] * 2, rule)[0].any()
    assert not any(value.any() for value in rule.state.values())
